"""Where the memory of a member goes, what one object of each kind costs, and whether it comes back.

    python -m bench.memory [--scale S] [--out FILE]

One member, started anew for each line: something is made, its resident memory and its own
breakdown (`brokerctl memory_breakdown`) are read, all of it is deleted, and the resident memory is
read again.  `each` is what one object added; listings/memory_breakdown.py has these as constants.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pika

from bench import load_programs, processes
from bench.brokerd_nodes import PORTS, BrokerdCluster
from bench.connections import idle_connections
from bench.definitions import import_definitions, queue_definitions
from bench.rows import drop

MIB = 1 << 20
#: A release comes every ten seconds (server/memory/release.py).
SETTLE_S = 12.0
QUEUES = ("a", "b", "c", "d")
CHANNELS_EACH = 100
Scenario = Callable[[BrokerdCluster, int], AbstractContextManager[None]]


@contextmanager
def nothing(_cluster: BrokerdCluster, _count: int) -> Iterator[None]:
    yield


def messages(kind: str, size: int) -> Scenario:
    @contextmanager
    def make(cluster: BrokerdCluster, count: int) -> Iterator[None]:
        port = cluster.amqp_ports[0]
        for queue in QUEUES:
            load_programs.run_amqpload(
                *("publish", port), queue=queue, type=kind, size=size, count=count // len(QUEUES)
            )
        yield
        for queue in QUEUES:
            drop(port, queue)

    return make


def queues(kind: str) -> Scenario:
    @contextmanager
    def make(cluster: BrokerdCluster, count: int) -> Iterator[None]:
        with queue_definitions(kind, range(count)) as file:
            import_definitions(cluster, file)
        yield
        with amqp(cluster) as connection:
            channel = connection.channel()
            for number in range(count):
                channel.queue_delete(f"idle-{number}")

    return make


@contextmanager
def connections(cluster: BrokerdCluster, count: int) -> Iterator[None]:
    with idle_connections(cluster.amqp_ports, count):
        yield


@contextmanager
def channels(cluster: BrokerdCluster, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count // CHANNELS_EACH):
            connection = stack.enter_context(amqp(cluster))
            for _ in range(CHANNELS_EACH):
                connection.channel()
        yield


@contextmanager
def amqp(cluster: BrokerdCluster) -> Iterator[pika.BlockingConnection]:
    port = cluster.amqp_ports[0]
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    yield connection
    connection.close()


@dataclass(slots=True, frozen=True)
class Line:
    title: str
    count: int
    make: Scenario


LINES = (
    Line("idle", 0, nothing),
    Line("messages of 1 KiB, quorum", 100_000, messages("quorum", 1024)),
    Line("messages of 1 KiB, classic", 100_000, messages("classic", 1024)),
    Line("connections", 1_000, connections),
    Line("channels", 5_000, channels),
    Line("quorum queues", 10_000, queues("quorum")),
    Line("classic queues", 10_000, queues("classic")),
)


def breakdown(cluster: BrokerdCluster) -> dict[str, int]:
    """The member's own words."""
    program = Path(sys.executable).with_name("brokerctl")
    address = cluster.metrics_url(0)
    port = int(address.rpartition(":")[2].partition("/")[0]) - PORTS["http"] + PORTS["rpc"]
    command = [str(program), "--address", f"127.0.0.1:{port}", "memory_breakdown"]
    answer = subprocess.run(
        [*command, "--formatter", "json"], check=True, capture_output=True, text=True
    )
    return {part: row["bytes"] for part, row in json.loads(answer.stdout).items()}


def run(line: Line, scale: float) -> list[str]:
    count = int(line.count * scale)
    cluster = BrokerdCluster(1)
    cluster.start()
    try:
        time.sleep(SETTLE_S)
        idle = processes.resident_mib(cluster.pids())
        with line.make(cluster, count):
            time.sleep(SETTLE_S)
            used = processes.resident_mib(cluster.pids())
            parts = breakdown(cluster)
        time.sleep(2 * SETTLE_S)
        after = processes.resident_mib(cluster.pids())
    finally:
        cluster.stop()
    named = sum(size for part, size in parts.items() if part != "other") / MIB
    each = (used - idle) * MIB / count if count else 0
    largest = sorted(parts.items(), key=lambda part: -part[1])
    shown = ", ".join(f"{part} {size / MIB:.1f}" for part, size in largest if size > MIB // 2)
    return [
        f"{count:,} {line.title}" if count else line.title,
        f"{used:.1f}",
        f"{each:,.0f}",
        f"{100 * (named - used) / used:+.1f} %",
        shown,
        f"{after:.1f}",
        f"{100 * (after - idle) / idle:+.0f} %",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the objects [1]")
    parser.add_argument("--only", default="", help="lines whose title contains this")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    args = parser.parse_args()
    heads = ["holding", "RSS, MiB", "each, bytes", "parts named, of RSS", "parts, MiB"]
    heads += ["after deletion, MiB", "of idle"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for line in LINES:
        if args.only in line.title:
            lines.append(f"| {' | '.join(run(line, args.scale))} |")
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
