"""8.10 federation_5m: lag, backlog and health of federation links (Q6). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.tables import percentiles
from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW_US = 300_000_000
_KEY = ("cluster", "window_start", "link")


def build(inputs: Inputs) -> DataFrame:
    """Return federation_5m."""
    rows = inputs.kind("fed").withColumn("window_start", window("t0", WINDOW_US))
    span_us = f.col("t1") - f.col("t0")

    def share(state: str) -> DataFrame:
        spent = f.sum(f.when(f.col("state") == state, span_us).otherwise(0))
        return ratio(spent * 100, f.sum(span_us)).alias(f"{state}_pct")

    links = rows.groupBy(*_KEY).agg(
        f.max_by("upstream", "t1").alias("upstream"),
        f.max_by("vhost", "t1").alias("vhost"),
        f.max_by("state", "t1").alias("state_last"),
        f.max_by("err", "t1").alias("err_last"),
        total("in"),
        total("in_bytes"),
        f.max_by("backlog", "t1").alias("backlog_last"),
        total("reconnects"),
        total("drop_maxhops"),
        total("drop_loop"),
        share("running"),
        share("blocked"),
        share("flow"),
    )
    lag = percentiles.of(rows, "lag", _KEY, {"lag_p50_ms": 0.5, "lag_p95_ms": 0.95})
    # RabbitMQ #17429: a link that says it runs while nothing comes and much is waiting.
    stuck = (f.col("running_pct") == 100) & (f.col("in") == 0) & (f.col("backlog_last") > 0)
    return links.join(lag, list(_KEY), "left").withColumn(
        "is_stuck", f.coalesce(stuck, f.lit(False))
    )
