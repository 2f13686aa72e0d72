"""Who is taken for a member (SEC-3, SEC-4, SEC-8)."""

from __future__ import annotations

import pytest

from brokerd.cluster.config import HostConfig
from brokerd.cluster.peer import security
from brokerd.raft.messages import NodeId

NODE = NodeId("brokerd-0")


@pytest.mark.parametrize(
    ("names", "is_member"),
    [
        (["brokerd-0"], True),
        (["x", "brokerd-0.brokerd.ns.svc"], True),
        (["brokerd-01"], False),
        (["xbrokerd-0"], False),
        (["*.brokerd.ns.svc"], False),
        (["*"], False),
        ([], False),
    ],
)
def test_certificate_must_carry_the_members_name(names: list[str], is_member: bool) -> None:
    """SEC-4."""
    assert security.is_member_certificate(names, NODE) is is_member


def test_names_are_read_from_the_alternative_names_only() -> None:
    certificate = {
        "subject": ((("commonName", "brokerd-1"),),),
        "subjectAltName": (("DNS", "brokerd-0"), ("email", "brokerd-2"), ("IP Address", "::1")),
    }
    assert security.names_in_certificate(certificate) == {"brokerd-0", "::1"}
    assert security.names_in_certificate(None) == set()


def test_secret_must_be_shown_and_be_right() -> None:
    """SEC-8."""
    assert security.is_secret_right(security.secret_metadata("s3cret"), "s3cret")
    assert not security.is_secret_right(security.secret_metadata("s3cre"), "s3cret")
    assert not security.is_secret_right((), "s3cret")
    assert security.is_secret_right((), "")


def test_secret_is_not_in_the_configurations_repr() -> None:
    assert "s3cret" not in repr(HostConfig(secret="s3cret"))
