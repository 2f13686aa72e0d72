"""What a queue counts is one list: the copies that cannot import it say the same.

The list is `queue_state.COUNTERS`. The rows of a member take it from there; the job does not import
the broker, and the metrics page gives each counter a name of its own.
"""

from __future__ import annotations

from brokerd_telemetry import schema

from brokerd.core.queue import queue_state
from brokerd.server import metrics

#: No series of their own; telemetry has them per queue.
NO_SERIES = {"enq_bytes", "orphaned", "dl_confirmed", "dl_lost"}


def test_the_job_knows_every_counter_of_a_queue_and_no_other() -> None:
    assert schema.QUEUE_COUNTERS == queue_state.COUNTERS
    assert schema.REMOVALS == queue_state.REMOVALS
    assert set(schema.REMOVALS) < set(schema.QUEUE_COUNTERS)


def test_every_counter_is_a_metric_or_left_out_on_purpose() -> None:
    named = set(metrics._QUEUE_COUNTERS)
    assert named | NO_SERIES == set(queue_state.COUNTERS)
    assert named & NO_SERIES == set()
    assert len(set(metrics._QUEUE_COUNTERS.values())) == len(named)
