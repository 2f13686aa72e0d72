"""8.17 audit_1h, the books: does every message have exactly one fate (Q13). PURE.

One row per equation and object: `expected` and `counted` must be equal.  `residual` is their
difference where it may be judged, else null; a residual that is not 0 is a bug of brokerd.
Queues are judged always, for their counters are replicated with them; exchanges too, for each of
their rows balances by itself.  The copies of a vhost are judged within what may have been on its
way when the hour began and ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US
from brokerd_telemetry.tables.inputs import Inputs, near_a_border, total, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COLUMNS = (
    "cluster", "window_start", "vhost", "equation", "object", "expected", "counted", "judged",
    "slack", "not_judged",
)  # fmt: skip
_OUTCOMES = ("routed", "ae_routed", "returned", "dropped", "ae_missing", "ae_cycle")
#: A queue whose last row is older than this at the end of the hour may have been deleted.
SILENCE_US = 610_000_000
#: Why the equation `rows` is none that must hold.
_NEVER = "it tells what changes of leader leave out"


def build(inputs: Inputs) -> DataFrame:
    """Return audit_1h."""
    equations = [_queues(inputs), _exchanges(inputs), _copies(inputs)]
    frame = equations[0]
    for equation in equations[1:]:
        frame = frame.unionByName(equation)
    difference = f.col("counted") - f.col("expected")
    beyond = f.greatest(f.abs(difference) - f.col("slack"), f.lit(0)) * f.signum(difference)
    return frame.withColumns(
        {
            "difference": difference,
            "residual": f.when(f.col("judged"), beyond.cast("long")),
        }
    )


def _per_queue(inputs: Inputs) -> DataFrame:
    sums = ("enq", "gone", "dl_out", "dl_confirmed", "dl_lost")
    return inputs.queues().groups.select(
        "cluster", f.timestamp_micros("t0").alias("window_start"), "vhost", "queue",
        "start_depth",
        (f.col("ready_last") + f.col("unacked_last")).alias("end_depth"),
        "start_pending",
        f.col("dl_pending_last").alias("end_pending"),
        *(f.col(f"d_{name}").alias(name) for name in sums),
        f.col("enq").alias("delta_enq"),
        "at_least_once",
    )  # fmt: skip


def _rows(
    frame: DataFrame,
    equation: str,
    name: Column,
    sides: tuple[Column, Column],
    not_judged: Column,
    slack: Column | None = None,
) -> DataFrame:
    """slack: how far the sides may be apart; None: not at all.  not_judged: why; null: it is."""
    expected, counted = sides
    return frame.select(
        "cluster",
        "window_start",
        "vhost",
        f.lit(equation).alias("equation"),
        name.alias("object"),
        expected.cast("long").alias("expected"),
        counted.cast("long").alias("counted"),
        not_judged.isNull().alias("judged"),
        (f.lit(0) if slack is None else slack).cast("long").alias("slack"),
        not_judged.alias("not_judged"),
    ).select(*_COLUMNS)


def _queues(inputs: Inputs) -> DataFrame:
    """Return the three equations of queues, from one look at each.

    queue: (ready + unacked) at the end - at the start = enqueued - acknowledged - removed.
    letters: letters handed over = confirmed + lost + what more is pending; at-least-once only.
    rows: sum of deltas against the cumulative counter: what kills and changes of leader swallowed.
    """
    pending = f.col("end_pending") - f.col("start_pending")
    sides = {
        "queue": (f.col("start_depth") + f.col("enq") - f.col("gone"), f.col("end_depth"), True),
        "letters": (f.col("dl_out"), f.col("dl_confirmed") + f.col("dl_lost") + pending, True),
        "rows": (f.col("enq"), f.col("delta_enq"), False),
    }
    equations = (
        f.struct(
            f.lit(name).alias("equation"),
            f.col("queue").alias("object"),
            expected.cast("long").alias("expected"),
            counted.cast("long").alias("counted"),
            f.lit(is_judged).alias("judged"),
            f.lit(0).cast("long").alias("slack"),
            f.lit(None if is_judged else _NEVER).cast("string").alias("not_judged"),
        )
        for name, (expected, counted, is_judged) in sides.items()
    )
    rows = _per_queue(inputs).select(
        "cluster", "window_start", "vhost", "at_least_once", f.inline(f.array(*equations))
    )
    return rows.where((f.col("equation") != "letters") | f.col("at_least_once")).select(*_COLUMNS)


def per_exchange(inputs: Inputs) -> DataFrame:
    """Return what each exchange counted in each hour."""
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
    return _rows(
        per_exchange(inputs), "exchange", f.col("exchange"), sides, f.lit(None).cast("string")
    )


_HOUR = ("cluster", "window_start", "vhost")


def _placed(inputs: Inputs, rows: DataFrame) -> DataFrame:
    """Return rows with their hour, and from when to when it was told."""
    hour_us = f.col("t0") - f.pmod(f.col("t0"), f.lit(HOUR_US))
    timed = rows.withColumn("window_start", f.timestamp_micros(hour_us))
    return timed.join(f.broadcast(_span(inputs)), ["cluster", "window_start"])


def _span(inputs: Inputs) -> DataFrame:
    return inputs.coverage.select(
        "cluster", "window_start", "completeness", "unseen", "start_us", "end_us"
    )


def _taken(inputs: Inputs) -> DataFrame:
    """Return per vhost what queues took, and what is known of their counting."""
    return (
        inputs.queues()
        .groups.groupBy("cluster", f.timestamp_micros("t0").alias("window_start"), "vhost")
        .agg(
            f.sum("taken").alias("taken"),
            f.sum("near_taken").alias("slack_taken"),
            f.min("t1_max").alias("until"),
            f.max(f.col("term_min") < f.col("term_max")).alias("is_moved"),
            f.max("is_unknown_max").alias("is_unknown"),
        )
    )


def _copies(inputs: Inputs) -> DataFrame:
    """Copies that exchanges made = enqueued + refused, in the whole vhost.

    Judged while the cluster lives: what may be on its way over one of the hour's borders is the
    slack, on either side, and a residual is what is beyond it.  Not judged where something was
    lost, where a queue had an election (what was on its way may be there twice, or not at all), and
    where it is not known from where on a queue counts.  A queue that is gone has not told of its
    last messages: copies may then be more, and not fewer.
    """
    near = f.when(near_a_border(), f.col("copies")).otherwise(0)
    made = (
        _placed(inputs, inputs.kind("exchange"))
        .groupBy(*_HOUR)
        .agg(total("copies"), f.sum(near + f.coalesce("nacked", f.lit(0))).alias("slack_made"))
    )
    members = (
        _placed(inputs, inputs.kind("node"))
        .groupBy(*_HOUR[:2])
        .agg(f.countDistinct("node").alias("members"))
    )
    both = (
        made.join(_taken(inputs), list(_HOUR), "full")
        .join(f.broadcast(_span(inputs)), list(_HOUR[:2]), "left")
        .join(f.broadcast(members), list(_HOUR[:2]), "left")
        .fillna(0, ["copies", "taken", "slack_made", "slack_taken", "members"])
        .fillna(False, ["is_moved", "is_unknown"])
    )
    # One member's counts begin at the same moment, whatever they are of.
    has_start = ~f.col("is_unknown") | (f.col("members") == 1)
    not_judged = (
        f.when(f.col("completeness").isNull(), f.lit("no member told of itself"))
        .when(
            (f.col("completeness") < 1.0) | (f.col("unseen") != ""),
            f.when(f.col("unseen") != "", f.col("unseen")).otherwise("rows are missing"),
        )
        .when(f.col("is_moved"), f.lit("a queue had an election"))
        .when(~has_start, f.lit("a queue was there before any member that told of it"))
    )
    is_gone = f.col("until") <= f.col("end_us") - SILENCE_US
    slack = (
        f.when(f.col("taken") > f.col("copies"), f.col("slack_taken"))
        .when(is_gone, f.col("copies"))
        .otherwise(f.col("slack_made"))
    )
    return _rows(both, "copies", f.lit("*"), (f.col("copies"), f.col("taken")), not_judged, slack)
