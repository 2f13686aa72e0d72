"""8.1 queue_1m, queue_1h: rates, depths and waiting times of queues (Q4), of spans. PURE."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow
import pyarrow.compute as pc

from brokerd_telemetry.columns.deltas import Columns, real, whole
from brokerd_telemetry.schema import ENDS, QUEUE_COUNTERS

#: By the name of a column of both tables, that of a span's it is.
_SAME = {
    **{name: name for name in ("cluster", "vhost", "queue", "qtype", "strategy")},
    **{name: f"d_{name}" for name in QUEUE_COUNTERS},
    "gone": "d_gone",
    **{name: name for name in ENDS},
    **{
        name: name
        for name in (
            "ready_last", "unacked_last", "ready_bytes_last", "unacked_bytes_last",
            "dl_pending_last", "consumers_last", "head_age_ms_last",
        )
    },
    "c_ack_last": "c_ack_max",
    "ready_max": "ready_max",
    "ready_bytes_max": "ready_bytes_max",
    "byte_s": "byte_s",
    "head_age_max_ms": "head_age_ms_max",
    "dl_pending_age_max_ms": "dl_pending_age_ms_max",
    "consumers_min": "consumers_min",
    "consumers_max": "consumers_max",
    "max_len": "max_len_max",
    "leaders": "leaders",
    "rows": "rows",
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class Hour:
    """What is known of a cluster's hour: from when to when it was told (microseconds), how long
    that is in seconds, and the share of it that is there.
    """

    hour_us: int
    start_us: int
    end_us: int
    seconds: float
    completeness: float


def minutes(windows: pyarrow.Table, hour: Hour, run_id: str) -> pyarrow.Table:
    """Return queue_1m."""
    return _named(_rows(windows, 60.0), hour, run_id)


def hours(windows: pyarrow.Table, hour: Hour, run_id: str) -> pyarrow.Table:
    """Return queue_1h; rates are over the part of the hour that the cluster was seen in.

    unread_s: how long at its end messages had waited with none taken and no consumer.
    """
    own = {name: whole(windows[name]) for name in ("taken_us", "t1_max")}
    rows = _rows(windows, hour.seconds)
    # A row that did not come said the same as the last one, whose message has aged since.
    aged_us = pc.subtract(hour.end_us, own["t1_max"])
    waited_us = pc.add(pc.multiply(rows["head_age_ms_last"], 1000), aged_us)
    idle_us = pc.subtract(hour.end_us, pc.coalesce(own["taken_us"], hour.start_us))
    is_left = pc.and_kleene(pc.greater(rows["ready_last"], 0), pc.equal(rows["consumers_last"], 0))
    unread_s = pc.divide(real(pc.min_element_wise(waited_us, idle_us)), 1e6)
    rows["unread_s"] = pc.coalesce(pc.if_else(pc.fill_null(is_left, False), unread_s, 0.0), 0.0)
    return _named(rows, hour, run_id)


def _rows(windows: pyarrow.Table, seconds: float) -> Columns:
    rows = {name: whole(windows[column]) for name, column in _SAME.items()}
    told_us = whole(windows["told_us"])
    for name in ENDS:
        rows[name] = pc.coalesce(rows[name], 0)
    rows["is_gone"] = pc.equal(whole(windows["is_gone_last"]), 1)
    rows["window_start"] = whole(windows["t0"]).cast(pyarrow.timestamp("us", "UTC"))
    rows["ready_avg"] = _ratio(whole(windows["ready_us"]), told_us)
    rows["bytes_avg"] = _ratio(rows["byte_s"], pc.divide(real(told_us), 1e6))
    length = pyarrow.repeat(seconds, len(told_us))
    rows["seconds"] = length
    rows["in_rate"], rows["out_rate"] = (_ratio(rows[name], length) for name in ("enq", "gone"))
    rows["net_rate"] = pc.subtract(rows["in_rate"], rows["out_rate"])
    rows["redelivery_ratio"] = _ratio(rows["redlv"], rows["dlv"])
    # Little's law.
    rows["wait_est_s"] = _ratio(rows["ready_avg"], rows["out_rate"])
    return rows


def _ratio(above: pyarrow.Array, below: pyarrow.Array) -> pyarrow.Array:
    """Return a quotient; null where there is nothing to divide by."""
    below = real(below)
    nothing = pyarrow.scalar(None, pyarrow.float64())
    return pc.divide(real(above), pc.if_else(pc.equal(below, 0.0), nothing, below))


def _named(rows: Columns, hour: Hour, run_id: str) -> pyarrow.Table:
    count = len(rows["seconds"])
    rows["completeness"] = pyarrow.repeat(hour.completeness, count)
    rows["run_id"] = pyarrow.repeat(run_id, count)
    return pyarrow.table(rows)
