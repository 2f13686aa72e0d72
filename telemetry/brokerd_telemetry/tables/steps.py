"""From queue rows to exact steps: what happened in a queue between two rows. PURE.

A queue's cumulative counters are replicated with it, so they are the same whoever leads it, and
nothing is counted twice or lost when a leader is killed.  A step is the difference to the row
before in order of (term, time); only the first row that is known of a queue uses its own deltas,
which reach back to the queue's birth if that was when this member began to tell of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from brokerd_telemetry.schema import QUEUE_COUNTERS, QUEUE_GAUGES, REMOVALS
from brokerd_telemetry.tables.inputs import HOUR_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is carried from the last row of earlier hours.
CARRIED = (
    "cluster", "node", "vhost", "queue", "qtype", "grp", "term", "t0", "t1", "seq",
    "strategy", "dlx", *QUEUE_GAUGES, *(f"c_{name}" for name in QUEUE_COUNTERS),
)  # fmt: skip
#: What is carried beside it (8.13).
ACTIVITY = ("first_us", "in_us", "out_us")
#: What else is read of a row.
_OWN = (*QUEUE_COUNTERS, "max_len", "max_bytes", "ttl_ms", "delivery_limit")
#: A queue that nobody told of for a week is forgotten.
CARRY_US = 7 * 24 * HOUR_US


def order() -> list[Column]:
    """Return what puts the rows of one queue in order (Raft: a higher term is later)."""
    return [f.col(name) for name in ("term", "t1", "c_enq", "c_ack", "c_dlv", "seq")]


def _with_carry(rows: DataFrame, carry: DataFrame | None) -> DataFrame:
    """Return the queue rows, with the last ones of earlier hours marked as carried."""
    own = rows.select(*CARRIED, *_OWN, f.lit(False).alias("is_carried"))
    if carry is None:
        return own
    earlier = carry.select(*_carried(carry), f.lit(True).alias("is_carried"))
    return own.unionByName(earlier, allowMissingColumns=True)


def _carried(carry: DataFrame, names: Sequence[str] = CARRIED) -> list[Column]:
    """Return columns of last rows; what an earlier version's job did not know is null."""
    known = set(carry.columns)
    return [
        f.col(name) if name in known else f.lit(None).cast("long").alias(name) for name in names
    ]


def queue_steps(rows: DataFrame, carry: DataFrame | None) -> DataFrame:
    """Return the queue rows with d_<counter>, start_depth, start_pending and areas.

    carry: `queue_last_1h` of the hour before the rows; None before the first.
    nr: the row's place among all of the queue.  is_unknown: it is not known from where on it
    counts.  is_last: the next row of the queue, if any, is of another hour.
    """
    own = _with_carry(rows, carry)
    window = Window.partitionBy("cluster", "grp").orderBy(*order())
    before = f.lag(
        f.struct(
            "t1", "ready", "unacked", "dl_pending", "ready_bytes", "unacked_bytes",
            *(f"c_{name}" for name in QUEUE_COUNTERS),
        )
    ).over(window)  # fmt: skip
    hour_us = f.col("t0") - f.pmod(f.col("t0"), f.lit(HOUR_US))
    chained = own.withColumn("hour_us", hour_us).withColumns(
        {
            "before": before,
            "nr": f.row_number().over(window).cast("long"),
            "is_last": ~f.lead("hour_us").over(window).eqNullSafe(f.col("hour_us")),
        }
    )
    chained = chained.withColumns({f"d_{name}": _step(name) for name in QUEUE_COUNTERS})
    gone = f.col("d_ack")
    for name in REMOVALS:
        gone = gone + f.col(f"d_{name}")
    depth = f.col("ready") + f.col("unacked")
    since = f.least(f.greatest(f.col("before.t1"), f.col("t0")), f.col("t1"))
    since = f.coalesce(since, f.col("t0"))
    quiet_us = f.greatest(f.coalesce(since - f.col("before.t1"), f.lit(0)), f.lit(0))
    return (
        chained.withColumns(
            {
                "d_gone": gone,
                "depth": depth,
                "quiet_us": quiet_us,
                "busy_us": f.col("t1") - since,
                # A queue that begins with its birth was empty; of others the start is deduced.
                "start_depth": f.coalesce(
                    f.col("before.ready") + f.col("before.unacked"),
                    f.when(is_birth(), f.lit(0)).otherwise(depth - f.col("d_enq") + gone),
                ),
                "start_pending": f.coalesce(
                    f.col("before.dl_pending"),
                    f.when(is_birth(), f.lit(0)).otherwise(
                        f.col("dl_pending")
                        - f.col("d_dl_out")
                        + f.col("d_dl_confirmed")
                        + f.col("d_dl_lost")
                    ),
                ),
            }
        )
        .withColumns(
            {
                "ready_us": _area("ready"),
                "byte_us": _area("ready_bytes") + _area("unacked_bytes"),
                "is_unknown": f.col("before").isNull() & ~is_birth(),
            }
        )
        .where(~f.col("is_carried"))
        # They are kept in memory: what nobody reads is not.
        .drop("before", "is_carried", *(name for name in QUEUE_COUNTERS if name != "enq"))
    )


