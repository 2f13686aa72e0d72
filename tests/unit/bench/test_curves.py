"""A curve keeps what was measured when a later point fails, and ends every cluster it starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import curves, load_programs
from bench.processes import BenchError, Cluster
from bench.rows import Point


class Members:
    """A cluster that notes whether it runs."""

    started: list[int]
    stopped: list[int]

    def __init__(self, size: int) -> None:
        self.title = "members"
        self.amqp_ports = list(range(1, size + 1))

    def start(self) -> None:
        self.started.append(len(self.amqp_ports))

    def stop(self) -> None:
        self.stopped.append(len(self.amqp_ports))


@pytest.fixture(autouse=True)
def _no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    Members.started, Members.stopped = [], []
    monkeypatch.setattr(curves, "CLUSTERS", {"brokerd": Members, "rabbitmq": Members})
    monkeypatch.setattr(load_programs, "run_amqpload", lambda *_, **__: {})


def grows(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    for point in (10, 100, 1000):
        if point <= at_most:
            yield point, {"publish/s": float(point)}


def fails_at_5(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    yield len(cluster.amqp_ports), {"publish/s": 1.0}
    if len(cluster.amqp_ports) == 5:
        raise BenchError("no room")


def test_a_cluster_of_each_size_is_started_and_stopped_whatever_fails() -> None:
    curve = curves.Curve("members", "Members", "members", fails_at_5, sizes=(3, 5, 9))
    _, points = curves.measure(curve, "brokerd", 1 << 30)
    assert [where for where, _ in points] == [3, 5, 9]
    assert Members.started == Members.stopped == [3, 5, 9]


@pytest.mark.parametrize(("side", "last"), [("brokerd", 1000), ("rabbitmq", 100)])
def test_the_other_broker_is_not_taken_to_where_it_needs_hours(side: str, last: int) -> None:
    curve = curves.Curve("queues", "Queues", "queues", grows, theirs_at_most=100)
    _, points = curves.measure(curve, side, 1 << 30)
    assert points[-1][0] == last


def test_a_point_that_one_side_lacks_is_a_dash() -> None:
    curve = curves.Curve("queues", "Queues", "queues", grows)
    sides = [("ours", [(10, {"a": 1.0}), (100, {"a": 2.0})]), ("theirs", [(10, {"a": 3.0})])]
    assert curves.table(curve, sides).splitlines()[-2:] == [
        "| 10 | 1.0 | 3.0 |",
        "| 100 | 2.0 | - |",
    ]
