"""What a channel tells its queues of what the client was written (ADR 69)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brokerd.core.message import Content, Range
from brokerd.core.queue import queue_commands
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.server.amqp.channel_deliveries import ChannelDeliveries
from brokerd.server.amqp.transactions import Transaction
from brokerd.server.queues.deliveries import LocalConsumer
from brokerd.server.queues.stream import Settle
from tests.unit.server.amqp import fakes

UID = 9


class Machine:
    """Takes frames."""

    frame_max = 128 * 1024

    def send_raw(self, data: bytes) -> None:
        """Nobody looks at it."""


class Connection:
    """A client, as long as `is_lost` is false; a flush is a flush when the test says so."""

    vhost, user = "/", "guest"
    gate = None

    def __init__(self) -> None:
        self.machine = Machine()
        self.flush_count = 0
        self.is_lost = False
        self.write_paused_ms: int | None = None

    def flush_now(self) -> None:
        self.flush_count += 1

    def flush_soon(self) -> None:
        """Later."""


class Groups:
    """Keeps the commands."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, uid: int, command: bytes, *_: Any, **__: Any) -> None:
        assert uid == UID
        self.sent.append(command)


class Deliveries:
    """Keeps what is to be sent again."""

    def __init__(self) -> None:
        self.again: list[list[Range]] = []

    def send_again(self, consumer: LocalConsumer, ranges: list[Range]) -> None:
        self.again.append(ranges)


class Tracer:
    """Off."""

    is_on = False


class Rig:
    """A channel with one consumer."""

    def __init__(self, *, no_ack: bool = False) -> None:
        self.groups = Groups()
        self.connection = Connection()
        self.deliveries = Deliveries()
        parts: dict[str, Any] = {
            "tracer": Tracer(),
            "deliveries": self.deliveries,
        }
        services = replace(fakes.channel_services(self.groups), **parts)
        connection: Any = self.connection
        self.channel = ChannelDeliveries(services, connection, 1)
        sink: Any = self.channel
        who = ConsumerId("n0", 1, 1, "t")
        self.consumer = LocalConsumer(who, UID, "/", "q", sink, no_ack, 0, 0, False, "guest")

    def deliver(self, first: int, length: int) -> None:
        run = Run(first, length, 1, first, 0, 0)
        contents: list[Content] = [(("", "q"), b"\0\0", b"x", b"")] * length
        self.channel.deliver(self.consumer, [(run, contents)])


def test_what_waits_for_the_socket_was_not_written() -> None:
    rig = Rig()
    rig.deliver(0, 3)
    rig.connection.flush_now()
    rig.connection.write_paused_ms = 5
    rig.deliver(3, 4)
    assert rig.channel.held(rig.consumer) == [(0, 3), (3, 7)]
    assert rig.channel.written() == {UID: {"t": [(0, 3)]}}
    rig.channel.unacked.ack(2, multiple=False)
    rig.connection.is_lost = True
    assert rig.channel.written() == {UID: {"t": [(0, 1), (2, 3)]}}


def test_what_was_lost_before_the_flush_was_not_written() -> None:
    """The connection is gone before the frame was written."""
    rig = Rig()
    rig.deliver(0, 1)
    rig.connection.flush_now()
    rig.deliver(1, 1)
    rig.deliver(2, 2)
    # A channel that is closed alone flushes what it has.
    assert rig.channel.written() == {UID: {"t": [(0, 4)]}}
    rig.connection.is_lost = True
    assert rig.channel.written() == {UID: {"t": [(0, 1)]}}
    rig.connection.flush_now()
    assert rig.channel.written() == {UID: {"t": [(0, 4)]}}


def test_what_was_acknowledged_in_an_open_transaction_was_written() -> None:
    """R-TX-6."""
    rig = Rig()
    rig.channel.tx = Transaction(1000)
    rig.deliver(0, 3)
    rig.connection.flush_now()
    rig.channel.settle_tag(Settle.ACCEPT, 2, True)
    written = rig.channel.written()
    assert written is not None
    assert sorted(written[UID]["t"]) == [(0, 2), (2, 3)]


def test_what_an_auto_acknowledging_client_was_sent_and_is_not_settled_was_written() -> None:
    """ADR 7."""
    rig = Rig(no_ack=True)
    rig.deliver(0, 2)
    rig.connection.write_paused_ms = 5
    rig.channel._deliver(rig.consumer, [(Run(2, 1, 1, 2, 0, 0), [(("", "q"), b"\0\0", b"x", b"")])])
    rig.deliver(3, 1)
    assert rig.channel.written() == {UID: {"t": [(2, 3)]}}


def test_a_cancelled_consumer_gives_back_what_it_was_not_written() -> None:
    """R-CS-3."""
    rig = Rig()
    rig.connection.write_paused_ms = 5
    rig.deliver(4, 2)
    rig.channel.unwritten_returns(rig.consumer)
    [command] = rig.groups.sent
    assert command[1] == Kind.RETURN
    unwritten = (rig.consumer.id, [(4, 6)], ReturnCause.UNWRITTEN)
    assert queue_commands.decode_ranges(command) == unwritten


def test_what_can_be_read_here_no_more_is_sent_again_with_what_waits_behind_it() -> None:
    """R-QQ-10: it is not returned, which others would see."""
    rig = Rig()
    rig.connection.write_paused_ms = 5
    rig.channel._backlog.add_numbers(rig.consumer, [Run(0, 2, 1, 0, 0, 0)])
    rig.deliver(2, 1)
    rig.connection.write_paused_ms = None
    rig.channel.writable(True)
    assert rig.deliveries.again == [[(0, 2), (2, 3)]]
    assert rig.groups.sent == []
    assert rig.channel.held(rig.consumer) == []
