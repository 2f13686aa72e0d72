"""8.17 audit_1h, the books: does every message have exactly one fate (Q13). PURE.

One row per equation and object: `expected` and `counted` must be equal.  `residual` is their
difference where it may be judged, else null; a residual that is not 0 is a bug of brokerd.
Queues are judged always, for their counters are replicated with them; exchanges too, for each of
their rows balances by itself.  The copies of a vhost can only be judged for an hour that nothing
was lost in and that no message crossed the border of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.tables.inputs import HOUR_US, Inputs, total, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COLUMNS = (
    "cluster", "window_start", "vhost", "equation", "object", "expected", "counted", "judged",
)  # fmt: skip
_OUTCOMES = ("routed", "ae_routed", "returned", "dropped", "ae_missing", "ae_cycle")
#: A queue whose last row is older than this at the end of the hour may have been deleted.
SILENCE_US = 610_000_000


def build(inputs: Inputs) -> DataFrame:
    """Return audit_1h."""
    equations = [_depths(inputs), _letters(inputs), _lost_rows(inputs), _exchanges(inputs)]
    equations.append(_copies(inputs))
    frame = equations[0]
    for equation in equations[1:]:
        frame = frame.unionByName(equation)
    difference = f.col("counted") - f.col("expected")
    return frame.withColumns(
        {
            "difference": difference,
            "residual": f.when(f.col("judged"), difference),
        }
    )


def _per_queue(inputs: Inputs) -> DataFrame:
    first, last = f.struct("term", "t1", "c_enq", "c_ack"), f.struct("term", "t1", "c_enq", "c_ack")
    return inputs.steps.groupBy(
        "cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "queue", "grp"
    ).agg(
        f.min_by("start_depth", first).alias("start_depth"),
        f.max_by("depth", last).alias("end_depth"),
        f.min_by("start_pending", first).alias("start_pending"),
        f.max_by("dl_pending", last).alias("end_pending"),
        f.sum("d_enq").alias("enq"),
        f.sum("d_gone").alias("gone"),
        f.sum("d_dl_out").alias("dl_out"),
        f.sum("d_dl_confirmed").alias("dl_confirmed"),
        f.sum("d_dl_lost").alias("dl_lost"),
        f.sum("enq").alias("delta_enq"),
        f.min(f.col("strategy") == "at-least-once").alias("at_least_once"),
    )


def _rows(
    frame: DataFrame, equation: str, name: Column, sides: tuple[Column, Column], judged: Column
) -> DataFrame:
    expected, counted = sides
    return frame.select(
        "cluster",
        "window_start",
        "vhost",
        f.lit(equation).alias("equation"),
        name.alias("object"),
        expected.cast("long").alias("expected"),
        counted.cast("long").alias("counted"),
        judged.alias("judged"),
    ).select(*_COLUMNS)


def _depths(inputs: Inputs) -> DataFrame:
    """(ready + unacked) at the end - at the start = enqueued - acknowledged - removed."""
    sides = (f.col("start_depth") + f.col("enq") - f.col("gone"), f.col("end_depth"))
    return _rows(_per_queue(inputs), "queue", f.col("queue"), sides, f.lit(True))


def _letters(inputs: Inputs) -> DataFrame:
    """Letters handed over = confirmed + lost + what more is pending; at-least-once only."""
    queues = _per_queue(inputs).where(f.col("at_least_once"))
    pending = f.col("end_pending") - f.col("start_pending")
    sides = (f.col("dl_out"), f.col("dl_confirmed") + f.col("dl_lost") + pending)
    return _rows(queues, "letters", f.col("queue"), sides, f.lit(True))


def _lost_rows(inputs: Inputs) -> DataFrame:
    """Sum of deltas against the cumulative counter: what kills and changes of leader swallowed."""
    sides = (f.col("enq"), f.col("delta_enq"))
    return _rows(_per_queue(inputs), "rows", f.col("queue"), sides, f.lit(False))


def _per_exchange(inputs: Inputs) -> DataFrame:
    return (
        inputs.kind("exchange")
        .groupBy("cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "exchange")
        .agg(total("in"), total("internal_in"), total("copies"), *(total(o) for o in _OUTCOMES))
    )


def _exchanges(inputs: Inputs) -> DataFrame:
    """What came in, from clients and from inside, has exactly one outcome each."""
    outcomes = f.lit(0)
    for name in _OUTCOMES:
        outcomes = outcomes + f.col(name)
    sides = (f.col("in") + f.col("internal_in"), outcomes)
    return _rows(_per_exchange(inputs), "exchange", f.col("exchange"), sides, f.lit(True))


def _copies(inputs: Inputs) -> DataFrame:
    """Copies that exchanges made = enqueued + refused, in the whole vhost."""
    hour = ["cluster", "window_start", "vhost"]
    made = _per_exchange(inputs).groupBy(*hour).agg(f.sum("copies").alias("copies"))
    taken = inputs.steps.groupBy(
        "cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "grp"
    ).agg(f.sum(f.col("d_enq") + f.col("d_refused")).alias("taken"), f.max("t1").alias("until"))
    queues = taken.groupBy(*hour).agg(f.sum("taken").alias("taken"), f.min("until").alias("until"))
    coverage = inputs.coverage.select(
        "cluster", "window_start", "completeness", "is_island", "end_us"
    )
    both = (
        made.join(queues, hour, "full")
        .join(f.broadcast(coverage), ["cluster", "window_start"], "left")
        .fillna(0, ["copies", "taken"])
    )
    judged = f.coalesce(
        (f.col("completeness") == 1.0)
        & f.col("is_island")
        & (f.col("until") > f.col("end_us") - SILENCE_US),
        f.lit(False),
    )
    return _rows(both, "copies", f.lit("*"), (f.col("copies"), f.col("taken")), judged)
