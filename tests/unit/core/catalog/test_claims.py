"""Claims of tokens: times, audience, names, where scopes stand; and any JSON instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.catalog import claims
from brokerd.core.catalog.claims import OAuthRules, Problem, Times
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.scopes import SCOPES_MAX, Scopes

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1000
TIMES = Times(NOW_MS + 60_000)
RULES = OAuthRules("mq", "mq.")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
NAMES = ("exp", "nbf", "aud", "sub", "client_id", "scope", "authorization", "extra")


@pytest.mark.parametrize(
    ("given_claims", "expected"),
    [
        ({"exp": NOW_S + 1}, Times(NOW_MS + 1000)),
        ({"exp": NOW_S + 0.5}, Problem.EXPIRED),
        ({"exp": NOW_S}, Problem.EXPIRED),
        ({"exp": 0}, Problem.EXPIRED),
        ({"exp": -(10**30)}, Problem.UNREADABLE),
        ({}, Problem.UNREADABLE),
        ({"exp": None}, Problem.UNREADABLE),
        ({"exp": True}, Problem.UNREADABLE),
        ({"exp": str(NOW_S + 1)}, Problem.UNREADABLE),
        ({"exp": float("nan")}, Problem.UNREADABLE),
        ({"exp": float("inf")}, Problem.UNREADABLE),
        ({"exp": 10**18}, Times(claims.EXPIRES_S_MAX * 1000)),
        ({"exp": NOW_S + 9, "nbf": NOW_S + 5}, Problem.NOT_YET),
        ({"exp": NOW_S + 9, "nbf": NOW_S}, Times(NOW_MS + 9000)),
        ({"exp": NOW_S + 9, "nbf": "soon"}, Problem.UNREADABLE),
    ],
)
def test_a_token_is_good_from_nbf_to_exp(given_claims: dict[str, Any], expected: object) -> None:
    assert claims.check_times(given_claims, NOW_MS, 0) == expected


def test_clocks_may_differ_by_the_leeway() -> None:
    late = {"exp": NOW_S - 4, "nbf": NOW_S + 4}
    assert claims.check_times(late, NOW_MS, 5) == Times(NOW_MS + 1000)


@pytest.mark.parametrize(
    ("aud", "is_named"),
    [
        ("mq", True),
        ("other mq", True),
        (["other", "mq"], True),
        ("mq2", False),
        ([], False),
        (None, False),
        ({"mq": 1}, False),
        ([["mq"]], False),
    ],
)
def test_a_token_for_others_is_refused(aud: Any, is_named: bool) -> None:
    found = RULES.identity({"aud": aud, "sub": "u"}, TIMES)
    assert isinstance(found, Identity) is is_named
    assert is_named or found is Problem.AUDIENCE


def identity(rules: OAuthRules = RULES, **given_claims: Any) -> Identity:
    found = rules.identity({"aud": "mq", "sub": "u", **given_claims}, TIMES)
    assert isinstance(found, Identity)
    return found


@pytest.mark.parametrize(
    ("given_claims", "user"),
    [
        ({"sub": "a", "client_id": "b"}, "a"),
        ({"sub": None, "client_id": "b"}, "b"),
        ({"sub": 7, "client_id": None}, "unknown"),
    ],
)
def test_the_user_is_the_first_claim_that_is_a_text(
    given_claims: dict[str, Any], user: str
) -> None:
    assert identity(**given_claims).user == user


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, "\ud800", "a\x1b[31m"])
def test_a_name_that_breaks_a_line_or_a_limit_is_nobodys(name: str) -> None:
    assert RULES.identity({"aud": "mq", "sub": name}, TIMES) is Problem.USER


def test_scopes_count_with_our_prefix_wherever_the_issuer_puts_them() -> None:
    rules = OAuthRules(
        "mq",
        "mq.",
        additional_scopes_key=("realm.roles", "extra"),
        scope_aliases={"admin": ("mq.tag:administrator", "mq.read:*/*", "other.read:*/x")},
    )
    found = identity(
        rules,
        scope="mq.read:a/* other.read:b/* mq.tag:management admin",
        extra={"mq": ["write:a/*"], "other": ["write:b/*"]},
        realm=[{"roles": ["mq.configure:a/*", 7]}, {"roles": "mq.configure:c/*"}, "x"],
        authorization={"permissions": [{"scopes": ["mq.read:p/*"]}]},
    )
    assert found.tags == ("administrator", "management")
    assert found.expires_ms == TIMES.expires_ms
    assert found.scopes == Scopes.of(
        [
            *("configure:a/*", "configure:c/*", "read:*/*", "read:a/*", "read:p/*"),
            *("tag:administrator", "tag:management", "write:a/*"),
        ]
    )


def test_the_prefix_can_be_another_one_or_none() -> None:
    assert identity(OAuthRules("mq", "x:"), scope=["x:read:a/b"]).scopes == Scopes.of(["read:a/b"])
    assert identity(OAuthRules("mq", ""), scope=["read:a/b"]).scopes == Scopes.of(["read:a/b"])


def test_too_many_scopes_are_refused() -> None:
    """As many as RabbitMQ takes; each check looks at all of them."""
    many = [f"mq.read:v/{number}" for number in range(SCOPES_MAX + 1)]
    assert RULES.identity({"aud": "mq", "sub": "u", "scope": many}, TIMES) is Problem.SCOPES
    assert identity(scope=many[:SCOPES_MAX]).scopes is not None


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_claims_of_any_kind_have_a_clear_outcome(given_claims: dict[str, Any]) -> None:
    rules = OAuthRules("mq", "mq.", False, ("extra", "extra.a"), {"a": ("mq.tag:a",)})
    times = claims.check_times(given_claims, NOW_MS, 5)
    assert isinstance(times, Times | Problem)
    found = rules.identity(given_claims, TIMES)
    assert isinstance(found, Identity | Problem)
    claims.names_audience(given_claims, "mq")
    claims.service_account(given_claims)


@pytest.mark.parametrize(
    ("subject", "account"),
    [
        ("system:serviceaccount:shop:till", "shop/till"),
        ("system:serviceaccount:shop", None),
        ("system:serviceaccount:shop:", None),
        ("system:serviceaccount:a:b:c", None),
        ("system:node:n1", None),
        ("shop/till", None),
        (7, None),
    ],
)
def test_a_token_of_kubernetes_names_its_service_account(subject: Any, account: str | None) -> None:
    assert claims.service_account({"sub": subject}) == account


def test_scopes_behind_more_maps_than_are_looked_at_are_none() -> None:
    rules = OAuthRules("mq", "mq.", additional_scopes_key=("roles.name",))
    found = rules.identity({"aud": "mq", "sub": "u", "roles": [{}] * 10_001}, TIMES)
    assert found == Identity("u", (), Scopes(()), TIMES.expires_ms)
