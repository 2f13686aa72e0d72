"""8.2 deadletter_1h, 8.3 dlx_graph_1h, 8.5 poison_1h: which queues dead-letter, why, and to where
(Q1), and which messages cannot be handled (Q3). PURE.

How many died of which reason is the queue's own replicated count; what became of at-most-once
letters comes from `dl` events of the member that published them, which a kill may cut short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US
from brokerd_telemetry.tables.inputs import Inputs, ratio, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Reason of dead lettering by the counter of its removals (design/telemetry.md §6.5).
REASONS = {
    "rejected": "rejected",
    "expired": "expired",
    "maxlen_drop": "maxlen",
    "over_limit": "delivery_limit",
    "orphaned": "orphaned",
}
#: A queue without a dead letter exchange drops on purpose: that is reported, and not as lost.
LOST = ("dlx_missing", "unroutable", "cycle_dropped", "dl_lost")
_KEY = ("cluster", "window_start", "vhost", "queue", "reason", "dlx", "strategy", "outcome")


def build(inputs: Inputs) -> DataFrame:
    """Return deadletter_1h."""
    queues = inputs.queues().hours.select(
        "cluster", f.timestamp_micros("t0").alias("window_start"), "vhost", "queue", "dlx",
        "strategy",
        *(f.col(f"d_{counter}").alias(counter) for counter in (*REASONS, "dl_lost", "enq")),
        f.col("dl_pending_last").alias("pending_last"),
        f.col("dl_pending_age_ms_max").alias("pending_age_max_ms"),
    )  # fmt: skip
    died = f.array(
        *(
            f.struct(f.lit(reason).alias("reason"), f.col(counter).alias("n"))
            for counter, reason in REASONS.items()
        ),
        f.struct(f.lit("any").alias("reason"), f.col("dl_lost").alias("n")),
    )
    outcome = (
        f.when(f.col("reason") == "any", f.lit("dl_lost"))
        .when(f.col("dlx").isNull(), f.lit("dropped_no_dlx"))
        .otherwise(f.lit("routed"))
    )
    counted = (
        queues.withColumn("died", f.explode(died))
        .select("*", f.col("died.reason").alias("reason"), f.col("died.n").alias("n"))
        .where(f.col("n") > 0)
        .withColumn("outcome", outcome)
        .select(*_KEY, "n", "enq", "pending_last", "pending_age_max_ms")
    )
    reported = (
        inputs.kind("dl")
        .where(f.col("outcome") != "routed")
        .groupBy("cluster", window("t0", HOUR_US).alias("window_start"), *_KEY[2:])
        .agg(f.sum("n").alias("n"))
    )
    # What events say went astray was counted as routed above: it moves, and is not added.
    astray = reported.groupBy(*_KEY[:5]).agg(f.sum("n").alias("astray"))
    moved = (
        counted.join(astray, list(_KEY[:5]), "left")
        .withColumn(
            "n",
            f.when(
                f.col("outcome") == "routed",
                f.greatest(f.col("n") - f.coalesce(f.col("astray"), f.lit(0)), f.lit(0)),
            ).otherwise(f.col("n")),
        )
        .drop("astray")
        .where(f.col("n") > 0)
    )
    return moved.unionByName(reported, allowMissingColumns=True).withColumns(
        {
            "lost": f.when(f.col("outcome").isin(*LOST), f.col("n")).otherwise(f.lit(0)),
            "share_of_in": ratio(f.col("n"), f.col("enq")),
        }
    )


def build_graph(inputs: Inputs) -> DataFrame:
    """Return dlx_graph_1h (8.3): how many letters went from a queue to a queue, and why."""
    return (
        inputs.kind("dl")
        .where(f.col("outcome") == "routed")
        .withColumn("target", f.explode("targets"))
        .groupBy("cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "queue",
                 "reason", "dlx", "target")
        .agg(f.sum("n").alias("n"))
    )  # fmt: skip


def build_poison(inputs: Inputs) -> DataFrame:
    """Return poison_1h: what was given up for a delivery limit, by queue, fingerprint and end.

    n: messages.  tries_max: how often one of them was handed out at the most.  redeliveries: how
    often they were handed out again, all together.  fp: null for those beyond a member's bound,
    which were not looked at.  ended: what became of their letters, as outcome of deadletter_1h;
    "dropped" without one.
    """
    hour = window("t0", HOUR_US).alias("window_start")
    return (
        inputs.kind("redel")
        .withColumn("fp", f.nullif(f.col("fp"), f.lit("")))
        .groupBy("cluster", hour, "vhost", "queue", "fp", "ended")
        .agg(
            # A sum that no member can have counted is null, and stops nothing.
            f.try_sum("n").alias("n"),
            f.max("tries").alias("tries_max"),
            f.try_sum("redeliveries").alias("redeliveries"),
            f.min("t0").alias("first_seen_us"),
            f.max("t1").alias("last_seen_us"),
        )
    )
