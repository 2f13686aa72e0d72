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
LIMITS = ("max_len", "max_bytes", "ttl_ms", "delivery_limit")
#: What puts the rows of one queue in order (Raft: a higher term is later).
ORDER = ("term", "t1", "c_enq", "c_ack", "c_dlv", "seq")
#: A queue that nobody told of for a week is forgotten.
CARRY_US = 7 * 24 * HOUR_US


def _with_carry(rows: DataFrame, carry: DataFrame | None) -> DataFrame:
    """Return the queue rows, with the last ones of earlier hours marked as carried."""
    own = rows.select(*CARRIED, *QUEUE_COUNTERS, *LIMITS, f.lit(False).alias("is_carried"))
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
    place: the row's among all of its queue and of others of the name, of which one that was
    declared later has a higher group.  is_unknown: it is not known from where on it counts.
    """
    chained = _chained(_with_carry(rows, carry))
    gone = f.col("d_ack")
    for name in REMOVALS:
        gone = gone + f.col(f"d_{name}")
    depth = f.col("ready") + f.col("unacked")
    since = f.least(f.greatest(f.col("before.t1"), f.col("t0")), f.col("t1"))
    since = f.coalesce(since, f.col("t0"))
    quiet_us = f.greatest(f.coalesce(since - f.col("before.t1"), f.lit(0)), f.lit(0))
    pending = f.col("dl_pending") - f.col("d_dl_out") + f.col("d_dl_confirmed") + f.col("d_dl_lost")
    return (
        chained.withColumns(
            {
                "d_gone": gone,
                "quiet_us": quiet_us,
                "busy_us": f.col("t1") - since,
                # A queue that begins with its birth was empty; of others the start is deduced.
                "start_depth": f.coalesce(
                    f.col("before.ready") + f.col("before.unacked"),
                    f.when(_is_birth(), f.lit(0)).otherwise(depth - f.col("d_enq") + gone),
                ),
                "start_pending": f.coalesce(
                    f.col("before.dl_pending"),
                    f.when(_is_birth(), f.lit(0)).otherwise(pending),
                ),
            }
        )
        .withColumns(
            {
                "ready_us": _area("ready"),
                "byte_s": (_area("ready_bytes") + _area("unacked_bytes")) / 1e6,
                "is_unknown": f.col("before").isNull() & ~_is_birth(),
            }
        )
        .where(~f.col("is_carried"))
    )


def _chained(rows: DataFrame) -> DataFrame:
    """Return rows with their hour, their place, the row before and the differences to it."""
    window = Window.partitionBy("cluster", "grp").orderBy(*ORDER)
    before = f.lag(
        f.struct(
            "t1", "ready", "unacked", "dl_pending", "ready_bytes", "unacked_bytes",
            *(f"c_{name}" for name in QUEUE_COUNTERS),
        )
    ).over(window)  # fmt: skip
    placed = rows.withColumns(
        {
            "hour_us": f.col("t0") - f.pmod(f.col("t0"), f.lit(HOUR_US)),
            "before": before,
            # One number, which unlike a struct can be compared in a hash table.
            "place": f.shiftleft("grp", 32) + f.row_number().over(window),
        }
    )
    return placed.withColumns({f"d_{name}": _step(name) for name in QUEUE_COUNTERS})


def last_rows(spans: DataFrame, carry: DataFrame | None, hours_us: list[int]) -> DataFrame:
    """Return each queue's last row at the end of each hour: the table `queue_last_1h`.

    first_us: since when the queue is known; in_us, out_us: the end of the last interval in which
    something came, and in which something was taken or went; null if nothing did since then.
    """
    hour_us = f.col("t0") - f.pmod(f.col("t0"), f.lit(HOUR_US))
    texts = ("node", "vhost", "queue", "qtype", "strategy", "dlx")
    last = f.max_by(
        f.struct(
            *(
                f.col(name if name in ("cluster", "grp", *texts) else f"{name}_last").alias(name)
                for name in CARRIED
            )
        ),
        "last",
    ).alias("row")
    own = (
        spans.groupBy("cluster", "grp", hour_us.alias("hour_us"))
        .agg(
            last,
            f.min("first_us").alias("t0"),
            f.max("t1_max").alias("t1"),
            f.min("first_us").alias("first_us"),
            f.max("in_us").alias("in_us"),
            f.max("out_us").alias("out_us"),
        )
        .drop("hour_us")
    )
    if carry is not None:
        own = own.unionByName(
            carry.select(
                "cluster", "grp", f.struct(*_carried(carry)).alias("row"), "t0", "t1",
                *_carried(carry, ACTIVITY),
            ).withColumn("first_us", f.coalesce(f.col("first_us"), f.col("t0")))
        )  # fmt: skip
    ends = f.explode(f.array(*(f.lit(hour_us) for hour_us in hours_us))).alias("end_us")
    return (
        own.select("*", ends)
        .where(
            (f.col("t0") < f.col("end_us") + HOUR_US) & (f.col("t1") > f.col("end_us") - CARRY_US)
        )
        .groupBy("cluster", "grp", "end_us")
        .agg(
            f.max_by("row", f.struct(*(f.col(f"row.{name}") for name in ORDER))).alias("last"),
            f.min("first_us").alias("first_us"),
            f.max("in_us").alias("in_us"),
            f.max("out_us").alias("out_us"),
        )
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


def _is_birth() -> Column:
    """Tell of a queue's first row that is known whether it reaches back to the queue's birth."""
    return (f.col("enq") == f.col("c_enq")) & (f.col("dlv") == f.col("c_dlv"))


def _area(name: str) -> Column:
    """Return level times microseconds: a row that did not come had the level of the one before.

    Not whole: a gigabyte for three hours is more octet-microseconds than a 64-bit number holds.
    """
    level = f.col(name).cast("double")
    before = f.coalesce(f.col(f"before.{name}").cast("double"), level)
    return before * f.col("quiet_us") + level * f.col("busy_us")
