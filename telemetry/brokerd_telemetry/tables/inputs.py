"""What the gold tables are made of: typed rows and what is known about their completeness. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import GRACE_US, HOUR_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: From here on a queue or exchange is idle (8.13); what is long is the reader's to say.
IDLE_US = HOUR_US


@dataclass(slots=True, frozen=True)
class Queues:
    """What queues did in the touched hours (columns.windows.Windows)."""

    quarters: DataFrame
    hours: DataFrame
    groups: DataFrame
    #: Some rows for each minute, to be added up.
    flows: DataFrame
    #: queue_last_1h.
    last_rows: DataFrame


@dataclass(slots=True, frozen=True)
class Inputs:
    """One run's input; every DataFrame covers whole hours."""

    #: Silver rows of the touched hours (schema.SILVER) by kind; a kind without rows is not there.
    rows: Mapping[str, DataFrame]
    #: No row, known to be none: what is made of it costs next to nothing.
    nothing: DataFrame
    #: Gives what queues did, as soon as it is made.
    queues: Callable[[], Queues]
    #: One row per cluster and hour: completeness, seconds, start_us, end_us.
    coverage: DataFrame
    #: How complete each cluster's hours are, and their days: covered_hour, completeness.
    known_hours: DataFrame
    known_days: DataFrame
    #: Rows of alarms and blocked connections of the last hours, beyond the touched ones.
    alarms: DataFrame
    #: declared.exchange_lasts of the touched hours.
    exchange_last_rows: DataFrame
    #: usage_1h of the touched days' other hours; None: there are none.
    usage_before: DataFrame | None = None
    #: queue_forecast_1h of the hour before.
    forecasts_before: DataFrame | None = None
    #: member_5m of the touched days and the six before, but for the touched hours.
    members_before: DataFrame | None = None

    def kind(self, name: str) -> DataFrame:
        """Return the rows of one kind."""
        return self.rows.get(name, self.nothing)


def window(time_us: str, size_us: int) -> Column:
    """Return the start of the window that a time in microseconds lies in, as a timestamp."""
    column = f.col(time_us)
    return f.timestamp_micros(column - f.pmod(column, f.lit(size_us)))


def total(name: str) -> Column:
    """Return the sum of a column, 0 if it is null throughout."""
    return f.coalesce(f.sum(name), f.lit(0)).alias(name)


def ratio(above: Column, below: Column) -> Column:
    """Return a quotient; null where there is nothing to divide by."""
    return f.when(below != 0, above.cast("double") / below)


def near_a_border() -> Column:
    """Tell of a row whether some of what it counts may be counted in the hour beside it.

    A message is counted by the member that routes it and by the leader of its queue, at most
    GRACE_US later, each in rows of intervals of its own.  Needs the hour's start_us and end_us.
    """
    interval_us = f.col("t1") - f.col("t0")
    is_early = f.col("t0") < f.col("start_us") + GRACE_US + 2 * interval_us
    return is_early | (f.col("t1") > f.col("end_us") - GRACE_US)
