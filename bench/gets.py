"""What does a basic.get cost? CPU of all members per get, brokerd and RabbitMQ side by side.

    python -m bench.gets [--only brokerd|rabbitmq] [--members 1,3] [--rounds N] [--count N]

One client takes COUNT messages of 1 KiB one after the other, each get when the last one's message
has come: with automatic acknowledgement, with an ack (a write of its own) after each, and keeping
all until its connection ends, which returns them.  The queue is led by the member the client is
at, or by another one (`elsewhere`).  Both clusters run at the same time and take turns, row by row.
The results are the CPU of all members over the gets and the time of one get, both of which change
with the machine, and the ratio of the CPU, which changes less.  Prints a Markdown table.
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
#: Gets before the first measured one.
WARM_UP_GETS = 300
#: What a member does behind a publish or a closed channel (confirms, returns) is over by then.
SETTLE_S = 1.0


@dataclass(slots=True, frozen=True)
class Work:
    """One row: the type of the queue, what becomes of the messages, where the client is."""

    kind: str
    ack: str
    elsewhere: bool = False

    @property
    def title(self) -> str:
        """Return what stands in the table."""
        how = {"auto": "auto-ack", "each": "get and ack", "none": "kept, then returned"}[self.ack]
        return f"{self.kind}, {how}{', elsewhere' if self.elsewhere else ''}"


KINDS = ("quorum", "classic", "transient")
WORKS = [Work(kind, ack) for kind in KINDS for ack in ("auto", "each", "none")]
WORKS += [Work(kind, "auto", elsewhere=True) for kind in ("quorum", "classic")]
#: {(members, row, side): [(µs of CPU, µs of time) per round]}
Figures = dict[tuple[int, Work, str], list[tuple[float, float]]]


def measure(cluster: Cluster, work: Work, count: int) -> tuple[float, float]:
    """Return the CPU of all members and the time of one get, in microseconds."""
    queue, home = new_queue(), cluster.amqp_ports[0]
    options: dict[str, object] = {"queue": queue, "type": work.kind}
    if work.kind == "transient":
        # A classic queue that is not durable.
        options |= {"type": "classic", "transient": True}
    load_programs.run_amqpload("publish", home, count=count, in_flight=1000, **options)
    time.sleep(SETTLE_S)
    before = processes.cpu_seconds(cluster.pids())
    result = load_programs.run_amqpload(
        "get",
        cluster.amqp_ports[1] if work.elsewhere else home,
        count=count,
        ack=work.ack,
        no_declare=True,
        **options,
    )
    if work.ack == "none":
        time.sleep(SETTLE_S)
    spent = processes.cpu_seconds(cluster.pids()) - before
    drop(home, queue)
    return spent * 1e6 / count, result["seconds"] * 1e6 / count


def measure_clusters(
    sides: list[str], members: int, rounds: int, count: int, figures: Figures
) -> dict[str, str]:
    """Measure all rows of clusters that run at the same time and take turns; return their titles.

    The speed of a machine that is shared changes from one minute to the next, and so both sides
    meet the same.
    """
    clusters = {side: CLUSTERS[side](members) for side in sides}
    works = [work for work in WORKS if members > 1 or not work.elsewhere]
    try:
        for cluster in clusters.values():
            cluster.start()
            for work in works:
                measure(cluster, work, WARM_UP_GETS)
        for _ in range(rounds):
            for work in works:
                for side, cluster in clusters.items():
                    found = measure(cluster, work, count)
                    figures.setdefault((members, work, side), []).append(found)
                    told = f"{cluster.title} x{members}: {work.title}"
                    print(f"{told}: {found[0]:,.0f} µs of CPU, {found[1]:,.0f} µs", file=sys.stderr)
    finally:
        for cluster in clusters.values():
            cluster.stop()
    return {side: cluster.title for side, cluster in clusters.items()}


def table(figures: Figures, sizes: list[int], titles: dict[str, str]) -> str:
    """Return medians, with the lowest and highest of several rounds, and that of the ratios of
    the first side's CPU to the second's in the same round.
    """
    heads = [f"{titles[side]}: {what}" for side in titles for what in ("CPU µs", "time µs")]
    heads += ["median of ratios of CPU"] if len(titles) > 1 else []
    lines = [f"| members | queue, get | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for members in sizes:
        for work in WORKS:
            if work.elsewhere and members == 1:
                continue
            cells = []
            for side in titles:
                found = figures.get((members, work, side), [])
                cells += [cell([pair[n] for pair in found]) for n in (0, 1)]
            if len(titles) > 1:
                first, second = (figures.get((members, work, side), []) for side in titles)
                ratios = [ours[0] / theirs[0] for ours, theirs in zip(first, second, strict=False)]
                cells.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
            lines.append(f"| {members} | {work.title} | {' | '.join(cells)} |")
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
    parser.add_argument("--members", default="1,3")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    args = parser.parse_args()
    sizes = [int(size) for size in args.members.split(",")]
    sides = [args.only] if args.only else sorted(CLUSTERS)
    figures: Figures = {}
    titles: dict[str, str] = {}
    status = 0
    for members in sizes:
        try:
            titles |= measure_clusters(sides, members, args.rounds, args.count, figures)
        except BenchError as error:
            print(f"bench: {members} members: {error}", file=sys.stderr)
            status = 1
    print(table(figures, sizes, titles))
    return status


if __name__ == "__main__":
    sys.exit(main())
