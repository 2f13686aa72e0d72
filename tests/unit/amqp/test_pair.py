"""A client machine wired to a server machine: whole conversations, whole and byte by byte."""

from __future__ import annotations

import pytest

from brokerd.amqp import events, methods
from brokerd.amqp.content import parse_publish
from brokerd.amqp.deliver import DeliverEncoder
from brokerd.amqp.properties import BasicProperties
from tests.unit.amqp.pair import ConnectionPair

pytestmark = pytest.mark.parametrize("is_bytewise", [False, True], ids=["whole", "bytewise"])

CAPABILITIES = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
]


def last(found: list[events.Event]) -> events.Event:
    return found[-1]


def opened(is_bytewise: bool, **changes: object) -> ConnectionPair:
    pair = ConnectionPair(is_bytewise, **changes)
    pair.exchange()
    return pair


def test_handshake_agrees_on_the_stricter_values_and_the_clients_heartbeat(
    is_bytewise: bool,
) -> None:
    """R-CON-3, R-CON-8, R-CON-10."""
    pair = opened(
        is_bytewise, frame_max=65536, channel_max=7, server_properties={"cluster_name": "c@x"}
    )
    assert pair.server.is_open
    assert pair.client.is_open
    for machine in (pair.server, pair.client):
        assert (machine.frame_max, machine.channel_max, machine.heartbeat_s) == (65536, 7, 30)
    assert pair.client.server_properties["cluster_name"] == "c@x"
    capabilities = pair.client.server_properties["capabilities"]
    assert capabilities == dict.fromkeys(CAPABILITIES, True)
    assert pair.client.server_has("basic.nack")
    assert pair.server.client_has("connection.blocked")
    assert not pair.server.client_has("no_such_thing")
    assert isinstance(pair.client_events[-1], events.ConnectionOpened)


def test_publish_confirm_deliver_ack_and_close(is_bytewise: bool) -> None:
    """R-FRM-6, R-FRM-9, R-FRM-10, R-CH-4."""
    pair = opened(is_bytewise, frame_max=8192)
    pair.client.open_channel(3)
    pair.exchange()
    assert last(pair.client_events) == events.ChannelOpened(3)

    raw = BasicProperties(content_type="a/b", headers={"n": 1}).encode()
    bodies = [b"", b"x", b"y" * 8184, b"z" * 8185, bytes(30_000)]
    for body in bodies:
        pair.client.send_content(3, methods.BasicPublish(0, "ex", "rk"), raw, body)
    pair.exchange()
    items = [
        item
        for event in pair.server_events
        if isinstance(event, events.PublishesReceived)
        for item in event.items
    ]
    assert [item[2] for item in items] == bodies
    assert {item[1] for item in items} == {raw}
    assert parse_publish(items[0][0]) == methods.BasicPublish(0, "ex", "rk")

    pair.server.send(3, methods.BasicAck(len(bodies), True))
    encoder = DeliverEncoder(3, "ctag", "ex", "rk", pair.server.frame_max)
    pair.server.send_raw(encoder.frames(1, False, [(item[1], item[2]) for item in items]), 3)
    pair.exchange()
    assert events.AcksReceived(3, [(len(bodies), True)]) in pair.client_events
    got = [e for e in pair.client_events if isinstance(e, events.DeliveriesReceived)]
    assert [body for e in got for body in e.bodies] == bodies
    following = 1
    for run in got:
        assert run.method == methods.BasicDeliver("ctag", following, False, "ex", "rk")
        following += len(run.bodies)

    for tag in range(1, 6):
        pair.client.send(3, methods.BasicAck(tag, False))
    pair.client.close_channel(3, 200, "done")
    pair.exchange()
    assert events.ChannelClosed(3, True, 200, "done") in pair.server_events
    assert last(pair.client_events) == events.ChannelClosed(3, False)

    pair.client.close(200, "bye")
    pair.exchange()
    assert last(pair.server_events) == events.ConnectionClosed(True, 200, "bye")
    assert last(pair.client_events) == events.ConnectionClosed(False, 200, "bye")
    assert pair.server.wants_close
    assert pair.client.wants_close


def test_return_and_get_ok_reach_the_client(is_bytewise: bool) -> None:
    pair = opened(is_bytewise)
    pair.client.open_channel(1)
    pair.exchange()
    returned = methods.BasicReturn(312, "NO_ROUTE", "ex", "rk")
    got = methods.BasicGetOk(9, True, "ex", "rk", 4)
    pair.server.send_content(1, returned, b"\0\0", b"one")
    pair.server.send_content(1, got, b"\0\0", b"two")
    pair.server.send(1, methods.BasicGetEmpty())
    pair.exchange()
    assert pair.client_events[-3:] == [
        events.ContentReceived(1, returned, b"\0\0", b"one"),
        events.ContentReceived(1, got, b"\0\0", b"two"),
        events.MethodReceived(1, methods.BasicGetEmpty()),
    ]


def test_blocked_and_unblocked_reach_the_client(is_bytewise: bool) -> None:
    """R-ALM-5, R-ALM-6."""
    pair = opened(is_bytewise)
    pair.server.send(0, methods.ConnectionBlocked("low on memory"))
    pair.server.send(0, methods.ConnectionUnblocked())
    pair.exchange()
    assert pair.client_events[-2:] == [events.Blocked("low on memory"), events.Unblocked()]


def test_secret_is_updated_and_never_shown(is_bytewise: bool) -> None:
    """R-CON-13."""
    pair = opened(is_bytewise)
    pair.client.send(0, methods.ConnectionUpdateSecret(b"s3cret", "expiry"))
    pair.exchange()
    event = pair.server_events[-1]
    assert event == events.SecretUpdated(b"s3cret", "expiry")
    assert "s3cret" not in repr(event)
    pair.server.send(0, methods.ConnectionUpdateSecretOk())
    pair.exchange()
    assert last(pair.client_events) == events.MethodReceived(0, methods.ConnectionUpdateSecretOk())


def test_both_sides_close_a_channel_at_once(is_bytewise: bool) -> None:
    """R-CH-4: channel.close in answer to channel.close gets close-ok, and both numbers are free."""
    pair = opened(is_bytewise)
    pair.client.open_channel(1)
    pair.exchange()
    pair.client.close_channel(1, 200, "client")
    pair.server.close_channel(1, 404, "no queue 'q' in vhost '/'", 50, 10)
    pair.exchange()
    assert last(pair.client_events) == events.ChannelClosed(1, False)
    assert last(pair.server_events) == events.ChannelClosed(1, False)
    pair.client.open_channel(1)
    pair.exchange()
    assert last(pair.client_events) == events.ChannelOpened(1)


def test_both_sides_close_the_connection_at_once(is_bytewise: bool) -> None:
    """R-CON-14."""
    pair = opened(is_bytewise)
    pair.client.close(200, "client")
    pair.server.close(320, "shutdown")
    pair.exchange()
    assert pair.client.wants_close
    assert pair.server.wants_close