def last_rows(
    steps: DataFrame, active: DataFrame, carry: DataFrame | None, hours_us: list[int]
) -> DataFrame:
    """Return each queue's last row at the end of each hour: the table `queue_last_1h`.

    active: spans.of(steps).  first_us: since when the queue is known; in_us, out_us: the end of the
    last interval in which something came, and in which something was taken or went; null if nothing
    did since then.
    """
    hour_us = f.col("t0") - f.pmod(f.col("t0"), f.lit(HOUR_US))
    did = (
        active.groupBy("cluster", "grp", hour_us.alias("hour_us"))
        .agg(
            f.min("first_us").alias("t0"),
            f.max("t1_max").alias("t1"),
            f.min("first_us").alias("first_us"),
            f.max("in_us").alias("in_us"),
            f.max("out_us").alias("out_us"),
        )
        .drop("hour_us")
    )
    known = steps.where("is_last").select(*CARRIED)
    if carry is not None:
        did = did.unionByName(
            carry.select("cluster", "grp", "t0", "t1", *_carried(carry, ACTIVITY)).withColumn(
                "first_us", f.coalesce(f.col("first_us"), f.col("t0"))
            )
        )
        known = known.unionByName(carry.select(*_carried(carry)))
    said = f.struct(*CARRIED)
    rows = known.select(
        "cluster", "grp", "t0", "t1", said.alias("row"), f.struct(*order()).alias("place")
    )
    ends = f.explode(f.array(*(f.lit(hour_us) for hour_us in hours_us))).alias("end_us")
    return (
        rows.unionByName(did, allowMissingColumns=True)
        .select("*", ends)
        .where(
            (f.col("t0") < f.col("end_us") + HOUR_US) & (f.col("t1") > f.col("end_us") - CARRY_US)
        )
        .groupBy("cluster", "grp", "end_us")
        .agg(
            f.max_by("row", "place").alias("last"),
            f.min("first_us").alias("first_us"),
            f.max("in_us").alias("in_us"),
            f.max("out_us").alias("out_us"),
        )
        .where(f.col("last").isNotNull())
        .select(f.timestamp_micros("end_us").alias("window_start"), "last.*", *ACTIVITY)
    )


def _step(name: str) -> Column:
    now, own = f.col(f"c_{name}"), f.col(name)
    # A counter that the version before did not have began with nothing.
    before = f.coalesce(f.col(f"before.c_{name}"), f.lit(0))
    return (
        f.when(f.col("before").isNull(), f.coalesce(own, f.lit(0)))
        # A queue that lost its data and began anew counts from zero again.
        .when(now < before, now)
        .otherwise(now - before)
    )


def is_birth() -> Column:
    """Tell of a queue's first row that is known whether it reaches back to the queue's birth."""
    return (f.col("enq") == f.col("c_enq")) & (f.col("dlv") == f.col("c_dlv"))


def _area(name: str) -> Column:
    """Return level times microseconds: a row that did not come had the level of the one before."""
    before = f.coalesce(f.col(f"before.{name}"), f.col(name))
    return before * f.col("quiet_us") + f.col(name) * f.col("busy_us")
