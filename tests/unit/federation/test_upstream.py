"""Definitions, selection, generated names, owners (R-FED-2, -3, -7, -9; R-FX-2..4)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.federation import upstream
from brokerd.federation.errors import UpstreamError
from brokerd.federation.upstream import Choice

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
URI = "amqp://me:secret@host:1234/v%2fh?heartbeat=5&cacertfile=/tls/ca.pem"


def test_a_uri_is_taken_apart_and_shown_without_credentials() -> None:
    """R-FED-9, SEC-22."""
    address = upstream.parse_uri(URI)
    assert (address.host, address.port, address.tls) == ("host", 1234, False)
    assert (address.user, address.password, address.vhost) == ("me", "secret", "v/h")
    assert address.shown == "amqp://host:1234/v%2fh"
    assert address.integer("heartbeat", 10, 65_535) == 5
    assert address.option("cacertfile") == "/tls/ca.pem"
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    ("uri", "host", "port", "vhost"),
    [
        ("amqp://", "localhost", 5672, None),
        ("amqps://h", "h", 5671, None),
        ("amqp://[::1]:7/", "::1", 7, ""),
        ("amqp://h/v", "h", 5672, "v"),
    ],
)
def test_what_a_uri_leaves_out_has_defaults(
    uri: str, host: str, port: int, vhost: str | None
) -> None:
    """R-FED-2: no vhost means the downstream's."""
    address = upstream.parse_uri(uri)
    assert (address.host, address.port, address.vhost) == (host, port, vhost)


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://u:secret@h?" + "a&" * 40,
        "http://u:secret@h",
        "amqp://u:secret@h:99999",
        "amqp://u:secret@h/a/b",
        "amqp://u:secret@h/" + "v" * 256,
        "amqp://u:secret@" + "h" * 3000,
        "",
    ],
)
def test_wrong_uris_are_refused_without_repeating_them(uri: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        upstream.parse_uri(uri)
    assert "secret" not in str(caught.value)


def test_a_uri_that_could_not_be_decrypted_names_its_key() -> None:
    """ADR 19: whoever looks at the link learns what to do."""
    with pytest.raises(UpstreamError, match="encrypted with key 0123abcd, which this member"):
        upstream.parse_uri(upstream.SEALED + "0123abcd:c2VhbGVk")


def test_wrong_query_numbers_are_refused() -> None:
    address = upstream.parse_uri("amqp://h?heartbeat=soon")
    with pytest.raises(UpstreamError, match="heartbeat must be a number up to 65535"):
        address.integer("heartbeat", 10, 65_535)


def test_a_definition_has_the_documented_defaults() -> None:
    """R-FED-2."""
    found = upstream.parse("u", {"uri": "amqp://h"})
    assert (found.prefetch_count, found.reconnect_delay_ms, found.max_hops) == (1000, 5000, 1)
    assert (found.ack_mode, found.trust_user_id, found.cleans_up) == ("on-confirm", False, True)
    assert found.exchange_name("mine") == "mine"
    assert found.queue_arguments() == {"x-internal-purpose": "federation"}


def test_every_key_of_a_definition_is_read() -> None:
    """R-FED-2, R-FX-3; keys of queue federation and of mirrored queues are accepted."""
    value = {
        "uri": ["amqp://a", "amqps://b"],
        "exchange": "theirs",
        "queue": "q",
        "consumer-tag": "t",
        "ha-policy": "all",
        "prefetch-count": 7,
        "reconnect-delay": 0.5,
        "max-hops": 3,
        "expires": 1000,
        "message-ttl": 2000,
        "ack-mode": "no-ack",
        "trust-user-id": True,
        "queue-type": "quorum",
        "bind-nowait": True,
        "resource-cleanup-mode": "never",
        "channel-use-mode": "single",
        "ca-certificates": PEM,
    }
    found = upstream.parse("u", value)
    assert found.authorities == PEM
    assert [address.shown for address in found.addresses] == ["amqp://a", "amqps://b"]
    assert found.exchange_name("mine") == "theirs"
    assert (found.prefetch_count, found.reconnect_delay_ms, found.max_hops) == (7, 500, 3)
    assert (found.ack_mode, found.trust_user_id) == ("no-ack", True)
    assert (found.bind_nowait, found.cleans_up, found.single_channel) == (True, False, True)
    assert found.queue_arguments() == {
        "x-internal-purpose": "federation",
        "x-expires": 1000,
        "x-message-ttl": 2000,
        "x-queue-type": "quorum",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("amqp://h", "must be a table"),
        ({}, "uri is missing"),
        ({"uri": []}, "uri must be"),
        ({"uri": ["amqp://h"] * 65}, "more than 64"),
        ({"uri": 1}, "uri must be"),
        ({"max-hops": 0}, "max-hops must be a number from 1 to 255"),
        ({"max-hops": True}, "max-hops must"),
        ({"prefetch-count": 70_000}, "prefetch-count must"),
        ({"reconnect-delay": -1}, "reconnect-delay must"),
        ({"ack-mode": "never"}, "ack-mode must be one of on-confirm, on-publish, no-ack"),
        ({"exchange": "x" * 256}, "exchange must be a name"),
        ({"maxhops": 1}, "unknown key 'maxhops': is 'max-hops' meant?"),
        ({"zork": 1}, "unknown key 'zork': known are ack-mode, "),
        ({"x" * 9999: 1}, f"unknown key '{'x' * 64}': known"),
        ({"ca-certificates": "/tls/ca.pem"}, "ca-certificates holds no certificate"),
        ({"ca-certificates": PEM + "-----BEGIN EC PRIVATE KEY-----"}, "holds a private key"),
        ({"ca-certificates": PEM + "x" * 65_536}, "at most 65536 characters"),
        ({"ca-certificates": [PEM]}, "ca-certificates must be certificates in PEM"),
    ],
)
def test_what_is_wrong_in_a_definition_is_named(value: Any, text: str) -> None:
    if isinstance(value, dict) and value and "uri" not in value:
        value = {"uri": "amqp://h", **value}
    with pytest.raises(UpstreamError, match=text):
        upstream.parse("u", value)


