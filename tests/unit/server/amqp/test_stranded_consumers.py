"""A consumer whose queue's home member is down: what the client and the queue are told."""

from __future__ import annotations

from typing import Any

from brokerd.amqp import errors, methods
from brokerd.core.queue import client_sessions, queue_commands
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.server.amqp.channel_deliveries import ChannelDeliveries
from brokerd.server.queues.deliveries import LocalConsumer
from brokerd.server.queues.stream import ALL_HELD
from tests.unit.core.queue_driver import QueueDriver
from tests.unit.server.amqp import fakes

ID = ConsumerId("n0", 1, 1, "tag")
REASON = "home member n1 of queue 'q' in vhost '/' is down"
UID = 9


class Machine:
    """The protocol's side: what the client can be told, and what it was."""

    def __init__(self, capabilities: set[str]) -> None:
        self.client_has = capabilities.__contains__
        self.sent: list[methods.Method] = []

    def send(self, channel: int, method: methods.Method) -> None:
        self.sent.append(method)


class Connection:
    """A client's."""

    vhost, user = "/", "guest"
    gate = None

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def flush_soon(self) -> None:
        pass


class Groups:
    """Notes what goes to the queue, which waits for its home."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, uid: int, command: bytes, *_: Any, **__: Any) -> None:
        assert uid == UID
        self.sent.append(command)


class Channel(ChannelDeliveries):
    """Keeps what would close it."""

    failed: errors.ProtocolError | None = None

    def fail(self, error: errors.ProtocolError, class_id: int, method_id: int) -> None:
        self.failed = error


def stranded(*capabilities: str) -> tuple[Channel, Machine, list[bytes]]:
    """Strand a consumer with one message at the client, and one that was not written yet."""
    groups, machine = Groups(), Machine(set(capabilities))
    connection: Any = Connection(machine)
    services = fakes.channel_services(groups)
    channel = Channel(services, connection, 1)
    sink: Any = channel
    consumer = LocalConsumer(ID, UID, "/", "q", sink, False, 0, 0, False, "guest")
    channel.consumers["tag"] = consumer
    channel.unacked.delivered((UID, ID), 10, 1)
    channel._backlog.add_numbers(consumer, [Run(11, 1, 11, 0, 0, 0)])
    channel.consumer_stranded(consumer, REASON)
    return channel, machine, groups.sent


def test_the_client_is_told_and_the_home_takes_back_what_it_held() -> None:
    """R-CS-6: what was written comes back as delivered before, what was not as it was."""
    channel, machine, sent = stranded("consumer_cancel_notify")
    assert machine.sent == [methods.BasicCancel("tag", True)]
    assert channel.consumers == {}
    assert [client_sessions.kind_of(command) for command in sent] == [
        Kind.CANCEL,
        Kind.RETURN,
        Kind.RETURN,
    ]
    assert queue_commands.decode_ranges(sent[1]) == (ID, [(10, 11)], ReturnCause.NACK)
    assert queue_commands.decode_ranges(sent[2]) == (ID, [ALL_HELD], ReturnCause.UNWRITTEN)
    # The tag stays valid, and settles nothing any more.
    assert channel.unacked.ack(1, False) == {}


def test_what_a_client_without_acknowledgements_was_sent_does_not_come_back() -> None:
    """Its socket was full, so that the queue had not been told to settle it."""
    groups, machine = Groups(), Machine({"consumer_cancel_notify"})
    connection: Any = Connection(machine)
    channel = Channel(fakes.channel_services(groups), connection, 1)
    sink: Any = channel
    consumer = LocalConsumer(ID, UID, "/", "q", sink, True, 0, 0, False, "guest")
    channel.consumers["tag"] = consumer
    connection.write_paused_ms = 5
    channel._auto_ack(consumer, 0, 3)
    channel.consumer_stranded(consumer, REASON)
    home = QueueDriver()
    home.fill(5)
    home.reply(queue_commands.encode_checkout(Checkout(ID, 5, False, False, 0, "guest")))
    for command in groups.sent:
        home.send(command)
    assert (home.unacked, home.ready) == (0, 2)


def test_what_the_home_hands_out_for_acknowledgements_that_waited_comes_back() -> None:
    """They reach it before the cancel: nobody at this member knows of what they make room for."""
    _, _, sent = stranded("consumer_cancel_notify")
    home = QueueDriver()
    home.fill(20)
    home.reply(queue_commands.encode_checkout(Checkout(ID, 12, False, False, 0, "guest")))
    for low, high in ((0, 4), (4, 10)):
        home.send(queue_commands.encode_ranges(Kind.SETTLE, ID, [(low, high)]))
    assert home.unacked == 10
    for command in sent:
        home.send(command)
    assert (home.unacked, home.ready) == (0, 10)
    runs = [home.get(no_ack=True)["run"] for _ in range(10)]
    assert [run[0] for run in runs] == list(range(10, 20))
    # Of these the client was sent one.
    assert [run[4] > 0 for run in runs] == [True] + [False] * 9


def test_a_client_that_cannot_be_told_loses_the_channel_with_the_reason() -> None:
    channel, machine, _ = stranded()
    assert machine.sent == []
    assert isinstance(channel.failed, errors.NotFound)
    assert channel.failed.text.endswith(REASON)
