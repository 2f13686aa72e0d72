"""8.4 unroutable_1h: what found no queue by itself, by exchange, routing key and user (Q2). PURE.

Both ratios count by the one outcome that each message has (design/telemetry.md §13.10): a cycle or
a missing alternate exchange is unroutable, and not caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US
from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COUNTERS = (
    "in", "internal_in", "routed", "ae_routed", "ae_missing", "ae_cycle", "returned", "dropped",
)  # fmt: skip


def build(inputs: Inputs) -> DataFrame:
    """Return unroutable_1h: one row per exchange (rk null) and one per key, user and outcome."""
    hour = window("t0", HOUR_US).alias("window_start")
    exchanges = (
        inputs.kind("exchange")
        .groupBy("cluster", hour, "vhost", "exchange")
        .agg(
            *(total(name) for name in _COUNTERS),
            f.min("t0").alias("first_seen_us"),
            f.max("t1").alias("last_seen_us"),
            *(f.sum(f.col("ae_hops")[i]).alias(f"hops_{i + 1}") for i in range(4)),
        )
        .where(
            f.col("ae_routed")
            + f.col("ae_missing")
            + f.col("ae_cycle")
            + f.col("returned")
            + f.col("dropped")
            > 0
        )
    )
    astray = f.col("returned") + f.col("dropped") + f.col("ae_missing") + f.col("ae_cycle")
    whole = exchanges.withColumns(
        {
            "n": f.col("ae_routed") + astray,
            "outcome": f.lit("all"),
            "unroutable_ratio": ratio(astray, f.col("in") + f.col("internal_in")),
            "ae_catch_ratio": ratio(f.col("ae_routed"), f.col("ae_routed") + astray),
        }
    )
    keys = (
        inputs.kind("unr")
        .groupBy("cluster", hour, "vhost", "exchange", "rk", "user", "outcome")
        .agg(
            f.sum("n").alias("n"),
            f.sum(f.col("err").cast("long")).alias("err"),
            f.min("t0").alias("first_seen_us"),
            f.max("t1").alias("last_seen_us"),
        )
    )
    # What clients lost for want of a binding: dead letters, missing alternates and cycles have
    # findings of their own.
    key = ["cluster", "window_start", "vhost", "exchange"]
    plain = f.col("outcome").isin("returned", "dropped")
    unbound = keys.where(plain).groupBy(*key).agg(f.sum("n").alias("unbound"))
    whole = whole.join(unbound, key, "left").fillna(0, ["unbound"])
    return whole.unionByName(keys, allowMissingColumns=True)
