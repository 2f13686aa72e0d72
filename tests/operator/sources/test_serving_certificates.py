"""Certificates that users bring, looked at before members get them."""

from __future__ import annotations

import time

import pytest
from brokerd_operator.sources import serving_certificates
from brokerd_operator.sources.serving_certificates import Inspection, Trusted, covers, inspect

from tests.authorities import Authority, Pair

HOSTS = [f"orders-{ordinal}.orders-nodes.shop.svc" for ordinal in range(3)]
ROOT, OTHER = Authority("root"), Authority("other")
INTERMEDIATE = Authority("intermediate", ROOT)


def look(
    pair: Pair,
    *behind: bytes,
    trusted: bytes = ROOT.certificate,
    secret: str = "company-ca",
    later_s: float = 0.0,
) -> Inspection:
    chain = b"".join((pair.certificate, *behind))
    return inspect(chain, pair.key, Trusted(secret, trusted), HOSTS, time.time() + later_s)


@pytest.mark.parametrize(
    ("pair", "behind"),
    [
        (ROOT.issue(*HOSTS), ()),
        (ROOT.issue("*.orders-nodes.shop.svc"), ()),
        (INTERMEDIATE.issue(*HOSTS), (INTERMEDIATE.certificate,)),
        # The order behind the first one is nobody's business, and the root may be there.
        (INTERMEDIATE.issue(*HOSTS), (ROOT.certificate, INTERMEDIATE.certificate)),
    ],
)
def test_what_will_do_is_let_through(pair: Pair, behind: tuple[bytes, ...]) -> None:
    found = look(pair, *behind)
    assert found.problem == ""
    assert found.validity is not None


def test_an_intermediate_that_is_itself_trusted_will_do() -> None:
    assert look(INTERMEDIATE.issue(*HOSTS), trusted=INTERMEDIATE.certificate).problem == ""


def test_a_certificate_that_is_its_own_authority_will_do() -> None:
    pair = ROOT.issue(*HOSTS)
    assert look(pair, trusted=pair.certificate).problem == ""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (look(Pair(ROOT.issue(*HOSTS).certificate, ROOT.issue("x").key)), "the key is not the"),
        (look(Pair(b"", b"")), "there is no certificate"),
        (look(Pair(b"x", b"x")), "the certificate cannot be read"),
        (look(Pair(ROOT.issue(*HOSTS).certificate, b"")), "there is no key"),
        (look(ROOT.issue(*HOSTS, seconds=-60)), "it expired at "),
        (look(ROOT.issue(*HOSTS), later_s=7200), "it expired at "),
        (look(ROOT.issue(*HOSTS), later_s=-7200), "it is not valid before "),
        (look(ROOT.issue("orders.shop.svc")), f"it does not name {HOSTS[0]} and 2 more"),
        (look(ROOT.issue(*HOSTS[:2])), f"it does not name {HOSTS[2]}, by which"),
        (look(OTHER.issue(*HOSTS)), "its issuer CN=other is neither in ca.crt of Secret company"),
        (look(Authority("root").issue(*HOSTS)), "its issuer CN=root is neither in ca.crt"),
        (look(INTERMEDIATE.issue(*HOSTS)), "append the intermediate certificate to tls.crt"),
        (look(ROOT.issue(*HOSTS), trusted=b""), "ca.crt of Secret company-ca holds no certificate"),
        (look(ROOT.issue(*HOSTS), trusted=b"x"), "ca.crt of Secret company-ca holds no certi"),
        (
            look(ROOT.issue(*HOSTS), secret="", trusted=OTHER.certificate),
            "is neither in the system's authorities",
        ),
    ],
)
def test_what_is_wrong_is_said(found: Inspection, problem: str) -> None:
    assert problem in found.problem


def test_a_chain_whose_authority_has_expired_is_refused() -> None:
    """An authority lives for an hour, this certificate for longer."""
    # Made now: the one of this module may be as old as all tests before this one have taken.
    root = Authority("root")
    pair = root.issue(*HOSTS, seconds=10_000)
    assert look(pair, trusted=root.certificate, later_s=3000).problem == ""
    assert "its issuer CN=root" in look(pair, trusted=root.certificate, later_s=5000).problem


def test_it_is_described_by_subject_issuer_and_end() -> None:
    found = look(INTERMEDIATE.issue(*HOSTS))
    assert found.shown.startswith(f"subject CN={HOSTS[0]}, issuer CN=intermediate, expires 20")
    assert look(Pair(ROOT.issue("a").certificate, b"")).shown.startswith("subject CN=a, ")
    assert look(Pair(b"x", b"x")).shown == ""


def test_a_wildcard_stands_for_one_label() -> None:
    assert covers(["*.nodes.svc"], "a.nodes.svc")
    assert covers(["A.Nodes.SVC"], "a.nodes.svc")
    assert not covers(["*.svc"], "a.nodes.svc")
    assert not covers(["*"], "a.nodes.svc")
    assert not covers([], "a.nodes.svc")


def test_where_no_authority_is_named_those_of_the_system_count() -> None:
    pem = serving_certificates.system_authorities()
    assert pem.count(b"BEGIN CERTIFICATE") > 20
    assert "system's authorities" in look(ROOT.issue(*HOSTS), secret="", trusted=pem).problem
