"""What is told of a queue's minute and hour: rates, and what nobody read."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from brokerd_telemetry.columns import queue_rows, windows

from tests.telemetry import fleet

BEGIN_US = fleet.BEGIN_US
HOUR = queue_rows.Hour(BEGIN_US, BEGIN_US, BEGIN_US + fleet.HOUR_US, 3600.0, 0.5)
SPAN = {
    "cluster": "c", "vhost": "/", "queue": "q", "t0": BEGIN_US, "t1_max": BEGIN_US + 60_000_000,
    "d_enq": 7200, "d_gone": 3600, "d_dlv": 0, "d_redlv": 0, "ready_us": 120e6, "byte_s": 6000.0,
    "told_us": 60_000_000, "ready_last": 5, "consumers_last": 0, "head_age_ms_last": 1000,
}  # fmt: skip


def hour(**changes: Any) -> dict[str, Any]:
    """The row of an hour with one span."""
    span = pyarrow.Table.from_pylist([SPAN | changes], windows.SCHEMA)
    [row] = queue_rows.hours(span, HOUR, "run").to_pylist()
    return row


def test_rates_are_over_the_time_that_was_told_and_nothing_is_divided_by_nothing() -> None:
    row = hour()
    assert (row["in_rate"], row["out_rate"], row["net_rate"]) == (2.0, 1.0, 1.0)
    assert (row["ready_avg"], row["wait_est_s"], row["bytes_avg"]) == (2.0, 2.0, 100.0)
    assert (row["redelivery_ratio"], row["completeness"], row["run_id"]) == (None, 0.5, "run")
    assert row["window_start"].timestamp() * 1e6 == BEGIN_US
    [minute] = queue_rows.minutes(
        pyarrow.Table.from_pylist([SPAN], windows.SCHEMA), HOUR, "run"
    ).to_pylist()
    assert (minute["seconds"], minute["in_rate"]) == (60.0, 120.0)
    assert "unread_s" not in minute
    nothing = hour(d_gone=0, told_us=0)
    assert (nothing["wait_est_s"], nothing["ready_avg"]) == (None, None)


@pytest.mark.parametrize(
    ("changes", "unread_s"),
    [
        # It waited for a second when it was told of last, 59 minutes before the end.
        ({}, 3541.0),
        ({"taken_us": BEGIN_US + 3_000_000_000}, 600.0),
        # Nobody says how old its first message is: as long as nothing was taken.
        ({"head_age_ms_last": None}, 3600.0),
        ({"consumers_last": 1}, 0.0),
        ({"ready_last": 0}, 0.0),
        ({"consumers_last": None}, 0.0),
    ],
)
def test_messages_are_unread_while_nobody_takes_any(
    changes: dict[str, Any], unread_s: float
) -> None:
    assert hour(**changes)["unread_s"] == unread_s


def test_of_no_spans_there_are_no_rows() -> None:
    nothing = windows.SCHEMA.empty_table()
    assert queue_rows.hours(nothing, HOUR, "run").num_rows == 0
    assert queue_rows.minutes(nothing, HOUR, "run").schema.field("window_start").type.tz == "UTC"
