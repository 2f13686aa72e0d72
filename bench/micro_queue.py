"""Nanoseconds per message of the queue machine and the channel trackers, single-threaded.

Run: .venv/bin/python -m bench.micro_queue [--messages N].  Figures are medians of five rounds of
CPU time; they say what the pure core costs, not what a broker does (no log, network, frames).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from brokerd.core.confirms import Confirms
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.core.unacked import Unacked
from brokerd.raft.machine import Meta

BATCH = 200
BODY = b"x" * 1024
ROUNDS = 5


class Bed:
    """A machine and its log index."""

    def __init__(self, consumers: int, prefetch: int = 0) -> None:
        self.machine = QueueMachine(QueueOptions("quorum", delivery_limit=20))
        self.index = 0
        self.consumers = [ConsumerId("n1", 1, i, "c") for i in range(consumers)]
        for consumer in self.consumers:
            checkout = Checkout(consumer, prefetch, False, False, 0, "u")
            self.apply(queue_commands.encode_checkout(checkout))

    def apply(self, command: bytes) -> list[object]:
        self.index += 1
        return self.machine.apply(Meta(self.index, 1, self.index), command).effects


def batches(messages: int, varied: bool) -> list[bytes]:
    """Encode the enqueue commands of one publishing channel."""
    result = []
    for number in range(0, messages, BATCH):
        contents = [
            (("", "q"), b"\x10\x00\x02", BODY[: 1024 - (i % 7 if varied else 0)], b"")
            for i in range(BATCH)
        ]
        result.append(enqueue_commands.encode_enqueue("n1", 1, 9, number + 1, contents))
    return result


def each(messages: int, work: Callable[[], None]) -> float:
    """Return the nanoseconds per message of one run."""
    started = time.process_time_ns()
    work()
    return (time.process_time_ns() - started) / messages


def enqueue_only(messages: int, varied: bool) -> float:
    bed, commands = Bed(0), batches(messages, varied)
    return each(messages, lambda: [bed.apply(command) for command in commands] and None)


def through(messages: int, consumers: int) -> tuple[float, float]:
    """Enqueue with delivery, then settle what was delivered, batch by batch."""
    bed, commands = Bed(consumers), batches(messages, varied=False)
    deliver = settle = 0.0
    for command in commands:
        started = time.process_time_ns()
        effects = bed.apply(command)
        deliver += time.process_time_ns() - started
        settles = [
            queue_commands.encode_ranges(
                Kind.SETTLE, effect.consumer, [(r.first, r.first + r.length) for r in effect.runs]
            )
            for effect in effects
        ]
        started = time.process_time_ns()
        for command in settles:
            bed.apply(command)
        settle += time.process_time_ns() - started
    assert bed.machine.overview()["counters"]["ack"] == messages
    return deliver / messages, settle / messages


def at_depth(depth: int) -> float:
    """Cost of a batch in and a batch out (deliver and settle) beside `depth` ready messages."""
    bed = Bed(0)
    commands = batches(depth + 20_000, varied=True)
    fill = depth // BATCH
    for command in commands[:fill]:
        bed.apply(command)
    consumer = ConsumerId("n1", 1, 0, "c")
    bed.apply(queue_commands.encode_checkout(Checkout(consumer, BATCH, False, False, 0, "u")))
    number = 0

    def work() -> None:
        nonlocal number
        for command in commands[fill:]:
            bed.apply(command)
            ranges = [(number, number + BATCH)]
            bed.apply(queue_commands.encode_ranges(Kind.SETTLE, consumer, ranges))
            number += BATCH

    return each(20_000, work)


def single_acks(messages: int) -> float:
    """In-order single acks of a channel, 200 per read."""
    tracker: Unacked[str] = Unacked()
    for number in range(0, messages, BATCH):
        tracker.delivered("c", number, BATCH)
    reads = [[(t + 1, False) for t in range(n, n + BATCH)] for n in range(0, messages, BATCH)]
    return each(messages, lambda: [tracker.acks(read) for read in reads] and None)


def confirms(messages: int) -> float:
    """Number, route to one queue, confirm and take, in runs of 200."""
    tracker = Confirms()

    def work() -> None:
        for _ in range(0, messages, BATCH):
            first = tracker.published(BATCH)
            tracker.expect(first, BATCH, 1)
            tracker.answered(first, BATCH, BATCH)
            tracker.take()

    return each(messages, work)


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    messages: int = parser.parse_args().messages // BATCH * BATCH

    def report(name: str, run: Callable[[], float]) -> None:
        figure = statistics.median(run() for _ in range(ROUNDS))
        print(f"{name:<56} {figure:8.1f} ns/message")

    report("enqueue 200 x 1 KiB, equal sizes", lambda: enqueue_only(messages, False))
    report("enqueue 200 x 1 KiB, varied sizes", lambda: enqueue_only(messages, True))
    for consumers in (1, 10):
        name = f"{consumers} consumer(s)"
        report(f"enqueue and deliver, {name}", lambda n=consumers: through(messages, n)[0])
        report(f"settle in ranges, {name}", lambda n=consumers: through(messages, n)[1])
    for depth in (1_000, 100_000, 1_000_000):
        report(f"batch in, batch out, settle at depth {depth}", lambda d=depth: at_depth(d))
    report("channel: in-order single acks", lambda: single_acks(messages))
    report("channel: confirms, one queue", lambda: confirms(messages))


if __name__ == "__main__":
    main()
