"""The rows of the comparison: what is run, which figures it gives, and what is aimed at.

Here are the rows of one publisher and one consumer; those of many clients are in many_rows.py.
The targets are those against RabbitMQ 3.10.8; docs/performance.md says what was reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as counter

from bench import load_programs
from bench.processes import Cluster

QUEUE_NUMBERS = counter(1)
#: {figure: value} of one run; of each row also broker_cpu_us and client_cpu_us, where they are
#: known: microseconds of CPU per message.
Point = dict[str, float]
Measure = Callable[[Cluster, float], Point]


@dataclass(slots=True, frozen=True)
class Aim:
    """A figure of a row, and the ratio brokerd / RabbitMQ that is aimed at: at least, or at most
    where lower is better.
    """

    figure: str
    unit: str
    target: float | None = None
    lower_is_better: bool = False

    def is_met_by(self, ratio: float) -> bool:
        assert self.target is not None
        return ratio <= self.target if self.lower_is_better else ratio >= self.target


@dataclass(slots=True, frozen=True)
class Row:
    key: str
    title: str
    aims: tuple[Aim, ...]
    measure: Measure
    uses_perftest: bool = False
    #: Only brokerd has it; its ratio is to brokerd's own row of this key.
    beside: str = ""


def rate(target: float) -> Aim:
    return Aim("rate", "msg/s", target)


def at_most(figure: str, unit: str, target: float) -> Aim:
    return Aim(figure, unit, target, lower_is_better=True)


def scaled(count: int, scale: float) -> int:
    return max(int(count * scale), 100)


def new_queue() -> str:
    return f"bench-{next(QUEUE_NUMBERS)}"


def drop(port: int, queue: str) -> None:
    load_programs.run_amqpload("delete", port, queue=queue)


def measured(verb: str, count: int, **options: object) -> Measure:
    """One run of amqpload at the first member, on a queue of its own."""

    def measure(cluster: Cluster, scale: float) -> Point:
        queue, port = new_queue(), cluster.amqp_ports[0]
        messages = scaled(count, scale)
        if verb == "consume":
            load_programs.run_amqpload("publish", port, queue=queue, in_flight=1000, count=messages)
        point = load_programs.run_costed(
            verb, port, cluster.pids(), queue=queue, count=messages, **options
        )
        drop(port, queue)
        return point

    return measure


def perftest_publish(cluster: Cluster, scale: float) -> Point:
    queue, ports = new_queue(), cluster.amqp_ports
    limits = ["--producers", "1", "--consumers", "0", "--confirm", "1000"]
    seconds = str(max(int(12 * scale), 8))
    rates = load_programs.run_perftest(ports[0], queue, *limits, "--time", seconds)
    drop(ports[0], queue)
    return {"rate": rates["sending"]}


def perftest_both(cluster: Cluster, scale: float) -> Point:
    queue, ports = new_queue(), cluster.amqp_ports
    limits = ["--producers", "1", "--consumers", "1", "--confirm", "1000", "--qos", "1000"]
    seconds = str(max(int(12 * scale), 8))
    rates = load_programs.run_perftest(ports[0], queue, *limits, "--time", seconds)
    drop(ports[0], queue)
    return {"rate": rates["receiving"]}


ROWS = (
    Row(
        "publish-1000",
        "publish, 1,000 in flight",
        (rate(4.0),),
        measured("publish", 100_000, in_flight=1000),
    ),
    Row(
        "publish-100",
        "publish, 100 in flight",
        (rate(2.0),),
        measured("publish", 60_000, in_flight=100),
    ),
    # Each message is a write of its own, as most client libraries do it, librabbitmq among them.
    Row(
        "publish-single",
        "publish, 1,000 in flight, a write per message",
        (rate(6.0),),
        measured("publish", 100_000, in_flight=1000, per_write=1),
    ),
    Row(
        "publish-single-100",
        "publish, 100 in flight, a write per message",
        (rate(3.0),),
        measured("publish", 60_000, in_flight=100, per_write=1),
    ),
    Row(
        "publish-1",
        "publish, 1 in flight",
        (at_most("p50_us", "p50, µs", 0.6), Aim("p99_us", "p99, µs")),
        measured("publish", 3000, in_flight=1),
    ),
    Row(
        "consume-1000",
        "consume, ack each, prefetch 1,000",
        (rate(1.2),),
        measured("consume", 150_000, prefetch=1000, ack="each"),
    ),
    Row(
        "both",
        "publish and consume at once",
        (rate(2.0),),
        measured("both", 80_000, in_flight=1000, prefetch=1000),
    ),
    # Publishes without confirms; the rate is that of delivery.
    Row(
        "classic",
        "classic, transient, auto-ack",
        (rate(1.2),),
        measured("both", 150_000, type="classic", transient=True, ack="auto", no_confirm=True),
    ),
    Row(
        "perftest-publish",
        "PerfTest: publish, 1,000 in flight",
        (rate(4.0),),
        perftest_publish,
        uses_perftest=True,
    ),
    Row(
        "perftest-both",
        "PerfTest: publish and consume at once",
        (rate(2.0),),
        perftest_both,
        uses_perftest=True,
    ),
)
