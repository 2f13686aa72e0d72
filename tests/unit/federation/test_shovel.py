"""Definitions of shovels, and what a shovel writes into messages (docs/concepts/shovels.md)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.amqp.errors import AmqpError
from brokerd.amqp.properties import BasicProperties
from brokerd.federation import shovel
from brokerd.federation.errors import UpstreamError

FAR = "amqp://me:secret@far:1234/v%2fh"
LEAST: dict[str, Any] = {"src-uri": "amqp://", "src-queue": "in", "dest-uri": FAR}


def parsed(**keys: Any) -> shovel.Shovel:
    """Read a definition; underscores stand for hyphens."""
    value = LEAST | {key.replace("_", "-"): item for key, item in keys.items()}
    return shovel.parse("/", "s", {key: item for key, item in value.items() if item is not None})


def shovelled(raw: bytes) -> list[Any]:
    """Return the hops of a message."""
    headers = BasicProperties.decode(raw).headers
    assert headers is not None
    entries = headers["x-shovelled"]
    assert isinstance(entries, list)
    return entries


def test_the_least_definition_has_rabbitmqs_defaults() -> None:
    found = parsed()
    assert (found.ack_mode, found.prefetch_count) == ("on-confirm", 1000)
    assert (found.reconnect_delay_ms, found.delete_after) == (5000, None)
    assert found.source.queue == "in"
    assert found.drops_unroutable is None
    assert found.source.exchange is None
    (address,) = found.destination.addresses
    assert (address.host, address.vhost, address.user) == ("far", "v/h", "me")
    assert found.destination.exchange_key is None
    assert "secret" not in repr(found)


def test_each_end_has_authorities_of_its_own() -> None:
    """R-FED-9: others are another shovel, which connects anew; a listing of it shows none."""
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    found = parsed(dest_ca_certificates=pem)
    assert found.authorities is None
    assert found.destination.authorities == pem
    assert parsed(src_ca_certificates=pem).authorities == pem
    assert parsed(dest_ca_certificates=pem * 2) != found
    assert "AAAA" not in repr(found)
    with pytest.raises(UpstreamError, match="dest-ca-certificates: holds no certificate"):
        parsed(dest_ca_certificates="no certificate")


def test_a_shovel_is_a_definition_of_a_link() -> None:
    """Null counts as absent, as in definitions of upstreams."""
    found = parsed(src_delete_after="queue-length", dest_exchange=None)
    assert found.link_id == "shovel /:s"
    assert found.addresses == found.source.addresses
    assert found.delete_after == "queue-length"


def test_properties_alone_leave_headers_as_they_are() -> None:
    made = parsed(dest_publish_properties={"app_id": "a"})
    raw = BasicProperties(headers={"o": 1}).encode()
    after = made.forwarded("c", "a", "b", raw, 5)
    assert after == BasicProperties(headers={"o": 1}, app_id="a").encode()


def test_all_keys_are_read() -> None:
    found = parsed(
        src_queue=None,
        src_exchange="e",
        src_exchange_key="k.#",
        src_queue_args={"x-queue-type": "quorum"},
        src_consumer_args={"x-priority": 4},
        src_prefetch_count=7,
        src_delete_after=12,
        src_protocol="amqp091",
        dest_protocol="amqp091",
        dest_exchange="f",
        dest_exchange_key="g",
        dest_queue_args={"x-expires": 5},
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_publish_properties={"delivery_mode": 2, "app_id": "a"},
        ack_mode="on-publish",
        reconnect_delay=0.5,
        dest_unroutable="drop",
        dest_uri=["amqp://a", "amqp://b/"],
    )
    assert (found.source.exchange, found.source.exchange_key) == ("e", "k.#")
    assert found.source.queue_arguments == {"x-queue-type": "quorum"}
    assert found.consumer_arguments == {"x-priority": 4}
    assert (found.prefetch_count, found.delete_after) == (7, 12)
    assert (found.destination.exchange, found.destination.exchange_key) == ("f", "g")
    assert found.destination.queue_arguments == {"x-expires": 5}
    assert [address.vhost for address in found.destination.addresses] == ["/", "/"]
    assert found.adds_forward_headers
    assert found.adds_timestamp_header
    assert found.properties == {"delivery_mode": 2, "app_id": "a"}
    assert (found.ack_mode, found.reconnect_delay_ms) == ("on-publish", 500)
    assert found.drops_unroutable
    assert parsed(dest_unroutable="keep").drops_unroutable is False


@pytest.mark.parametrize(
    ("uri", "vhost", "user", "shown"),
    [
        ("amqp://", "/", "", "amqp://"),
        ("amqp:///", "/", "", "amqp:///"),
        ("amqp:///v1", "v1", "", "amqp:///v1"),
        ("amqp://me:secret@/v1", "v1", "me", "amqp:///v1"),
    ],
)
def test_a_uri_without_a_host_is_this_cluster(uri: str, vhost: str, user: str, shown: str) -> None:
    """As with RabbitMQ, whose shovels take the vhost / there, not their own."""
    (address,) = parsed(src_uri=uri).source.addresses
    assert (address.host, address.vhost, address.user) == ("", vhost, user)
    assert address.shown == shown


@pytest.mark.parametrize(
    ("keys", "is_here"),
    [
        ({"dest-queue": "q"}, True),
        ({"dest-queue": "q", "dest-uri": ["amqp://", "amqp:///other"]}, True),
        ({"dest-exchange": "x"}, True),
        # To a queue's exchange of each message, or by a key to any queue.
        ({}, False),
        ({"dest-exchange": "", "dest-exchange-key": "q"}, False),
        ({"dest-queue": "q", "dest-uri": "amqp://weak@"}, False),
        ({"dest-queue": "q", "dest-uri": ["amqp://", "amqp://elsewhere"]}, False),
    ],
)
def test_what_goes_to_one_place_of_this_cluster_needs_no_connection(
    keys: dict[str, Any], is_here: bool
) -> None:
    least = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://"}
    assert shovel.parse("/", "s", least | keys).publishes_here is is_here


@pytest.mark.parametrize("old_first", [True, False])
def test_names_of_old_are_taken_and_the_new_ones_count(old_first: bool) -> None:
    old = {
        "prefetch-count": 1,
        "delete-after": 1,
        "add-forward-headers": True,
        "add-timestamp-header": True,
        "publish-properties": {"app_id": "old"},
    }
    found = shovel.parse("/", "s", LEAST | old)
    assert (found.prefetch_count, found.delete_after) == (1, 1)
    assert found.adds_forward_headers
    assert found.adds_timestamp_header
    assert found.properties == {"app_id": "old"}
    new: dict[str, Any] = {"src-prefetch-count": 2, "src-delete-after": "never"}
    both = old | new if old_first else new | old
    found = shovel.parse("/", "s", LEAST | both)
    assert (found.prefetch_count, found.delete_after) == (2, None)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"src_queue": None}, "must specify 'src-exchange' or 'src-queue'"),
        ({"src_exchange": "e"}, "cannot specify 'src-exchange' and 'src-queue'"),
        (
            {"dest_exchange": "e", "dest_queue": "q"},
            "cannot specify 'dest-exchange' and 'dest-queue'",
        ),
        ({"src_uri": None}, "src-uri is missing"),
        ({"dest_uri": None}, "dest-uri is missing"),
        ({"dest_uri": []}, "dest-uri: must be a text"),
        ({"dest_uri": ["amqp://", 5]}, "dest-uri: must be a text"),
        ({"dest_uri": ["amqp://"] * 65}, "dest-uri: lists more than 64"),
        ({"dest_uri": "http://me:secret@h"}, "dest-uri: uri must begin with amqp://"),
        ({"dest_uri": "amqps://"}, "dest-uri: uri without a host must begin with amqp://"),
        ({"zork": 1}, "unknown key 'zork': known are ack-mode, "),
        ({"src-exchnge": 1}, "unknown key 'src-exchnge': is 'src-exchange' meant?"),
        ({"src_protocol": "amqp10"}, "src-protocol 'amqp10' is not supported"),
        ({"dest_protocol": "amqp10"}, "dest-protocol 'amqp10' is not supported"),
        ({"src_queue": 5}, "src-queue: must be a name"),
        ({"src_queue": ""}, "src-queue: must not be empty"),
        ({"dest_queue": "q" * 256}, "dest-queue: must be a name"),
        ({"ack_mode": "on_confirm"}, "ack-mode: must be one of on-confirm"),
        ({"dest_unroutable": "lose"}, "dest-unroutable: must be keep or drop"),
        ({"src_prefetch_count": "a"}, "src-prefetch-count: must be a number from 0 to 65535"),
        ({"src_prefetch_count": 65_536}, "src-prefetch-count: must be a number"),
        ({"reconnect_delay": -1}, "reconnect-delay: must be a number of seconds"),
        ({"reconnect_delay": "5"}, "reconnect-delay: must be a number of seconds"),
        ({"src_delete_after": "x"}, "src-delete-after: must be a number, 'never' or"),
        ({"src_delete_after": True}, "src-delete-after: must be a number"),
        ({"delete_after": -1}, "delete-after: must be a number"),
        ({"ack_mode": "no-ack", "src_delete_after": 5}, "cannot specify 'no-ack' and 'src-delete"),
        ({"ack_mode": "no-ack", "delete_after": "queue-length"}, "cannot specify 'no-ack' and"),
        ({"src_predeclared": "yes"}, "src-predeclared: must be true or false"),
        ({"dest_add_forward_headers": 1}, "dest-add-forward-headers: must be true or false"),
        ({"src_queue_args": []}, "src-queue-args: must be a table"),
        ({"src_queue_args": {"k" * 256: 1}}, "src-queue-args: has a key longer"),
        ({"src_queue_args": {"k": None}}, "src-queue-args: 'k' must be a number"),
        ({"src_queue_args": {"k": 2**63}}, "src-queue-args: 'k' must be a number"),
        ({"dest_publish_properties": 5}, "dest-publish-properties: must be a table"),
        ({"dest_publish_properties": {"headers": {}}}, "unknown key 'headers'"),
        ({"dest_publish_properties": {"app_id": 5}}, "app_id must be a text"),
        ({"dest_publish_properties": {"delivery_mode": 0}}, "delivery_mode must be a number"),
        ({"dest_publish_properties": {"priority": 256}}, "priority must be a number"),
    ],
)
def test_what_is_wrong_is_refused_and_the_key_named(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        parsed(**keys)
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_definition_that_is_no_table_is_refused() -> None:
    with pytest.raises(UpstreamError):
        shovel.parse("/", "s", "amqp://")


def test_nothing_is_written_unless_asked_for() -> None:
    """Not a byte of a message changes."""
    raw = BasicProperties(headers={"a": 1}, user_id="me").encode()
    assert parsed().forwarded("here", "amqp://", "amqp://far", raw, 5) is raw


def test_forward_headers_name_both_ends_and_the_last_hop_first() -> None:
    """The entries are RabbitMQ 3.10.8's, seen there."""
    made = parsed(dest_exchange="f", dest_add_forward_headers=True)
    raw = BasicProperties(headers={"o": 2}).encode()
    once = made.forwarded("here", "amqp://", "amqp://far:1234/v%2fh", raw, 5)
    assert BasicProperties.decode(once).headers == {
        "o": 2,
        "x-shovelled": [
            {
                "shovelled-by": "here",
                "shovel-type": "dynamic",
                "shovel-name": "s",
                "shovel-vhost": "/",
                "src-uri": "amqp://",
                "dest-uri": "amqp://far:1234/v%2fh",
                "src-queue": "in",
                "dest-exchange": "f",
            }
        ],
    }
    from_exchange = parsed(
        src_queue=None, src_exchange="e", dest_queue="q", add_forward_headers=True
    )
    twice = from_exchange.forwarded("there", "amqp://x", "amqp://y", once, 5)
    last, first = shovelled(twice)
    assert first["shovelled-by"] == "here"
    assert last == {
        "shovelled-by": "there",
        "shovel-type": "dynamic",
        "shovel-name": "s",
        "shovel-vhost": "/",
        "src-uri": "amqp://x",
        "dest-uri": "amqp://y",
        "src-exchange": "e",
        "src-exchange-key": "",
        "dest-queue": "q",
    }


