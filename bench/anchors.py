"""Other brokers as anchors: NATS JetStream and Apache Kafka beside brokerd and RabbitMQ, same run.

    python -m bench.anchors [--rounds N] [--rows KEY,…] [--sides KEY,…] [--seconds N] [--out FILE]

Three members each on loopback, three replicas in files, 1 KiB; NATS and Kafka once as they come and
once with a sync before each answer, which brokerd and RabbitMQ's quorum queues always do.  NATS is
driven by its own bench client, whose publishes with many in flight go in batches that are awaited
as a whole; Kafka by a small program with its own client and by its own bench; the others by
amqpload as in bench.run, with a write per message.  The sides take turns in going first.

Before each row a small run tells how many messages take --seconds: a round of all six sides takes
some 10 minutes with the default of 8 seconds, and no program runs for more than 5.  The first run
fetches and builds NATS and Kafka (10 minutes).  Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.brokerd_nodes import BrokerdCluster
from bench.kafka import KafkaCluster
from bench.many_rows import run_publishers
from bench.nats import NatsCluster
from bench.processes import BenchError, Cluster
from bench.rabbitmq import RabbitCluster
from bench.rows import Point, measured
from bench.run import cell, machine, number, say

#: Messages of the run that tells how many the measured one shall have.
PILOT_MESSAGES = {"publish-1": 100, "publishers-200": 600, "own-bench": 20_000}
PILOT_DEFAULT = 2_000
MESSAGES_MAX = 200_000
PUBLISHERS = 200


class Anchor(Protocol):
    """A broker that is not spoken to in AMQP: three members, and the rows that it has."""

    title: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def publish(self, in_flight: int, count: int) -> Point: ...

    def publish_each(self, publishers: int, count: int) -> Point: ...

    def consume(self, count: int) -> Point: ...


class AmqpAnchor:
    """brokerd or RabbitMQ, a quorum queue of three, with the rows of the others."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.title = f"{cluster.title}, a sync before each confirm"

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def publish(self, in_flight: int, count: int) -> Point:
        return measured("publish", count, in_flight=in_flight, per_write=1)(self._cluster, 1.0)

    def publish_each(self, publishers: int, count: int) -> Point:
        if publishers == 1:
            return measured("publish", count, in_flight=1)(self._cluster, 1.0)
        return run_publishers(self._cluster, publishers, count)

    def consume(self, count: int) -> Point:
        return measured("consume", count, prefetch=1000, ack="each")(self._cluster, 1.0)


@dataclass(slots=True, frozen=True)
class Row:
    key: str
    title: str
    measure: Callable[[Anchor, int], Point]
    #: Only this side has it.
    only: str = ""


def own_bench(anchor: Anchor, count: int) -> Point:
    assert isinstance(anchor, KafkaCluster)
    return anchor.own_bench(count)


ROWS = (
    Row("publish-1000", "publish, 1,000 in flight", lambda on, count: on.publish(1000, count)),
    Row("publish-100", "publish, 100 in flight", lambda on, count: on.publish(100, count)),
    Row("publish-1", "publish, 1 in flight", lambda on, count: on.publish_each(1, count)),
    Row(
        "publishers-200",
        "200 publishers, 1 in flight each, one queue",
        lambda on, count: on.publish_each(PUBLISHERS, count),
    ),
    Row("consume", "consume and acknowledge", lambda on, count: on.consume(count)),
    Row("own-bench", "its own bench, as much in flight as it likes", own_bench, only="kafka"),
)
SIDES: dict[str, Callable[[], Anchor]] = {
    "brokerd": lambda: AmqpAnchor(BrokerdCluster()),
    "rabbitmq": lambda: AmqpAnchor(RabbitCluster()),
    "nats-always": lambda: NatsCluster("always"),
    "nats-default": NatsCluster,
    "kafka-flush": lambda: KafkaCluster(1),
    "kafka-default": KafkaCluster,
}
#: {(side, row key): [figures per round]}
Figures = dict[tuple[str, str], list[Point]]


def rows_of(side: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if side.startswith(row.only)]


def measure_row(anchor: Anchor, row: Row, seconds: float) -> Point:
    """The measured run has as many messages as a small one before it says to take so long."""
    pilot = row.measure(anchor, PILOT_MESSAGES.get(row.key, PILOT_DEFAULT))
    count = int(min(max(pilot["rate"] * seconds, PILOT_MESSAGES["publish-1"]), MESSAGES_MAX))
    return row.measure(anchor, count)


def measure_side(
    side: str, rows: list[Row], seconds: float, figures: Figures, titles: dict[str, str]
) -> None:
    """One broker's turn; a row that fails is reported and left empty."""
    anchor = SIDES[side]()
    titles[side] = anchor.title
    began = time.monotonic()
    anchor.start()
    try:
        say(f"{anchor.title}: ready in {time.monotonic() - began:.0f} s")
        for row in rows_of(side, rows):
            try:
                point = measure_row(anchor, row, seconds)
            except BenchError as error:
                say(f"{anchor.title}: {row.key}: FAILED: {error}")
                continue
            figures.setdefault((side, row.key), []).append(point)
            shown = ", ".join(f"{name} {number(value)}" for name, value in point.items())
            say(f"{anchor.title}: {row.key}: {shown}")
    finally:
        anchor.stop()


def table(rows: list[Row], sides: list[str], titles: dict[str, str], figures: Figures) -> str:
    lines = [
        "| work | broker | msg/s | p50, µs | p99, µs | CPU per message: members, µs | client, µs |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for side in sides:
            points = figures.get((side, row.key), [])
            if side not in titles or row not in rows_of(side, rows):
                continue
            columns = [
                cell([point[figure] for point in points if figure in point])
                for figure in ("rate", "p50_us", "p99_us", "broker_cpu_us", "client_cpu_us")
            ]
            lines.append(f"| {row.title} | {titles[side]} | {' | '.join(columns)} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    keys = [row.key for row in ROWS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(keys), help=f"of {', '.join(keys)}")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"of {', '.join(SIDES)}")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one measured run")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    args = parser.parse_args()
    unknown = (set(args.rows.split(",")) - set(keys)) | (set(args.sides.split(",")) - set(SIDES))
    if unknown or args.rounds < 1 or args.seconds <= 0:
        parser.error(f"unknown: {', '.join(sorted(unknown))}" if unknown else "numbers above 0")
    return args


def main() -> int:
    args = arguments()
    rows = [row for row in ROWS if row.key in args.rows.split(",")]
    sides: list[str] = args.sides.split(",")
    figures: Figures = {}
    titles: dict[str, str] = {}
    for turn in range(args.rounds):
        say(f"round {turn + 1} of {args.rounds}")
        for side in sides if turn % 2 == 0 else reversed(sides):
            try:
                measure_side(side, rows, args.seconds, figures, titles)
            except BenchError as error:
                say(f"{side}: FAILED: {error}")
    text = (
        f"Medians of {args.rounds} rounds (lowest-highest) of `python -m bench.anchors "
        f"{' '.join(sys.argv[1:])}` on {machine()}. Three members on loopback, three replicas in "
        f"files, 1 KiB.\n\n{table(rows, sides, titles, figures)}\n"
    )
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    complete = all(
        len(figures.get((side, row.key), [])) == args.rounds
        for side in sides
        for row in rows_of(side, rows)
    )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
