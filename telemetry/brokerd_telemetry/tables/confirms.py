"""8.11 confirm_1h: how long publishers wait for their confirms (Q7). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US
from brokerd_telemetry.tables import percentiles
from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The default service level: 100 ms.
TARGET_US = 100_000
_KEY = ("cluster", "window_start", "vhost", "exchange", "user")
_SHARES = {"p50_us": 0.5, "p95_us": 0.95, "p99_us": 0.99, "p999_us": 0.999}


def build(inputs: Inputs) -> DataFrame:
    """Return confirm_1h."""
    rows = inputs.kind("confirm").withColumn("window_start", window("t0", HOUR_US))
    sums = rows.groupBy(*_KEY).agg(
        f.sum("n").alias("n"),
        f.sum("total.sum_us").alias("sum_us"),
        f.max("total.max_us").alias("max_us"),
    )
    merged = percentiles.of(rows, "total", _KEY, _SHARES)
    slow = f.expr(
        "aggregate(total_buckets, 0L, (seen, b) -> seen + "
        f"if(2 * pow({percentiles.GAMMA}, b.bucket) / 2.02 > {TARGET_US}, b.count, 0L))"
    )
    nacks = (
        inputs.kind("exchange")
        .groupBy("cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "exchange")
        .agg(total("nacked"), total("confirmed"))
    )
    return (
        sums.join(merged, list(_KEY), "left")
        .join(nacks, ["cluster", "window_start", "vhost", "exchange"], "left")
        .withColumns(
            {
                "mean_us": ratio(f.col("sum_us"), f.col("n")),
                "over_target": slow,
                "over_target_ratio": ratio(slow, f.col("total_count")),
                "nack_ratio": ratio(f.col("nacked"), f.col("nacked") + f.col("confirmed")),
            }
        )
        .drop("total_count", "confirmed")
    )
