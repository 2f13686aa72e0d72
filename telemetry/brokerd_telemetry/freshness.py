"""Until when what a run found counts: the job learns its own rhythm from its last runs.  PURE.

ADR 41.  The operator, which shows findings, knows no schedule: a BrokerConnection has none, and
any cron may start `run`.  So the job says itself when it should have been heard of again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

HOUR_US = 3_600_000_000
#: Ends of runs that are remembered; the median of their distances is the rhythm, so that neither a
#: run by hand nor an outage changes it.
ENDS_KEPT = 6
#: One missed run and a late one are no outage.
RHYTHMS = 2
LEAST_US = 3 * HOUR_US
#: Of a job whose rhythm is not known yet.
UNKNOWN_US = 25 * HOUR_US


def noted(ends_us: Sequence[int], end_us: int) -> list[int]:
    """Return the ends of the last runs' data with this one, unless it brought nothing newer."""
    return sorted({*ends_us, end_us})[-ENDS_KEPT:]


def until_us(ends_us: Sequence[int], as_of_us: int) -> int:
    """Return when findings of data up to `as_of_us` are old."""
    distances = [after - before for before, after in pairwise(ends_us)]
    if not distances:
        return as_of_us + UNKNOWN_US
    return as_of_us + max(LEAST_US, int(RHYTHMS * median(distances)) + HOUR_US)
