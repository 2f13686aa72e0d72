"""Channels: opening, limits, closing by either side."""

from __future__ import annotations

from brokerd.amqp import events, methods
from brokerd.amqp.errors import ChannelFault, NotFound
from tests.unit.amqp.pair import body_frame, header_frame, opened_server, publish_bytes, sent


def open_frame(number: int) -> bytes:
    return methods.ChannelOpen().encode(number)


def test_channel_max_limits_the_count_not_the_number() -> None:
    """R-CH-2, R-ERR-24, SEC-37, SEC-60."""
    machine = opened_server(channel_max=2)
    assert machine.receive_data(open_frame(500) + open_frame(65535), 0) == [
        events.ChannelOpened(500),
        events.ChannelOpened(65535),
    ]
    (event,) = machine.receive_data(open_frame(1), 0)
    assert isinstance(event, events.ConnectionFailed)
    assert sent(machine)[-1][1] == methods.ConnectionClose(
        530,
        "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)",
        0,
        0,
    )


def test_closed_channels_make_room() -> None:
    """R-CH-2."""
    machine = opened_server(channels=(1, 2), channel_max=2)
    close = methods.ChannelClose(200, "x").encode(1)
    found = machine.receive_data(close + open_frame(3), 0)
    assert found == [events.ChannelClosed(1, True, 200, "x"), events.ChannelOpened(3)]
    machine.check_invariants()


def test_reopening_without_waiting_is_answered_in_order() -> None:
    machine = opened_server(channels=(1,))
    found = machine.receive_data(methods.ChannelClose(200, "x").encode(1) + open_frame(1), 0)
    assert [type(e) for e in found] == [events.ChannelClosed, events.ChannelOpened]
    machine.send(1, methods.ChannelCloseOk())
    machine.send(1, methods.ChannelOpenOk())
    assert [m.NAME for _, m in sent(machine)] == ["channel.close-ok", "channel.open-ok"]
    (event,) = machine.receive_data(publish_bytes(1, b"x"), 0)
    assert isinstance(event, events.PublishesReceived)


def test_frames_of_a_channel_we_closed_are_dropped_until_close_ok() -> None:
    """R-CH-4, R-ERR-47: also the rest of a content, also what cannot be decoded."""
    machine = opened_server(channels=(1,))
    machine.receive_data(methods.BasicPublish().encode(1), 0)
    machine.close_channel(1, 404, "no exchange 'nope' in vhost '/'", 60, 40)
    assert sent(machine) == [
        (1, methods.ChannelClose(404, "NOT_FOUND - no exchange 'nope' in vhost '/'", 60, 40))
    ]
    dropped = header_frame(1, 3) + body_frame(1, b"abc") + publish_bytes(1, b"x")
    dropped += methods.BasicAck(1).encode(1) + open_frame(1)
    assert machine.receive_data(dropped, 0) == []
    machine.send(1, methods.BasicAck(1))
    machine.send_raw(b"late", 1)
    assert machine.data_to_send() == b""
    assert machine.receive_data(methods.ChannelClose(200, "x").encode(1), 0) == []
    assert sent(machine) == [(1, methods.ChannelCloseOk())]
    assert machine.receive_data(methods.ChannelCloseOk().encode(1), 0) == [
        events.ChannelClosed(1, False)
    ]
    assert machine.receive_data(open_frame(1), 0) == [events.ChannelOpened(1)]
    machine.check_invariants()


def test_a_channel_error_that_crosses_the_clients_close_awaits_its_close_ok() -> None:
    """R-CH-4: as amqp091-go does it, publish and channel.close in one write."""
    machine = opened_server(channels=(1, 2))
    found = machine.receive_data(
        publish_bytes(1, b"x") + methods.ChannelClose(200, "bye").encode(1), 0
    )
    assert [type(event) for event in found] == [events.PublishesReceived, events.ChannelClosed]
    machine.fail(NotFound("no exchange 'x' in vhost '/'", class_id=60, method_id=40), 1)
    machine.send(1, methods.ChannelCloseOk())
    assert [m.NAME for _, m in sent(machine)] == ["channel.close", "channel.close-ok"]
    assert machine.receive_data(methods.ChannelCloseOk().encode(1), 0) == [
        events.ChannelClosed(1, False)
    ]
    assert machine.receive_data(open_frame(1), 0) == [events.ChannelOpened(1)]
    machine.check_invariants()


def test_channel_error_leaves_other_channels_alone() -> None:
    """R-ERR-46."""
    machine = opened_server(channels=(1, 2))
    (event,) = machine.fail(NotFound("no queue 'q' in vhost '/'", class_id=50, method_id=10), 1)
    text = "NOT_FOUND - no queue 'q' in vhost '/'"
    assert event == events.ChannelError(1, 404, text, 50, 10)
    machine.send(2, methods.BasicAck(1))
    assert sent(machine) == [
        (1, methods.ChannelClose(404, text, 50, 10)),
        (2, methods.BasicAck(1)),
    ]


def test_hard_error_found_outside_closes_the_connection() -> None:
    machine = opened_server(channels=(1,))
    (event,) = machine.fail(ChannelFault("expected", class_id=60, method_id=80), 1)
    assert event == events.ConnectionFailed("CHANNEL_ERROR - expected", 504, 60, 80)
    assert sent(machine) == [(0, methods.ConnectionClose(504, "CHANNEL_ERROR - expected", 60, 80))]


def test_flow_and_access_reach_the_driver() -> None:
    """R-CH-6, R-CH-7: decided above this room."""
    machine = opened_server(channels=(1,))
    flow, access = methods.ChannelFlow(False), methods.AccessRequest("/data")
    assert machine.receive_data(flow.encode(1) + access.encode(1), 0) == [
        events.MethodReceived(1, flow),
        events.MethodReceived(1, access),
    ]


def test_names_that_are_no_utf8_survive() -> None:
    machine = opened_server(channels=(1,))
    declare = methods.QueueDeclare(queue="\udcff\udc00"[:1])
    (event,) = machine.receive_data(declare.encode(1), 0)
    assert event == events.MethodReceived(1, declare)


def test_what_has_come_of_unfinished_messages_is_counted() -> None:
    """SEC-44: bodies on all channels and the rest of a frame; what ends counts no more."""
    machine = opened_server(channels=(1, 2))
    for channel in (1, 2):
        publish = methods.BasicPublish(0, "", "q").encode(channel)
        machine.receive_data(publish + header_frame(channel, 1000), 0)
        machine.receive_data(body_frame(channel, bytes(100)), 0)
    machine.receive_data(body_frame(1, bytes(300)) + body_frame(1, bytes(50))[:20], 0)
    assert machine.held_bytes == 100 + 400 + 20
    machine.check_invariants()
    machine.fail(NotFound("no queue"), 2)
    assert machine.held_bytes == 400 + 20
    machine.receive_data(body_frame(1, bytes(50))[20:] + body_frame(1, bytes(550)), 0)
    assert machine.held_bytes == 0
    machine.check_invariants()
