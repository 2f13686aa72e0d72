"""Does the cost of a message stay flat? Curves over depth, bindings, queues, members and more.

    python -m bench.curves [--curves KEY,…] [--only brokerd|rabbitmq] [--at-most N] [--out FILE]

For each curve a cluster of three is started anew for each broker; at each point something grows and
one publisher (1,000 in flight, confirms, 1 KiB, a quorum queue of three, unless the curve says
otherwise) is measured: messages per second, and microseconds of CPU per message over all members,
which says more than the rate on a machine that load programs and members share. Prints a Markdown
table per curve. A curve takes some 5 minutes for both brokers, those of queues up to an hour, since
creating many takes it (--at-most 10000: 10 minutes); no single step takes more than half an hour.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import load_programs
from bench.brokerd_nodes import BrokerdCluster
from bench.curve_points import (
    WARM_UP_MESSAGES,
    Measure,
    by_bindings,
    by_connections,
    by_consumers,
    by_depth,
    by_members,
    by_queues,
    by_size,
    by_vhosts,
)
from bench.processes import BenchError, Cluster
from bench.rabbitmq import RabbitCluster
from bench.rows import Point, drop, new_queue

CLUSTERS: dict[str, Callable[[int], Cluster]] = {
    "brokerd": BrokerdCluster,
    "rabbitmq": RabbitCluster,
}


def say(text: str) -> None:
    print(f"curves: {text}", file=sys.stderr, flush=True)


@dataclass(slots=True, frozen=True)
class Curve:
    key: str
    title: str
    axis: str
    measure: Measure
    #: A cluster of each size is started anew.
    sizes: tuple[int, ...] = (3,)
    #: RabbitMQ is not taken further than this: it would take hours.
    theirs_at_most: int = 1 << 30


CURVES = (
    Curve("depth", "Ready messages in the queue", "ready", by_depth),
    Curve("bindings-direct", "Bindings of the exchange, direct", "bindings", by_bindings("direct")),
    Curve("bindings-topic", "Bindings of the exchange, topic", "bindings", by_bindings("topic")),
    Curve(
        "queues-quorum",
        "Idle quorum queues beside it",
        "queues",
        by_queues("quorum", 100_000),
        theirs_at_most=1_000,
    ),
    Curve(
        "queues-classic",
        "Idle classic queues beside it",
        "queues",
        by_queues("classic", 100_000),
        theirs_at_most=10_000,
    ),
    Curve("connections", "Idle connections beside it", "connections", by_connections),
    Curve("consumers", "Consumers of one queue", "consumers", by_consumers),
    Curve("vhosts", "Vhosts beside it", "vhosts", by_vhosts),
    Curve("size", "Bytes of a message", "bytes", by_size),
    # RabbitMQ's quorum queues have five members where there are as many, ours have three.
    Curve(
        "members",
        "Members, for each 30 publishers with 1 in flight each and 30 queues",
        "members",
        by_members,
        sizes=(3, 5, 9, 15),
        theirs_at_most=3,
    ),
)


def measure(curve: Curve, side: str, at_most: int) -> tuple[str, list[tuple[int, Point]]]:
    points: list[tuple[int, Point]] = []
    title = side
    if side != "brokerd":
        at_most = min(at_most, curve.theirs_at_most)
    for size in curve.sizes:
        cluster = CLUSTERS[side](size)
        title = cluster.title
        try:
            for point in measure_cluster(curve, cluster, at_most):
                points.append(point)  # at once: a later one may fail
        except BenchError as error:
            why = "\n".join([str(error), *getattr(error, "__notes__", [])])
            say(f"{cluster.title}: {curve.key}: ended early: {why}")
        finally:
            cluster.stop()
    return title, points


def measure_cluster(curve: Curve, cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    """Start the cluster and yield its points; the caller stops it."""
    cluster.start()
    queue = new_queue()
    load_programs.run_amqpload(
        "publish", cluster.amqp_ports[0], queue=queue, count=WARM_UP_MESSAGES
    )
    drop(cluster.amqp_ports[0], queue)
    for where, figures in curve.measure(cluster, at_most):
        shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        say(f"{cluster.title}: {curve.key} {where:,}: {shown}")
        yield where, figures


def table(curve: Curve, sides: list[tuple[str, list[tuple[int, Point]]]]) -> str:
    lines = [f"### {curve.title}", ""]
    columns = list(dict.fromkeys(name for _, points in sides for _, p in points for name in p))
    heads = [f"{name}, {title}" for name in columns for title, _ in sides]
    lines += [f"| {curve.axis} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    at = {title: dict(points) for title, points in sides}
    for where in sorted({where for _, points in sides for where, _ in points}):
        cells = []
        for name in columns:
            for title, _ in sides:
                value = at[title].get(where, {}).get(name)
                cells.append("-" if value is None else shown(value))
        lines.append(f"| {where:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def main() -> int:
    keys = [curve.key for curve in CURVES]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--curves", default=",".join(keys), help=f"of {', '.join(keys)}")
    parser.add_argument("--only", choices=sorted(CLUSTERS))
    parser.add_argument("--at-most", type=int, default=1 << 30, help="no point above this")
    parser.add_argument("--out", type=Path, help="write the tables to this file as well")
    args = parser.parse_args()
    wanted = args.curves.split(",")
    if unknown := set(wanted) - set(keys):
        parser.error(f"no such curve: {', '.join(sorted(unknown))}")
    sides = [args.only] if args.only else sorted(CLUSTERS)
    texts = [
        f"`python -m bench.curves {' '.join(sys.argv[1:])}`, {time.strftime('%Y-%m-%d')}, "
        f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}.\n"
    ]
    for curve in CURVES:
        if curve.key in wanted:
            texts.append(table(curve, [measure(curve, side, args.at_most) for side in sides]))
            print(texts[-1], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
