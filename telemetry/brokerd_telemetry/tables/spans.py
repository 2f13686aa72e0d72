"""What each queue did in each minute, of its steps (Q1, Q4, Q8, Q9, Q11). PURE.

Most tables are sums and last levels of queues over minutes, quarters, hours and days.  All are made
of these rows, which are a sixth of the steps where members tell every ten seconds.  Here nothing
but numbers is added up, so that the sums lie in a hash table: what is text is part of the key, and
a minute in which it changes has a row for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import QUEUE_COUNTERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_US = 60_000_000
#: What is text, and may change.
_TEXTS = ("node", "qtype", "strategy", "dlx")
KEY = ("cluster", "vhost", "queue", "grp", *_TEXTS, "t0")
_SUMS = (
    *(f"d_{name}" for name in QUEUE_COUNTERS), "d_gone", "enq", "ready_us", "byte_us",
)  # fmt: skip
_LASTS = (
    "ready", "unacked", "ready_bytes", "unacked_bytes", "dl_pending", "consumers", "head_age_ms",
    "depth", "max_len", "max_bytes", "ttl_ms", "delivery_limit",
)  # fmt: skip
_MAXIMA = (
    "c_ack", "t1", "ready", "ready_bytes", "head_age_ms", "dl_pending_age_ms", "consumers",
    "max_len",
)  # fmt: skip


def of(steps: DataFrame) -> DataFrame:
    """Return one row per queue, minute (t0 is its start) and texts.

    first_nr, last_nr: the places of its first and last step among all of the queue; `<level>_last`
    is what the last one said, start_depth and start_pending what was before the first.
    `<level>_max`, consumers_min, waiting_max (ready and pending letters): over the steps.
    taken_us: the end of the last step that delivered something.  told_us, consumed_us, consumer_us,
    waiting_us, full_us, busy_us: microseconds in all; with consumers, times their number; with
    consumers while messages waited; of that with their prefetch used up; times consumers.
    settled: what was acknowledged in steps in which messages waited.
    """
    span_us = f.col("quiet_us") + f.col("busy_us")
    has = f.col("consumers") > 0
    waits = has & (f.col("ready") > 0)
    full = waits & (f.col("prefetch_sum") > 0) & (f.col("unacked") >= f.col("prefetch_sum"))

    def spent(when: Column, value: Column) -> Column:
        return f.coalesce(f.sum(f.when(when, value)), f.lit(0))

    return steps.groupBy(
        *KEY[:-1], (f.col("t0") - f.pmod(f.col("t0"), f.lit(MINUTE_US))).alias("t0")
    ).agg(
        f.min("nr").alias("first_nr"),
        f.max("nr").alias("last_nr"),
        *(f.sum(name).alias(name) for name in _SUMS),
        *(f.max_by(name, "nr").alias(f"{name}_last") for name in _LASTS),
        *(f.max(name).alias(f"{name}_max") for name in _MAXIMA),
        f.min("consumers").alias("consumers_min"),
        f.max(f.col("ready") + f.col("dl_pending")).alias("waiting_max"),
        f.min_by("start_depth", "nr").alias("start_depth"),
        f.min_by("start_pending", "nr").alias("start_pending"),
        f.max(f.when(f.col("d_dlv") > 0, f.col("t1"))).alias("taken_us"),
        f.min("t0").alias("first_us"),
        f.max(f.when(f.col("d_enq") > 0, f.col("t1"))).alias("in_us"),
        f.max(f.when((f.col("d_dlv") > 0) | (f.col("d_gone") > 0), f.col("t1"))).alias("out_us"),
        f.sum(span_us).alias("told_us"),
        spent(has, span_us).alias("consumed_us"),
        spent(has, span_us * f.col("consumers")).alias("consumer_us"),
        spent(waits, span_us).alias("waiting_us"),
        spent(full, span_us).alias("full_us"),
        spent(waits, span_us * f.col("consumers")).alias("busy_us"),
        f.sum(f.when(waits, f.col("d_ack"))).alias("settled"),
        f.count("*").alias("rows"),
    )


def latest() -> Column:
    """Return what puts the spans of one name in order: one that was declared anew has a higher
    group.
    """
    return f.struct("grp", "last_nr")


def earliest() -> Column:
    """Return the same, by their first steps."""
    return f.struct("grp", "first_nr")
