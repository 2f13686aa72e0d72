"""What a queue did in a minute, where it is not the same queue, leader or term throughout."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_telemetry import schema, session
from brokerd_telemetry.tables import queues, spans, steps

from tests.telemetry import fleet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

BEGIN_US = fleet.BEGIN_US


def row(group: int, term: int, node: str, second: int, ready: int, **more: Any) -> dict[str, Any]:
    """A row of a queue q that took `ready` messages and gave none."""
    t0 = BEGIN_US + second * 1_000_000
    counters = {**dict.fromkeys(schema.QUEUE_COUNTERS, 0), "enq": ready}
    gauges = {**dict.fromkeys(schema.QUEUE_GAUGES, 0), "ready": ready}
    return {
        "k": "queue", "cluster": "c", "node": node, "vhost": "/", "queue": "q", "qtype": "quorum",
        "strategy": "at-most-once", "grp": group, "term": term, "seq": second,
        "t0": t0, "t1": t0 + 10_000_000,
        **counters, **{f"c_{name}": count for name, count in counters.items()}, **gauges, **more,
    }  # fmt: skip


def test_the_later_queue_of_a_name_and_the_later_leader_have_the_last_word() -> None:
    told = [
        # The first has seen many terms; who is declared anew begins with few.
        row(7, 9, "n0", 0, 5),
        row(7, 10, "n1", 10, 6, dlx="dead"),
        row(8, 1, "n2", 20, 2, qtype="classic", c_enq=3),
        # Heard of late: a term before that of the row above.
        row(8, 0, "n0", 30, 1, qtype="classic"),
    ]
    hours = [("c", BEGIN_US, BEGIN_US, BEGIN_US + fleet.HOUR_US)]
    spark = session.start(session.SparkSettings())
    try:
        coverage = spark.createDataFrame(
            hours, "cluster string, hour_us long, start_us long, end_us long"
        )
        chained = steps.queue_steps(spark.createDataFrame(told, schema.SILVER), None)
        made = spans.of(chained, coverage)
        assert made.count() == 4
        [minute] = queues._summary(made, spans.MINUTE_US).collect()
        flows = spans.flows(made).collect()
        lasts = steps.last_rows(made, None, [BEGIN_US]).collect()
    finally:
        spark.stop()
    assert (minute.ready_last, minute.qtype, minute.leaders, minute.rows) == (2, "classic", 3, 4)
    # 5, 1 more, and of the second queue 1 and 2 more.
    assert (minute.ready_max, minute.enq) == (6, 9)
    # By the ten seconds in which they came; the minute's last twenty seconds had no row.
    assert sorted((flow.window_start.second, flow.enq) for flow in flows) == [
        (0, 5), (10, 1), (20, 2), (30, 1),
    ]  # fmt: skip
    assert {(last.grp, last.node, last.ready, last.dlx) for last in lasts} == {
        (7, "n1", 6, "dead"),
        (8, "n2", 2, None),
    }
