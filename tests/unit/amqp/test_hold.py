"""Holding publishes during an alarm (R-ALM-2, R-ALM-3, R-ALM-4)."""

from __future__ import annotations

import pytest

from brokerd.amqp import events, methods
from brokerd.amqp.errors import MisuseError
from tests.unit.amqp.pair import body_frame, header_frame, opened_server, publish_bytes

PUBLISH = methods.BasicPublish(exchange="x", routing_key="k").encode(1)


def test_methods_without_content_are_served_during_an_alarm() -> None:
    """R-ALM-4."""
    machine = opened_server(channels=(1,))
    machine.hold_publishes = True
    data = methods.BasicAck(1).encode(1) + methods.ChannelOpen().encode(2)
    assert [type(e) for e in machine.receive_data(data, 0)] == [
        events.AcksReceived,
        events.ChannelOpened,
    ]
    assert not machine.is_held
    assert machine.resume_publishes() == []


@pytest.mark.parametrize("cut", [*range(1, 34), 60])
def test_first_content_frame_stops_the_reading(cut: int) -> None:
    """R-ALM-2, R-ALM-3: told once; the message and all behind it come after the alarm."""
    machine = opened_server(channels=(1,))
    machine.hold_publishes = True
    data = publish_bytes(1, b"held") + methods.BasicAck(5).encode(1)
    found = machine.receive_data(data[:cut], 0) + machine.receive_data(data[cut:], 0)
    assert found == [events.PublishHeld(1)]
    assert machine.is_held
    assert machine.receive_data(publish_bytes(1, b"later"), 0) == []
    after = machine.resume_publishes()
    assert [type(e) for e in after] == [
        events.PublishesReceived,
        events.AcksReceived,
        events.PublishesReceived,
    ]
    assert after[0].items[0][2] == b"held"  # type: ignore[union-attr]
    assert after[2].items[0][2] == b"later"  # type: ignore[union-attr]
    assert not machine.is_held


def test_alarm_in_the_middle_of_a_body_stops_at_the_next_body_frame() -> None:
    """R-ALM-2: header or body frames trigger it."""
    machine = opened_server(channels=(1,))
    assert machine.receive_data(PUBLISH + header_frame(1, 4) + body_frame(1, b"ab"), 0) == []
    machine.hold_publishes = True
    assert machine.receive_data(body_frame(1, b"cd"), 0) == [events.PublishHeld(1)]
    (event,) = machine.resume_publishes()
    assert event == events.PublishesReceived(1, [(PUBLISH[7:-1], b"\0\0", b"abcd")])


def test_alarm_that_ends_before_a_publish_holds_nothing() -> None:
    machine = opened_server(channels=(1,))
    machine.hold_publishes = True
    assert machine.resume_publishes() == []
    (event,) = machine.receive_data(publish_bytes(1, b"x"), 0)
    assert isinstance(event, events.PublishesReceived)


def test_unread_bytes_of_a_held_connection_are_bounded() -> None:
    """A driver that goes on reading is told so."""
    machine = opened_server(channels=(1,))
    machine.hold_publishes = True
    machine.receive_data(publish_bytes(1, b"x"), 0)
    for _ in range(3):
        assert machine.receive_data(bytes(1 << 20), 0) == []
    with pytest.raises(MisuseError):
        machine.receive_data(bytes(1 << 20), 0)


def test_held_connection_can_be_closed() -> None:
    """R-CON-14: what was held is ignored, close-ok is understood."""
    machine = opened_server(channels=(1,))
    machine.hold_publishes = True
    machine.receive_data(publish_bytes(1, b"x"), 0)
    machine.close(320, "shutdown")
    (event,) = machine.receive_data(methods.ConnectionCloseOk().encode(0), 0)
    assert isinstance(event, events.ConnectionClosed)
