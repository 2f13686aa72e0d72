"""The rows of the comparison: what is run, in which unit it is told, and what is aimed at.

The targets are those against RabbitMQ 3.10.8; docs/performance.md says what was reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as counter

from bench import load_programs

QUEUE_NUMBERS = counter(1)


@dataclass(slots=True, frozen=True)
class Row:
    key: str
    title: str
    unit: str
    #: The ratio brokerd / RabbitMQ that is aimed at: at least, or at most where lower is better.
    target: float
    measure: Callable[[list[int], float], float]
    lower_is_better: bool = False
    uses_perftest: bool = False

    def is_met_by(self, ratio: float) -> bool:
        return ratio <= self.target if self.lower_is_better else ratio >= self.target


def scaled(count: int, scale: float) -> int:
    return max(int(count * scale), 100)


def new_queue() -> str:
    return f"bench-{next(QUEUE_NUMBERS)}"


def drop(port: int, queue: str) -> None:
    load_programs.run_amqpload("delete", port, queue=queue)


def publish_rate(
    in_flight: int, count: int, per_write: int = 0
) -> Callable[[list[int], float], float]:
    """With per_write=1 each message is a write of its own, as most client libraries do it."""

    def measure(ports: list[int], scale: float) -> float:
        queue = new_queue()
        result = load_programs.run_amqpload(
            "publish",
            ports[0],
            queue=queue,
            in_flight=in_flight,
            count=scaled(count, scale),
            per_write=per_write,
        )
        drop(ports[0], queue)
        return result["rate"]

    return measure


def publish_latency(ports: list[int], scale: float) -> float:
    queue = new_queue()
    result = load_programs.run_amqpload(
        "publish", ports[0], queue=queue, in_flight=1, count=scaled(3000, scale)
    )
    drop(ports[0], queue)
    return result["p50_us"]


def consume_rate(ports: list[int], scale: float) -> float:
    queue, count = new_queue(), scaled(150_000, scale)
    load_programs.run_amqpload("publish", ports[0], queue=queue, in_flight=1000, count=count)
    result = load_programs.run_amqpload(
        "consume", ports[0], queue=queue, prefetch=1000, ack="each", count=count
    )
    drop(ports[0], queue)
    return result["rate"]


def both_rate(ports: list[int], scale: float) -> float:
    queue = new_queue()
    result = load_programs.run_amqpload(
        "both", ports[0], queue=queue, in_flight=1000, prefetch=1000, count=scaled(80_000, scale)
    )
    drop(ports[0], queue)
    return result["rate"]


def classic_rate(ports: list[int], scale: float) -> float:
    """Publishes without confirms; the rate is that of delivery."""
    queue = new_queue()
    result = load_programs.run_amqpload(
        "both",
        ports[0],
        queue=queue,
        type="classic",
        transient=True,
        ack="auto",
        no_confirm=True,
        count=scaled(150_000, scale),
    )
    drop(ports[0], queue)
    return result["rate"]


def perftest_publish(ports: list[int], scale: float) -> float:
    queue = new_queue()
    limits = ["--producers", "1", "--consumers", "0", "--confirm", "1000"]
    seconds = str(max(int(12 * scale), 8))
    rates = load_programs.run_perftest(ports[0], queue, *limits, "--time", seconds)
    drop(ports[0], queue)
    return rates["sending"]


def perftest_both(ports: list[int], scale: float) -> float:
    queue = new_queue()
    limits = ["--producers", "1", "--consumers", "1", "--confirm", "1000", "--qos", "1000"]
    seconds = str(max(int(12 * scale), 8))
    rates = load_programs.run_perftest(ports[0], queue, *limits, "--time", seconds)
    drop(ports[0], queue)
    return rates["receiving"]


ROWS = (
    Row("publish-1000", "publish, 1,000 in flight", "msg/s", 4.0, publish_rate(1000, 100_000)),
    Row("publish-100", "publish, 100 in flight", "msg/s", 2.0, publish_rate(100, 60_000)),
    Row(
        "publish-single",
        "publish, 1,000 in flight, a write per message",
        "msg/s",
        4.0,
        publish_rate(1000, 100_000, per_write=1),
    ),
    Row("publish-1", "publish, 1 in flight, p50", "µs", 0.6, publish_latency, lower_is_better=True),
    Row("consume-1000", "consume, ack each, prefetch 1,000", "msg/s", 1.2, consume_rate),
    Row("both", "publish and consume at once", "msg/s", 2.0, both_rate),
    Row("classic", "classic, transient, auto-ack", "msg/s", 1.2, classic_rate),
    Row(
        "perftest-publish",
        "PerfTest: publish, 1,000 in flight",
        "msg/s",
        4.0,
        perftest_publish,
        uses_perftest=True,
    ),
    Row(
        "perftest-both",
        "PerfTest: publish and consume at once",
        "msg/s",
        2.0,
        perftest_both,
        uses_perftest=True,
    ),
)
