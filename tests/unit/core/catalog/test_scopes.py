"""Scopes of tokens: what they match, and the rights that follow."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.catalog import scopes
from brokerd.core.catalog.catalog_commands import put
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.permissions import PERMISSIONS
from brokerd.core.catalog.scopes import Scopes
from tests.unit.core.catalog_driver import CatalogDriver

WORDS = st.text(alphabet="ab*/%25 é", max_size=12)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("", "", True),
        ("", "a", False),
        ("a*", "a", True),
        ("a*", "ba", False),
        ("*a", "ba", True),
        ("a*c", "abc", True),
        ("a*c", "abcd", False),
        ("a*c", "abd", False),
        ("a**c", "abc", True),
        ("a%2Fb", "a/b", True),
        ("a+b", "a b", True),
        ("a%2Ab", "a*b", True),
        ("a%2Ab", "axb", False),
        ("A", "a", False),
        # RabbitMQ's quirks: what follows a star is looked for once, from the left; and a second
        # star wants something to stand for.
        ("a*b", "abxb", False),
        ("a**", "a", False),
    ],
)
def test_a_star_stands_for_any_run_of_characters(
    pattern: str, subject: str, expected: bool
) -> None:
    made = scopes.wildcard(pattern)
    assert made is not None
    assert made.matches(subject) is expected


@pytest.mark.parametrize(
    "text",
    ["", "read", "read:", "read:a", "read:a/b/c/d", "admin:a/b", "READ:a/b", "read:%zz/b", "tag:x"],
)
def test_what_is_no_scope_gives_no_right(text: str) -> None:
    assert scopes.parse(text) is None


@given(pattern=WORDS, subject=st.text(alphabet="ab/ é", max_size=12))
def test_a_pattern_never_matches_more_than_its_stars_stand_for(pattern: str, subject: str) -> None:
    made = scopes.wildcard(pattern)
    if made is not None and made.matches(subject):
        expected = "".join(re.escape(part) + ".*" for part in made.parts)[:-2]
        assert re.fullmatch(expected, subject, re.DOTALL)


@given(name=st.text(max_size=30))
def test_a_name_written_out_matches_itself_alone(name: str) -> None:
    made = scopes.wildcard(quote(name, safe="", errors="surrogateescape").replace("*", "%2A"))
    assert made is not None
    assert made.matches(name)
    assert not made.matches(name + "x")


def view_with(*vhosts: str) -> CatalogDriver:
    driver = CatalogDriver()
    for vhost in vhosts:
        assert driver.do(put("vhost", "", vhost, {}, cause="admin"))["code"] == "OK"
    return driver


def identity(*texts: str) -> Identity:
    return Identity("till", (), Scopes.of(texts), 1)


def test_rights_are_those_of_the_scopes_and_of_no_user() -> None:
    view = view_with("shop", "office").view
    who = identity("read:shop/till-*", "write:shop/amq.default", "configure:sh*/q", "tag:x")
    access = who.access(view, "shop")
    assert access.check_vhost() is None
    assert access.check("read", "queue", "till-1") is None
    assert access.check("write", "exchange", "") is None
    assert access.check("configure", "queue", "q") is None
    assert access.check_any("queue", "q") is None
    for permission in PERMISSIONS:
        refused = access.check(permission, "queue", "other")
        assert refused is not None
        assert refused.code == 403
        assert f"{permission} access to queue 'other' in vhost 'shop'" in refused.text
        assert "refused for user 'till'" in refused.text
    elsewhere = who.access(view, "office")
    refused = elsewhere.check_vhost()
    assert refused is not None
    assert refused.text == "access to vhost 'office' refused for user 'till'"
    assert elsewhere.check("read", "queue", "till-1") is not None
    missing = who.access(view, "shut").check_vhost()
    assert missing is not None
    assert missing.text == "vhost shut not found"


def test_a_topic_exchange_takes_keys_that_a_scope_of_three_places_names() -> None:
    """R-TP-1; as in RabbitMQ a scope of two places names no key."""
    view = view_with().view
    topic, direct = view.exchange("/", "amq.topic"), view.exchange("/", "amq.direct")
    plain = identity("write:*/*").access(view, "/")
    assert plain.check("write", "exchange", "amq.topic") is None
    assert plain.check_topic("write", direct, ("k",)) is None
    assert plain.check_topic("write", topic, ("k",)) is not None
    keyed = identity("write:*/*/eu.*").access(view, "/")
    assert keyed.check_topic("write", topic, ("eu.a", "eu.b")) is None
    assert keyed.check_topic("read", topic, ("eu.a",)) is not None
    refused = keyed.check_topic("write", topic, ("eu.a", "us.a"))
    assert refused is not None
    assert refused.text == (
        "write access to topic 'us.a' in exchange 'amq.topic' in vhost '/' refused for user 'till'"
    )


def test_who_comes_by_a_token_needs_no_user_and_stays_when_one_of_the_name_goes() -> None:
    view = view_with().view
    who = Identity("nobody", ("management",), Scopes.of(["read:*/*"]), 1)
    assert not who.is_gone(view)
    assert who.tags_in(view) == ("management",)
    assert who.is_by_token
    of_catalog = Identity("nobody")
    assert of_catalog.is_gone(view)
    assert of_catalog.tags_in(view) == ()
    assert not of_catalog.is_by_token