def test_other_authorities_make_no_other_upstream() -> None:
    """R-FX-17: a link whose definition is another one is made anew, and its queue with it."""
    one, other = (
        upstream.parse("u", {"uri": "amqps://h", "ca-certificates": pem}) for pem in (PEM, PEM * 2)
    )
    assert one == other == upstream.parse("u", {"uri": "amqps://h"})
    assert (one.authorities, other.authorities) == (PEM, PEM * 2)


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_no_value_does_more_than_be_refused(value: Any) -> None:
    keys = ("uri", "reconnect-delay", "max-hops", "ack-mode", "trust-user-id", "exchange")
    for key in (*keys, "ca-certificates"):
        definition = {"uri": "amqp://h", key: value}
        with contextlib.suppress(UpstreamError):
            assert upstream.parse("u", definition).name == "u"


UPSTREAMS = {"a": {"uri": "amqp://a"}, "b": {"uri": "amqp://b"}, "bad": {"uri": "x"}}


def test_a_set_gives_overrides_and_names_what_is_missing() -> None:
    """R-FED-3."""
    sets = {"s": [{"upstream": "a", "exchange": "e", "max-hops": 2}, {"upstream": "none"}, 7]}
    found, problems = upstream.select(Choice(upstream_set="s"), UPSTREAMS, sets)
    assert [(item.name, item.exchange, item.max_hops) for item in found] == [("a", "e", 2)]
    missing = upstream.Problem("none", "there is no upstream of this name")
    assert problems == [missing]
    assert upstream.select(Choice(upstream="none"), UPSTREAMS, sets) == ([], [missing])
    found, problems = upstream.select(Choice(upstream_set="other"), UPSTREAMS, sets)
    assert (found, problems) == ([], [upstream.Problem("", "there is no set 'other'")])


def test_one_upstream_twice_with_different_exchanges_is_two_links() -> None:
    """R-FED-4."""
    sets = {"s": [{"upstream": "a", "exchange": "e"}, {"upstream": "a"}, {"upstream": "a"}]}
    found, _ = upstream.select(Choice(upstream_set="s"), UPSTREAMS, sets)
    assert [item.exchange for item in found] == ["e", ""]


def test_the_set_all_has_every_upstream_and_names_the_bad_ones() -> None:
    """R-FED-3."""
    found, problems = upstream.select(Choice(upstream_set="all"), UPSTREAMS, {})
    assert [item.name for item in found] == ["a", "b"]
    assert [(item.upstream, item.text) for item in problems] == [
        ("bad", "uri must begin with amqp:// or amqps://")
    ]


def test_a_set_may_not_override_the_uri() -> None:
    sets = {"s": [{"upstream": "a", "uri": "amqp://elsewhere"}]}
    found, problems = upstream.select(Choice(upstream_set="s"), UPSTREAMS, sets)
    assert not found
    assert problems[0].text.startswith("unknown key 'uri': known are ack-mode, ")


def test_one_name_and_a_pattern_choose_upstreams() -> None:
    one, _ = upstream.select(Choice(upstream="b"), UPSTREAMS, {})
    some, _ = upstream.select(Choice(pattern="^[ab]$"), UPSTREAMS, {})
    none, _ = upstream.select(Choice(), UPSTREAMS, {})
    assert ([item.name for item in one], [item.name for item in some], none) == (
        ["b"],
        ["a", "b"],
        [],
    )


@pytest.mark.parametrize(
    ("upstream_exchange", "upstream_vhost", "expected"),
    [
        ("fx", "down", "federation: fx -> brokerd@example"),
        ("other", "down", "federation: other -> brokerd@example:fx"),
        ("fx", "up", "federation: fx -> brokerd@example:down:fx"),
    ],
)
def test_queue_names_say_what_differs(
    upstream_exchange: str, upstream_vhost: str, expected: str
) -> None:
    """R-FX-2."""
    name = upstream.queue_name(upstream_exchange, upstream_vhost, "brokerd@example", "down", "fx")
    assert name == expected


def test_long_names_are_cut_and_stay_different() -> None:
    """R-NAM-1."""
    first = upstream.queue_name("é" * 120, "v", "c", "w", "x" * 100)
    second = upstream.queue_name("é" * 120, "v", "c", "w", "y" * 100)
    assert first != second
    assert len((first + " A").encode()) <= 255


def test_the_owner_is_one_of_the_members_and_moves_only_with_its_own_links() -> None:
    """R-FED-7."""
    members = ["n0", "n1", "n2"]
    links = [f"link-{i}" for i in range(300)]
    before = {link: upstream.owner(link, members) for link in links}
    after = {link: upstream.owner(link, ["n0", "n2"]) for link in links}
    assert all(60 < list(before.values()).count(node) < 140 for node in members)
    assert all(after[link] == node for link, node in before.items() if node != "n1")
    assert upstream.owner("link", []) is None
