"""Consumers with a small prefetch: messages per second and CPU, brokerd and RabbitMQ side by side.

    python -m bench.windows [--only brokerd|rabbitmq] [--members N] [--rounds N] [--count N]

A filled queue, one consumer that acknowledges each message, with a prefetch of 1, 20 and 1,000: how
fast a queue goes on when its consumer has room again.  CPU is all members'.  Prints a Markdown
table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.processes import BenchError, Cluster
from bench.rabbitmq import RabbitCluster
from bench.rows import drop, new_queue

CLUSTERS: dict[str, Callable[[int], Cluster]] = {
    "brokerd": BrokerdCluster,
    "rabbitmq": RabbitCluster,
}
WARM_UP_COUNT = 500
#: Confirms and what follows them are over by then.
SETTLE_S = 1.0


@dataclass(slots=True, frozen=True)
class Work:
    """One row."""

    kind: str
    prefetch: int

    @property
    def title(self) -> str:
        """Return what stands in the table."""
        return f"{self.kind}, prefetch {self.prefetch:,}"


WORKS = [Work(kind, size) for kind in ("classic", "quorum") for size in (1, 20, 1000)]
#: {(row, side): [(messages per second, µs of CPU per message) per round]}
Figures = dict[tuple[Work, str], list[tuple[float, float]]]


def measure(cluster: Cluster, work: Work, count: int) -> tuple[float, float]:
    """Return messages per second, and microseconds of CPU of all members per message."""
    queue, port = new_queue(), cluster.amqp_ports[0]
    options: dict[str, object] = {"queue": queue, "type": work.kind, "count": count}
    load_programs.run_amqpload("publish", port, in_flight=1000, **options)
    time.sleep(SETTLE_S)
    before = processes.cpu_seconds(cluster.pids())
    result = load_programs.run_amqpload(
        "consume", port, prefetch=work.prefetch, ack="each", no_declare=True, **options
    )
    spent = processes.cpu_seconds(cluster.pids()) - before
    drop(port, queue)
    return result["rate"], spent * 1e6 / count


def measure_side(side: str, members: int, count: int, figures: Figures) -> str:
    """Measure all rows of a cluster of its own."""
    cluster = CLUSTERS[side](members)
    try:
        cluster.start()
        for work in WORKS:
            measure(cluster, work, WARM_UP_COUNT)
        for work in WORKS:
            # One at a time waits for each: fewer are enough.
            found = measure(cluster, work, count if work.prefetch > 1 else count // 5)
            figures.setdefault((work, side), []).append(found)
            told = f"{cluster.title} x{members}: {work.title}"
            print(f"{told}: {found[0]:,.0f}/s, {found[1]:,.0f} µs of CPU", file=sys.stderr)
    finally:
        cluster.stop()
    return cluster.title


def table(figures: Figures, titles: dict[str, str]) -> str:
    """Return medians, with the lowest and highest of several rounds."""
    heads = [f"{titles[side]}: {what}" for side in titles for what in ("msg/s", "CPU µs")]
    lines = [f"| queue, consumer | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for work in WORKS:
        cells = []
        for side in titles:
            found = figures.get((work, side), [])
            cells += [cell([pair[n] for pair in found]) for n in (0, 1)]
        lines.append(f"| {work.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: list[float]) -> str:
    """Return a median, and the range when there is one."""
    if not values:
        return "-"
    middle = f"**{statistics.median(values):,.0f}**"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.0f}-{max(values):,.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", choices=sorted(CLUSTERS))
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000)
    args = parser.parse_args()
    sides = [args.only] if args.only else sorted(CLUSTERS)
    figures: Figures = {}
    titles: dict[str, str] = {}
    status = 0
    for _ in range(args.rounds):
        for side in sides:
            try:
                titles[side] = measure_side(side, args.members, args.count, figures)
            except BenchError as error:
                print(f"bench: {side}: {error}", file=sys.stderr)
                status = 1
    print(table(figures, titles))
    return status


if __name__ == "__main__":
    sys.exit(main())
