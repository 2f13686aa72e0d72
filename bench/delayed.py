"""How late messages of a delayed exchange come, and what each takes of memory while it waits:
`python -m bench.delayed [--members N] [--count N] [--seconds S]`.

Messages are published before the first is due, spread evenly over so many seconds, and consumed by
one client, which compares its clock with the time at which each was due.  The clients share the
machine with the members.  Memory is what the queue's machine takes of one message at each replica,
in this process, by tracemalloc, published one by one and by the hundred.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from dataclasses import dataclass

import pika

from bench.brokerd_nodes import BrokerdCluster
from brokerd.core import annotations as message_annotations
from brokerd.core.machine import Meta
from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions

EXCHANGE, QUEUE = "bench-later", "bench-due"
#: Messages of the measure of memory.
HELD = 100_000
#: After the last due time; then something is lost.
PATIENCE_S = 60.0


@dataclass
class Circumstances:
    """A command's place in the log."""

    index: int
    term: int = 1
    now_ms: int = 1_000


def memory(per_command: int) -> float:
    """Return the bytes that each of HELD waiting messages takes."""
    options = QueueOptions(
        queue_type="quorum", dead_letter_exchange="d", at_least_once=True, holds_delayed=True
    )
    machine = QueueMachine(options)
    tracemalloc.start()
    for index in range(HELD // per_command):
        first = index * per_command
        batch = []
        for number in range(first, first + per_command):
            # No two at one time, and in no order.
            kept = message_annotations.Annotations(delay_ms=1_000 + number * 7_919 % 1_000_003)
            batch.append(
                (("later", "k"), b"\x00\x00", b"x" * 100, message_annotations.encode(kept))
            )
        command = enqueue_commands.encode_enqueue("n", 1, 1, first + 1, batch)
        meta: Meta = Circumstances(index + 1)
        machine.apply(meta, command)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / HELD


def lateness(port: int, count: int, seconds: float) -> list[float]:
    """Publish and consume; return by how many ms each message was late, ascending."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.exchange_declare(
            EXCHANGE, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
        )
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(QUEUE, EXCHANGE, "k")
        # pika publishes some 10,000 a second.
        begin_s = time.time() + 3 + count / 5_000
        for number in range(count):
            due_s = begin_s + seconds * number / count
            headers = {"x-delay": max(1, int((due_s - time.time()) * 1000))}
            properties = pika.BasicProperties(headers=headers, delivery_mode=2)
            channel.basic_publish(EXCHANGE, "k", repr(due_s).encode(), properties)
        late: list[float] = []
        for method, _, body in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=PATIENCE_S):
            if method is None:
                raise RuntimeError(f"{len(late)} of {count} messages came")
            late.append((time.time() - float(body)) * 1000)
            if len(late) == count:
                break
        channel.cancel()
    return sorted(late)


def main() -> None:
    """Print a line for memory and one for lateness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    one, hundred = memory(1), memory(100)
    print(f"memory of a waiting message: {one:.0f} bytes, {hundred:.0f} by the hundred", flush=True)
    cluster = BrokerdCluster(chosen.members)
    try:
        cluster.start()
        late = lateness(cluster.amqp_ports[0], chosen.count, chosen.seconds)
    finally:
        cluster.stop()
    median, high = late[len(late) // 2], late[int(len(late) * 0.99)]
    print(
        f"{chosen.members} members, {chosen.count:,} messages due in {chosen.seconds:g} s: "
        f"late by {median:.0f} ms in the median, p99 {high:.0f}, at most {late[-1]:.0f}; "
        f"earliest {late[0]:.1f}"
    )


if __name__ == "__main__":
    main()
