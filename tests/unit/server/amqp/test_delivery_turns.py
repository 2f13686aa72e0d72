"""A channel that delivers much does so in many turns of the loop, and in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from brokerd.core.message import Content
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.server.amqp.channel_deliveries import TURN_BYTES, ChannelDeliveries
from brokerd.server.queues.deliveries import LocalConsumer
from tests.unit.server.amqp import fakes

BODY_BYTES = TURN_BYTES // 4
COUNT = 40


class Machine:
    """The protocol's side of a connection: takes frames, and counts them."""

    frame_max = 128 * 1024

    def __init__(self) -> None:
        self.sent_bytes = 0

    def send_raw(self, data: bytes) -> None:
        self.sent_bytes += len(data)


class Connection:
    """A client that takes at once whatever it is sent."""

    vhost, user, write_paused_ms, flush_count = "/", "guest", None, 0
    gate = None

    def __init__(self) -> None:
        self.machine = Machine()

    def flush_now(self) -> None:
        pass

    def flush_soon(self) -> None:
        pass


class Log(fakes.Queues):
    """A queue that is led here; `read` has the numbers of what was read."""

    def __init__(self) -> None:
        super().__init__(None)
        self.read: list[int] = []

    def leads(self, uid: int) -> bool:
        return True

    def contents_if_here(self, uid: int, run: Any) -> Any:
        self.read.append(run.first)
        return contents(run)


def contents(run: Run) -> list[Content]:
    return [(("", "q"), b"\0\0", bytes(BODY_BYTES), b"")] * run.length


def a_run(number: int) -> Run:
    return Run(number, 1, number, 0, 0, 0)


def channel_with(log: Log) -> tuple[ChannelDeliveries, Machine, LocalConsumer]:
    connection: Any = Connection()
    services = replace(fakes.channel_services(None), queues=log)
    tracer: Any = Tracer()
    channel = ChannelDeliveries(replace(services, tracer=tracer), connection, 1)
    sink: Any = channel
    consumer = LocalConsumer(
        *(ConsumerId("n0", 1, 1, "tag"), 9, "/", "q", sink, False, 0, 0, False, "guest")
    )
    return channel, connection.machine, consumer


class Tracer:
    is_on = False


async def turns_until(sent: int, machine: Machine) -> int:
    """Count the turns of the loop until so many bodies are sent; no turn may send many."""
    turns = 0
    while machine.sent_bytes < sent * BODY_BYTES:
        before = machine.sent_bytes
        await asyncio.sleep(0)
        turns += 1
        assert machine.sent_bytes - before <= TURN_BYTES + BODY_BYTES
        assert turns <= sent
    return turns


async def test_what_waited_goes_out_in_many_turns() -> None:
    """A consumer without a prefetch that has waited, say for consume-ok."""
    log = Log()
    channel, machine, consumer = channel_with(log)
    consumer.is_held = True
    assert channel.defer(consumer, [a_run(number) for number in range(COUNT)])
    channel.release_consumer(consumer)
    assert log.read == [0, 1, 2, 3]
    assert await turns_until(COUNT, machine) >= COUNT // 4 - 1
    assert log.read == list(range(COUNT))
    assert machine.sent_bytes > COUNT * BODY_BYTES


@pytest.mark.parametrize("reads", [False, True])
async def test_what_a_queue_brings_in_one_turn_goes_out_in_many(reads: bool) -> None:
    """The queue asks before it reads a message, and hears that the channel has had its turn."""
    log = Log()
    channel, machine, consumer = channel_with(log)
    for number in range(COUNT):
        run = a_run(number)
        if reads or not channel.defer(consumer, [run]):
            channel.deliver(consumer, [(run, contents(run))])
    assert machine.sent_bytes <= TURN_BYTES + BODY_BYTES
    assert log.read == []
    await turns_until(COUNT, machine)
    assert log.read == list(range(4, COUNT))


async def test_a_channel_that_ends_sends_nothing_more() -> None:
    log = Log()
    channel, machine, consumer = channel_with(log)
    consumer.is_held = True
    channel.defer(consumer, [a_run(number) for number in range(COUNT)])
    channel.release_consumer(consumer)
    sent = machine.sent_bytes
    channel._ended = True
    for _ in range(COUNT):
        await asyncio.sleep(0)
    assert machine.sent_bytes == sent
