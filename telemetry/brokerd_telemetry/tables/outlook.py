"""8.7 queue_forecast_1h, 8.8 forecast_score_1h, 8.12 leader_balance_1h, 8.14 settings_coverage_1h:
which queues fill up and how right that was (Q4), whether members lead alike (Q8), which queues lack
limit or dead letter exchange (Q10). PURE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US, QUARTER_US
from brokerd_telemetry.tables.inputs import Inputs, ratio, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_S = 3600.0
#: Quarters of an hour, of four, that must have grown: one burst is no trend.
QUARTERS_MIN = 3


def _waiting() -> Column:
    """Return what counts against a queue's limit, as its last step said."""
    return f.col("ready_last") + f.col("dl_pending_last")


def build_forecast(inputs: Inputs) -> DataFrame:
    """Return queue_forecast_1h: queues with a max-length that grow, and when they will be full.

    net_rate: messages per second that stay, in the quarters of the hour that were told.
    ttf_s, ttf_lo_s, ttf_hi_s: seconds to the limit at the hour's rate, and at the rates of its
    fastest and slowest growing quarter.  Counters tell what came and went exactly; the error is in
    going on as before.
    """
    quarters = inputs.queues().quarters.select(
        "cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "queue",
        f.col("t0").alias("quarter"),
        (f.col("d_enq") - f.col("d_gone")).alias("net"),
        _waiting().alias("level"),
        f.col("max_len_last").alias("max_len"),
    )  # fmt: skip
    grown = f.when(f.col("net") > 0, f.col("net"))
    queues = quarters.groupBy("cluster", "window_start", "vhost", "queue").agg(
        f.sum("net").alias("net"),
        f.count("*").alias("quarters"),
        f.count(grown).alias("quarters_grown"),
        f.max(grown).alias("fastest"),
        f.min(grown).alias("slowest"),
        f.max_by("level", "quarter").alias("level"),
        f.max_by("max_len", "quarter").alias("max_len"),
    )
    quarter_s = QUARTER_US / 1e6
    room = f.greatest(f.col("max_len") - f.col("level"), f.lit(0)).cast("double")
    return (
        queues.where(
            f.col("max_len").isNotNull()
            & (f.col("net") > 0)
            & (f.col("quarters_grown") >= QUARTERS_MIN)
        )
        .withColumns(
            {
                "net_rate": f.col("net") / (f.col("quarters") * quarter_s),
                "ttf_s": room * f.col("quarters") * quarter_s / f.col("net"),
                "ttf_lo_s": room * quarter_s / f.col("fastest"),
                "ttf_hi_s": room * quarter_s / f.col("slowest"),
            }
        )
        .drop("net", "fastest", "slowest")
    )


def build_score(inputs: Inputs) -> DataFrame:
    """Return forecast_score_1h: what was forecast an hour before, against what came of it.

    error: (level_expected - level) / max_len at the hour's end.  outcome: hit, the queue was to be
    full within the hour, and was; false, it was not; missed, it was full although even its fastest
    quarter left more than an hour; else open.
    """
    reported = build_forecast(inputs)
    if inputs.forecasts_before is not None:
        reported = inputs.forecasts_before.select(*reported.columns).unionByName(reported)
    hour = f.expr("INTERVAL 1 HOUR")
    due = reported.select(
        "cluster", (f.col("window_start") + hour).alias("window_start"), "vhost", "queue",
        "max_len", "net_rate", "ttf_s", "ttf_lo_s", "ttf_hi_s",
        f.col("level").alias("level_before"),
    )  # fmt: skip
    reached = inputs.queues().hours.select(
        "cluster", f.timestamp_micros("t0").alias("window_start"), "vhost", "queue",
        _waiting().alias("level"), f.col("waiting_max").alias("level_max"),
    )  # fmt: skip
    expected = f.least(
        f.col("level_before") + f.col("net_rate") * HOUR_S, f.col("max_len").cast("double")
    )
    is_full = f.col("level_max") >= f.col("max_len")
    outcome = (
        f.when((f.col("ttf_s") <= HOUR_S) & is_full, "hit")
        .when(f.col("ttf_s") <= HOUR_S, "false")
        .when((f.col("ttf_lo_s") > HOUR_S) & is_full, "missed")
        .otherwise("open")
    )
    return due.join(reached, ["cluster", "window_start", "vhost", "queue"]).withColumns(
        {
            "level_expected": expected,
            "error": ratio(expected - f.col("level"), f.col("max_len")),
            "outcome": outcome,
        }
    )


def build_balance(inputs: Inputs) -> DataFrame:
    """Return leader_balance_1h: per member the queues that it led last, and what came into them.

    count_ratio, load_ratio: over the mean of all members that told of the hour.
    """
    hour = window("t0", HOUR_US).alias("window_start")
    members = inputs.kind("node").select("cluster", hour, "node").distinct()
    own = (
        inputs.queues()
        .groups.groupBy("cluster", hour, "node")
        .agg(f.count("*").alias("leaders"), f.sum("d_enq_bytes").alias("load_bytes"))
    )
    per = members.join(own, ["cluster", "window_start", "node"], "left").fillna(
        0, ["leaders", "load_bytes"]
    )
    means = per.groupBy("cluster", "window_start").agg(
        f.avg("leaders").alias("mean_leaders"), f.avg("load_bytes").alias("mean_load"),
        f.count("*").alias("members"),
    )  # fmt: skip
    return (
        per.join(f.broadcast(means), ["cluster", "window_start"])
        .withColumn("count_ratio", ratio(f.col("leaders"), f.col("mean_leaders")))
        .withColumn("load_ratio", ratio(f.col("load_bytes"), f.col("mean_load")))
        .drop("mean_leaders", "mean_load")
    )


def build_coverage(inputs: Inputs) -> DataFrame:
    """Return settings_coverage_1h: per vhost how many queues have what, however it was set."""
    hour = f.timestamp_micros("t0").alias("window_start")
    limited = f.col("max_len_last").isNotNull() | f.col("max_bytes_last").isNotNull()
    return (
        inputs.queues()
        .groups.groupBy("cluster", hour, "vhost")
        .agg(
            f.count("*").alias("queues"),
            f.count("dlx").alias("with_dlx"),
            f.count(f.when(limited, 1)).alias("with_limit"),
            f.count("ttl_ms_last").alias("with_ttl"),
            f.count("delivery_limit_last").alias("with_delivery_limit"),
            f.count(f.when(f.col("qtype") == "quorum", 1)).alias("quorum"),
        )
    )
