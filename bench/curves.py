"""Does the cost of a message stay flat? Curves over depth, bindings, queues, connections and size.

    python -m bench.curves [--curves KEY,…] [--only brokerd|rabbitmq] [--at-most N] [--out FILE]

For each curve a cluster of three is started anew for each broker; at each point something grows and
one publisher (1,000 in flight, confirms, 1 KiB, a quorum queue of three, unless the curve says
otherwise) is measured: messages per second, and microseconds of CPU per message over all members,
which says more than the rate on a machine that load programs and members share. Prints a Markdown
table per curve.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.connections import idle_connections
from bench.processes import BenchError, Cluster
from bench.rabbitmq import RabbitCluster
from bench.rows import drop, new_queue

CLUSTERS: dict[str, Callable[[], Cluster]] = {"brokerd": BrokerdCluster, "rabbitmq": RabbitCluster}
MESSAGES = 30_000
WARM_UP_MESSAGES = 20_000
#: How long an idle cluster is watched.
IDLE_S = 5.0
#: After something was created: a moment for what the brokers do behind it.
SETTLE_S = 2.0
EXCHANGE = "curve"
#: {column: figure}
Point = dict[str, float]
Measure = Callable[[Cluster, int], Iterator[tuple[int, Point]]]


def say(text: str) -> None:
    print(f"curves: {text}", file=sys.stderr, flush=True)


def publish(cluster: Cluster, count: int = MESSAGES, **options: object) -> Point:
    """One measured run of amqpload; the queue must have been declared if options say so."""
    cpu = processes.cpu_seconds(cluster.pids())
    options = {"in_flight": 1000, "size": 1024} | options
    result = load_programs.run_amqpload("publish", cluster.amqp_ports[0], count=count, **options)
    spent = processes.cpu_seconds(cluster.pids()) - cpu
    return {"publish/s": result["rate"], "publish CPU µs": spent * 1e6 / count}


def consume(cluster: Cluster, queue: str, count: int) -> Point:
    cpu = processes.cpu_seconds(cluster.pids())
    result = load_programs.run_amqpload(
        "consume", cluster.amqp_ports[0], queue=queue, prefetch=1000, count=count
    )
    spent = processes.cpu_seconds(cluster.pids()) - cpu
    return {"consume/s": result["rate"], "consume CPU µs": spent * 1e6 / count}


def idle(cluster: Cluster) -> Point:
    """What the cluster costs while nobody uses it."""
    time.sleep(SETTLE_S)
    cpu = processes.cpu_seconds(cluster.pids())
    time.sleep(IDLE_S)
    spent = processes.cpu_seconds(cluster.pids()) - cpu
    return {"idle CPU %": 100 * spent / IDLE_S}


def powers(first: int, last: int, at_most: int) -> list[int]:
    """1, 10, 100 … from first to last, none above at_most."""
    points = [first]
    while points[-1] * 10 <= last:
        points.append(points[-1] * 10)
    if points[-1] != last:
        points.append(last)
    return [point for point in points if point <= at_most]


def by_depth(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    queue, depth = new_queue(), 0
    before = processes.resident_mib(cluster.pids())
    for point in powers(1_000, 1_000_000, at_most):
        load_programs.run_amqpload(
            "publish", cluster.amqp_ports[0], queue=queue, in_flight=1000, count=point - depth
        )
        figures = publish(cluster, queue=queue)
        figures |= consume(cluster, queue, MESSAGES)
        grown = processes.resident_mib(cluster.pids()) - before
        figures["bytes per message and member"] = grown * 2**20 / point / len(cluster.amqp_ports)
        depth = point
        yield point, figures


def by_bindings(kind: str) -> Measure:
    """Bindings of other keys at the exchange that is published to."""

    def measure(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
        queue, made = "curve-bound", 0
        load_programs.run_amqpload("publish", cluster.amqp_ports[0], queue=queue, count=1)
        for point in powers(10, 100_000, at_most):
            keys = [f"k{number}.other.*" for number in range(made, point - 1)]
            started = time.monotonic()
            with definitions(kind, queue, [*keys, "wanted.key"]) as file:
                import_definitions(cluster, file)
            took = time.monotonic() - started
            made = point - 1
            figures = publish(
                cluster, queue=queue, exchange=EXCHANGE, key="wanted.key", no_declare=True
            )
            yield point, figures | {"import s": took}

    return measure


def import_definitions(cluster: Cluster, file: Path) -> None:
    cluster.control("import_definitions", "-t", "1800", str(file))


@contextmanager
def definitions(kind: str, queue: str, keys: list[str]) -> Iterator[Path]:
    exchange = {"name": EXCHANGE, "vhost": "/", "type": kind, "durable": True}
    exchange |= {"auto_delete": False, "internal": False, "arguments": {}}
    bindings = [
        {
            "source": EXCHANGE,
            "vhost": "/",
            "destination": queue,
            "destination_type": "queue",
            "routing_key": key,
            "arguments": {},
        }
        for key in keys
    ]
    with written({"exchanges": [exchange], "bindings": bindings}) as file:
        yield file


@contextmanager
def queue_definitions(kind: str, numbers: range, vhost: str = "/") -> Iterator[Path]:
    queues = [
        {
            "name": f"idle-{number}",
            "vhost": vhost,
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": kind},
        }
        for number in numbers
    ]
    with written({"queues": queues}) as file:
        yield file


@contextmanager
def written(definitions: dict[str, object]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-curves-") as folder:
        file = Path(folder) / "definitions.json"
        file.write_text(json.dumps(definitions))
        yield file


def by_queues(kind: str, last: int) -> Measure:
    """Idle queues beside the one that is used."""

    def measure(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
        made = 0
        for point in powers(1, last, at_most):
            before = processes.resident_mib(cluster.pids())
            started = time.monotonic()
            with queue_definitions(kind, range(made, point)) as file:
                import_definitions(cluster, file)
            took = time.monotonic() - started
            figures = idle(cluster)
            grown = processes.resident_mib(cluster.pids()) - before
            figures["KiB per new queue, all members"] = grown * 1024 / (point - made)
            made = point
            queue = new_queue()
            figures |= publish(cluster, queue=queue)
            drop(cluster.amqp_ports[0], queue)
            yield point, figures | {"import s": took}

    return measure


def by_connections(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    for point in powers(1, 5_000, at_most):
        before = processes.resident_mib(cluster.pids())
        with idle_connections(cluster.amqp_ports, point):
            figures = idle(cluster)
            grown = processes.resident_mib(cluster.pids()) - before
            figures["KiB per connection"] = grown * 1024 / point
            queue = new_queue()
            figures |= publish(cluster, queue=queue)
            drop(cluster.amqp_ports[0], queue)
        yield point, figures


def by_size(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    for point in (16, 128, 1024, 8192, 65_536, 1_048_576):
        if point > at_most:
            break
        queue = new_queue()
        count = max(300, min(MESSAGES, (256 << 20) // point))
        # As many bytes as 100 messages of 64 KiB at most: a megabyte each would be a gigabyte.
        in_flight = max(10, min(1000, (64 << 20) // point))
        figures = publish(cluster, count, queue=queue, size=point, in_flight=in_flight)
        figures["MiB/s"] = figures["publish/s"] * point / 2**20
        drop(cluster.amqp_ports[0], queue)
        yield point, figures


@dataclass(slots=True, frozen=True)
class Curve:
    key: str
    title: str
    axis: str
    measure: Measure


CURVES = (
    Curve("depth", "Ready messages in the queue", "ready", by_depth),
    Curve("bindings-direct", "Bindings of the exchange, direct", "bindings", by_bindings("direct")),
    Curve("bindings-topic", "Bindings of the exchange, topic", "bindings", by_bindings("topic")),
    Curve("queues-quorum", "Idle quorum queues beside it", "queues", by_queues("quorum", 10_000)),
    Curve(
        "queues-classic", "Idle classic queues beside it", "queues", by_queues("classic", 10_000)
    ),
    Curve("connections", "Idle connections beside it", "connections", by_connections),
    Curve("size", "Bytes of a message", "bytes", by_size),
)


def measure(curve: Curve, side: str, at_most: int) -> tuple[str, list[tuple[int, Point]]]:
    cluster = CLUSTERS[side]()
    points: list[tuple[int, Point]] = []
    try:
        cluster.start()
        queue = new_queue()
        load_programs.run_amqpload(
            "publish", cluster.amqp_ports[0], queue=queue, count=WARM_UP_MESSAGES
        )
        drop(cluster.amqp_ports[0], queue)
        for where, figures in curve.measure(cluster, at_most):
            points.append((where, figures))
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            say(f"{cluster.title}: {curve.key} {where:,}: {shown}")
    except BenchError as error:
        say(f"{cluster.title}: {curve.key}: ended early: {error}")
    finally:
        cluster.stop()
    return cluster.title, points


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