def test_a_ring_of_shovels_does_not_grow_a_message_for_ever() -> None:
    made = parsed(dest_add_forward_headers=True)
    raw = BasicProperties(headers={"x-shovelled": [{"n": n} for n in range(64)]}).encode()
    entries = shovelled(made.forwarded("c", "a", "b", raw, 5))
    assert len(entries) == 64
    assert entries[-1] == {"n": 62}


def test_properties_and_timestamp_are_written_over_what_was_there() -> None:
    made = parsed(
        dest_publish_properties={"app_id": "shovel", "delivery_mode": 2, "timestamp": 7},
        dest_add_timestamp_header=True,
    )
    raw = BasicProperties(app_id="old", message_id="m", headers={"x-shovelled": "odd"}).encode()
    after = BasicProperties.decode(made.forwarded("c", "a", "b", raw, 123))
    assert (after.app_id, after.delivery_mode, after.message_id) == ("shovel", 2, "m")
    assert after.timestamp == 7
    assert after.headers == {"x-shovelled": "odd", "x-shovelled-timestamp": 123}


def test_properties_that_cannot_be_read_are_an_error() -> None:
    made = parsed(dest_add_timestamp_header=True)
    with pytest.raises(AmqpError):
        made.forwarded("c", "a", "b", b"\x20\x00\x00", 5)
