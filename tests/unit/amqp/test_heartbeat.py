"""Heartbeats in virtual time."""

from __future__ import annotations

from brokerd.amqp import events, methods
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.heartbeat import LAST_LOOK_MS, Heartbeats
from tests.unit.amqp.pair import ConnectionPair, opened_server, publish_bytes

BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def run(machine: AmqpConnection, until_ms: int) -> list[tuple[int, object]]:
    """Ticks at every deadline; returns what happened and when."""
    out: list[tuple[int, object]] = []
    while not machine.wants_close:
        at = machine.next_deadline_ms
        if at is None or at > until_ms:
            break
        out += [(at, event) for event in machine.tick(at)]
        data = machine.data_to_send()
        if data:
            out.append((at, data))
    return out


def test_heartbeats_go_out_every_half_period_from_the_handshake_on() -> None:
    """R-HB-1, R-CON-10: the client's value counts; what the handshake sent does not."""
    machine = opened_server(heartbeat=10)
    assert run(machine, 15_000) == [(5_000, BEAT), (10_000, BEAT), (15_000, BEAT)]


def test_the_client_role_sends_them_as_well() -> None:
    """R-HB-1: links beat as the server does."""
    pair = ConnectionPair()
    pair.exchange()
    assert run(pair.client, 30_000) == [(15_000, BEAT), (30_000, BEAT)]


def test_traffic_does_not_replace_heartbeats() -> None:
    """R-HB-1: with some of it right after a look the next byte could come a whole period later."""
    machine = opened_server(heartbeat=10, channels=(1,))
    run(machine, 5_000)
    machine.send(1, methods.BasicAck(1))
    machine.data_to_send()
    assert run(machine, 10_000) == [(10_000, BEAT)]
    machine.send(1, methods.BasicAck(2))
    ack = methods.BasicAck(2).encode(1)
    assert run(machine, 15_000) == [(15_000, ack + BEAT)]


def test_a_late_heartbeat_does_not_delay_the_next_one() -> None:
    """R-HB-1: the driver's delays do not add up, and what it missed is not made up for."""
    machine = opened_server(heartbeat=10)
    machine.tick(17_300)
    assert machine.data_to_send() == BEAT
    assert run(machine, 25_000)[:2] == [(20_000, BEAT), (25_000, BEAT)]


def test_silent_peer_is_given_up_between_two_and_three_periods() -> None:
    """R-HB-1, SEC-45: no connection.close; 3 T when the last byte came just after a look."""
    machine = opened_server(heartbeat=1)
    machine.receive_data(BEAT, 1)
    happened = [(at, event) for at, event in run(machine, 60_000) if event != BEAT]
    ((at, event),) = happened
    assert at == 3_000 + LAST_LOOK_MS
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == 0
    assert machine.wants_close
    assert machine.data_to_send() == b""


def test_any_octet_counts() -> None:
    """R-HB-2: half a frame keeps a connection alive."""
    machine = opened_server(heartbeat=1, channels=(1,))
    data = publish_bytes(1, b"slow")
    for second in range(30):
        machine.receive_data(data[second : second + 1], second * 1000 + 500)
        run(machine, second * 1000 + 1400)
    assert not machine.wants_close


def test_single_silent_looks_do_not_add_up() -> None:
    """R-HB-1: two looks in a row, not two in a lifetime."""
    machine = opened_server(heartbeat=1)
    for second in range(0, 20, 2):
        machine.receive_data(BEAT, second * 1000 + 100)
        run(machine, second * 1000 + 2000)
    assert not machine.wants_close


def test_check_pauses_while_reading_is_stopped() -> None:
    """R-HB-2, R-ALM-8: our own heartbeats go on; whole periods count from the resumption."""
    machine = opened_server(heartbeat=1, channels=(1,))
    machine.hold_publishes = True
    assert isinstance(machine.receive_data(publish_bytes(1, b"x"), 100)[-1], events.PublishHeld)
    happened = run(machine, 100_000)
    assert len(happened) > 100
    assert {event for _, event in happened} == {BEAT}
    machine.tick(100_001)
    machine.resume_publishes()
    ((at, event),) = [(at, e) for at, e in run(machine, 200_000) if e != BEAT]
    assert isinstance(event, events.ConnectionFailed)
    assert 102_000 <= at <= 103_001 + LAST_LOOK_MS


def test_driver_can_pause_the_check_itself() -> None:
    """R-HB-2."""
    machine = opened_server(heartbeat=1)
    machine.pause_heartbeat_check()
    run(machine, 50_000)
    assert not machine.wants_close
    machine.resume_heartbeat_check()
    run(machine, 60_000)
    assert machine.wants_close


def test_zero_turns_both_directions_off() -> None:
    """R-CON-10."""
    machine = opened_server(heartbeat=0)
    assert machine.next_deadline_ms is None
    assert machine.tick(10**9) == []
    assert machine.data_to_send() == b""


def test_late_tick_blames_no_peer() -> None:
    """A driver that stalled for an hour takes one look, not sixty."""
    machine = opened_server(heartbeat=60)
    assert machine.tick(3_600_000) == []
    assert not machine.wants_close


def test_what_came_during_a_stall_is_read_before_the_peer_is_judged() -> None:
    """R-HB-1: the last look is taken twice, however late the first of both is."""
    machine = opened_server(heartbeat=1)
    run(machine, 2_500)
    # The process stood still, and its clock comes before its sockets.
    assert machine.tick(3_900) == []
    machine.receive_data(BEAT, 3_900)
    assert {event for _, event in run(machine, 5_500)} == {BEAT}
    assert not machine.wants_close


def test_heartbeats_that_were_not_paused_go_on_as_they_are() -> None:
    """R-HB-2."""
    beats = Heartbeats(10, 0)
    beats.resume(9000)
    assert beats.next_receive_ms == 10_000
