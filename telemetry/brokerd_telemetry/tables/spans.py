"""What each queue did in each minute, of its steps (Q1, Q4, Q8, Q9, Q11, Q13). PURE.

All that is told of queues is sums and last levels over minutes, quarters, hours and days, and is
made of these rows, which are a sixth of the steps where members tell every ten seconds: the steps
are looked at once, and kept nowhere.  Nothing but numbers is added up, so that the sums lie in a
hash table: what is text is part of the key, and a minute in which it changes has a row for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import QUEUE_COUNTERS, QUEUE_GAUGES
from brokerd_telemetry.tables.inputs import near_a_border, window
from brokerd_telemetry.tables.steps import LIMITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_US = 60_000_000
FLOW_US = 10_000_000
#: What is text, and may change.
_TEXTS = ("node", "qtype", "strategy", "dlx")
_KEY = ("cluster", "vhost", "queue", "grp", *_TEXTS)
_SUMS = (
    *(f"d_{name}" for name in QUEUE_COUNTERS), "d_gone", "enq", "ready_us", "byte_s",
)  # fmt: skip
#: What the last step of a minute said.
LASTS = (
    "t0", "t1", "seq", "term", *QUEUE_GAUGES, *(f"c_{name}" for name in QUEUE_COUNTERS), *LIMITS,
)  # fmt: skip
_MAXIMA = (
    "c_ack", "t1", "ready", "ready_bytes", "head_age_ms", "dl_pending_age_ms", "consumers",
    "max_len", "term", "is_unknown",
)  # fmt: skip
#: Ten seconds of the minute, by number.
FLOWS = range(MINUTE_US // FLOW_US)


def of(steps: DataFrame, coverage: DataFrame) -> DataFrame:
    """Return one row per queue, minute (t0 is its start) and texts.

    first, last: the places of its first and last step; `<name>_last` is what the last one said,
    start_depth and start_pending what was before the first.  `<name>_max`, consumers_min, term_min,
    waiting_max (ready and pending letters): over the steps.  taken_us: the end of the last step
    that delivered something.  told_us, consumed_us, consumer_us, waiting_us, full_us, busy_us:
    microseconds in all; with consumers; times their number; with consumers while messages waited;
    of that with their prefetch used up; times consumers.  settled: what was acknowledged in steps
    in which messages waited.  taken, near_taken: enqueued and refused, and of that near a border of
    the hour.  enq_<n>, ack_<n>: in its n-th ten seconds, null without a step; step_us: its longest.
    """
    in_minute_us = f.pmod(f.col("t0"), f.lit(MINUTE_US))
    taken = f.col("d_enq") + f.col("d_refused")

    def flow(name: str) -> list[Column]:
        slot = f.floor(in_minute_us / FLOW_US)
        column = f.col(f"d_{name}")
        return [f.sum(f.when(slot == n, column)).alias(f"{name}_{n}") for n in FLOWS]

    hours = coverage.select("cluster", "hour_us", "start_us", "end_us")
    return (
        steps.join(f.broadcast(hours), ["cluster", "hour_us"])
        .groupBy(*_KEY, (f.col("t0") - in_minute_us).alias("minute_us"))
        .agg(
            f.min("place").alias("first"),
            f.max("place").alias("last"),
            *(f.sum(name).alias(name) for name in _SUMS),
            *(f.max_by(name, "place").alias(f"{name}_last") for name in LASTS),
            *(f.max(name).alias(f"{name}_max") for name in _MAXIMA),
            f.min("consumers").alias("consumers_min"),
            f.min("term").alias("term_min"),
            f.max(f.col("ready") + f.col("dl_pending")).alias("waiting_max"),
            f.min_by("start_depth", "place").alias("start_depth"),
            f.min_by("start_pending", "place").alias("start_pending"),
            *_times(),
            f.sum(taken).alias("taken"),
            _spent(near_a_border(), taken).alias("near_taken"),
            *flow("enq"),
            *flow("ack"),
            f.max(f.col("t1") - f.col("t0")).alias("step_us"),
            f.count("*").alias("rows"),
        )
        .withColumnRenamed("minute_us", "t0")
    )


def _spent(when: Column, value: Column) -> Column:
    return f.coalesce(f.sum(f.when(when, value)), f.lit(0))


def _times() -> list[Column]:
    """Return when something happened, and how long consumers had what to do."""
    span_us = f.col("quiet_us") + f.col("busy_us")
    has = f.col("consumers") > 0
    waits = has & (f.col("ready") > 0)
    full = waits & (f.col("prefetch_sum") > 0) & (f.col("unacked") >= f.col("prefetch_sum"))
    # Not whole: a product of what a member claims may be too large for that.
    each_us = span_us.cast("double") * f.col("consumers")
    went = (f.col("d_dlv") > 0) | (f.col("d_gone") > 0)

    def end(when: Column) -> Column:
        return f.max(f.when(when, f.col("t1")))

    return [
        end(f.col("d_dlv") > 0).alias("taken_us"),
        f.min("t0").alias("first_us"),
        end(f.col("d_enq") > 0).alias("in_us"),
        end(went).alias("out_us"),
        f.sum(span_us).alias("told_us"),
        _spent(has, span_us).alias("consumed_us"),
        _spent(has, each_us).alias("consumer_us"),
        _spent(waits, span_us).alias("waiting_us"),
        _spent(full, span_us).alias("full_us"),
        _spent(waits, each_us).alias("busy_us"),
        f.sum(f.when(waits, f.col("d_ack"))).alias("settled"),
    ]


def flows(spans: DataFrame) -> DataFrame:
    """Return what queues took and consumers settled in each ten seconds of a cluster, as
    build_flow has it.
    """
    tens = f.array(
        *(
            f.struct(
                (f.col("t0") + n * FLOW_US).alias("t0"),
                f.col(f"enq_{n}").alias("enq"),
                f.col(f"ack_{n}").alias("ack"),
            )
            for n in FLOWS
        )
    )
    summed = spans.groupBy("cluster", "t0").agg(
        *(f.sum(f"{name}_{n}").alias(f"{name}_{n}") for name in ("enq", "ack") for n in FLOWS),
        f.max("step_us").alias("step_us"),
    )
    each = summed.select("cluster", f.inline(tens), (f.col("step_us") / 1e6).alias("step_s"))
    start = window("t0", FLOW_US).alias("window_start")
    return each.where(f.col("enq").isNotNull()).select("cluster", start, "enq", "ack", "step_s")
