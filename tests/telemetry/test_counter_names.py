"""What a queue counts is one list: the copies that cannot import it say the same.

The list is `queue_state.COUNTERS`. The rows of a member take it from there; the job does not import
the broker, and the metrics page gives each counter a name of its own.
"""

from __future__ import annotations

from dataclasses import replace

from brokerd_telemetry import schema

from brokerd.core.queue import queue_state
from brokerd.server.observe import metrics
from brokerd.telemetry.queue_rows import HEARTBEAT_US, QueueRows
from tests.telemetry import fleet

#: No series of their own; telemetry has them per queue.
NO_SERIES = {"enq_bytes", "orphaned", "dl_confirmed", "dl_lost"}


def test_the_job_knows_every_counter_of_a_queue_and_no_other() -> None:
    assert schema.QUEUE_COUNTERS == queue_state.COUNTERS
    assert schema.REMOVALS == queue_state.REMOVALS
    assert set(schema.REMOVALS) < set(schema.QUEUE_COUNTERS)


def test_the_job_reads_every_field_of_a_queues_row() -> None:
    """What a member adds to a row must be in the job's list, too (ADR 55)."""
    queue = fleet.Queue(1, "q", max_length=9, at_least_once=True, pending=1, letter_age_ms=7)
    queue.counters = dict.fromkeys(queue_state.COUNTERS, 5)
    queue.ready = queue.unacked = 3
    rows, now_us = QueueRows(), 10 * HEARTBEAT_US
    options = replace(queue.options(), max_length_bytes=1, message_ttl_ms=1)
    status = fleet.GroupState(1, {"a": 0})

    def reported(at_us: int) -> set[str]:
        (row,) = rows.rows(queue, queue.overview(at_us), options, status, 0, at_us)
        return set(row)

    def last(is_expired: bool) -> set[str]:
        overview = queue.overview(now_us)
        return set(rows.last_row(queue, overview, options, status, 0, now_us, is_expired, 1))

    # The others are the segment's.
    found = reported(now_us) | reported(now_us + HEARTBEAT_US) | last(True) | last(False)
    assert found == set(schema.QUEUE_ROW.fieldNames()) - {
        "v", "seq", "skew_ms",
    }  # fmt: skip


def test_every_counter_is_a_metric_or_left_out_on_purpose() -> None:
    named = set(metrics._QUEUE_COUNTERS)
    assert named | NO_SERIES == set(queue_state.COUNTERS)
    assert named & NO_SERIES == set()
    assert len(set(metrics._QUEUE_COUNTERS.values())) == len(named)
