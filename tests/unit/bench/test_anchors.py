"""What other brokers' bench clients print is read as they mean it, and the table says it."""

from __future__ import annotations

import pytest

from bench import anchors, kafka, nats
from bench.processes import BenchError

ONE_CLIENT = (
    "NATS JetStream synchronous publisher stats: 226 msgs/sec ~ 226 KiB/sec ~ min: 1,713.13us ~ "
    "avg: 4,418.11us ~ max: 27,661.54us ~ P50: 3,725.62us ~ P90: 6,707.19us ~ P99: 12,798.93us ~ "
    "P99.9: 27,661.54us\n"
)
MANY_CLIENTS = (
    "  [1] 2 msgs/sec ~ 2.8 KiB/sec ~ min: 59,760.54us ~ avg: 354,649.02us ~ max: 560,255.94us ~ "
    "P50: 364,523.10us ~ P90: 423,754.68us ~ P99: 560,255.94us ~ P99.9: 560,255.94us (10 msgs)\n"
    " NATS JetStream synchronous publisher aggregated stats: 1,532 msgs/sec ~ 532 KiB/sec\n"
    " message rates min 2 | avg 2 | max 2 | stddev 0 msgs\n"
    " latencies per operation min 40,815.28us | avg 366,041.51us | max 606,083.83us | stddev "
    "379,852.19us | P50 365,504.62us | P90 493,436.07us | P99 599,122.21us | P99.9: 605,363.53us\n"
)
CONSUMER = "NATS JetStream durable consumer (callback) stats: 18,694 msgs/sec ~ 2.3 MiB/sec\n"
#: Of Kafka's own bench: a line in between, and the last one.
OWN_BENCH = (
    "15000 records sent, 2999.4 records/sec (2.93 MB/sec), 812.3 ms avg latency, 1500.0 ms max "
    "latency.\n"
    "50000 records sent, 12345.6 records/sec (12.06 MB/sec), 12.30 ms avg latency, 300.00 ms max "
    "latency, 10 ms 50th, 25 ms 95th, 40 ms 99th, 90 ms 99.9th.\n"
)


@pytest.mark.parametrize(
    ("said", "point"),
    [
        (ONE_CLIENT, {"rate": 226.0, "p50_us": 3725.62, "p99_us": 12798.93}),
        (MANY_CLIENTS, {"rate": 1532.0, "p50_us": 365504.62, "p99_us": 599122.21}),
        (CONSUMER, {"rate": 18694.0}),
    ],
)
def test_nats_bench_is_read_of_all_clients_together(said: str, point: dict[str, float]) -> None:
    assert nats.figures_of(said) == point


def test_nats_bench_that_tells_no_rate_is_an_error() -> None:
    with pytest.raises(BenchError, match="no rate"):
        nats.figures_of("nats: error: no responders")


def test_kafkas_own_bench_is_read_from_its_last_line() -> None:
    assert kafka.own_figures(OWN_BENCH) == {
        "rate": 12345.6,
        "p50_us": 10_000.0,
        "p99_us": 40_000.0,
    }


def test_table_names_the_broker_of_each_line_and_leaves_out_what_it_does_not_have() -> None:
    rows = [row for row in anchors.ROWS if row.key in ("publish-1", "own-bench")]
    titles = {"nats-always": "NATS, sync always", "kafka-flush": "Kafka, flush"}
    figures: anchors.Figures = {
        ("nats-always", "publish-1"): [{"rate": 100.0}, {"rate": 120.0}, {"rate": 110.0}],
        ("kafka-flush", "own-bench"): [{"rate": 5_000.0, "p50_us": 9.0}],
    }
    lines = anchors.table(rows, ["nats-always", "kafka-flush"], titles, figures).splitlines()[2:]
    assert lines == [
        "| publish, 1 in flight | NATS, sync always | **110** (100-120) | - | - | - | - |",
        "| publish, 1 in flight | Kafka, flush | - | - | - | - | - |",
        "| its own bench, as much in flight as it likes | Kafka, flush | **5,000** | **9.00** | - "
        "| - | - |",
    ]


class Paced:
    """An anchor that notes how many messages it was asked for, and does 500 a second."""

    title = "paced"

    def __init__(self) -> None:
        self.counts: list[int] = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def publish(self, in_flight: int, count: int) -> dict[str, float]:
        self.counts.append(count)
        return {"rate": 500.0}

    def publish_each(self, publishers: int, count: int) -> dict[str, float]:
        return self.publish(publishers, count)

    def consume(self, count: int) -> dict[str, float]:
        return self.publish(1, count)


def test_a_row_takes_as_long_as_was_asked_for() -> None:
    anchor = Paced()
    row = next(row for row in anchors.ROWS if row.key == "publish-100")
    anchors.measure_row(anchor, row, seconds=8)
    assert anchor.counts == [anchors.PILOT_DEFAULT, 4000]
