"""8.10 federation_5m, shovel_5m: lag, backlog and health of federation links and shovels (Q6).
PURE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.tables import percentiles
from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW_US = 300_000_000
_KEY = ("cluster", "window_start", "link")


def _share(state: str) -> Column:
    """Return which part of its time a link was in a state, percent."""
    span_us = f.col("t1") - f.col("t0")
    spent = f.sum(f.when(f.col("state") == state, span_us).otherwise(0))
    return ratio(spent * 100, f.sum(span_us)).alias(f"{state}_pct")


def _last(name: str, alias: str | None = None) -> Column:
    return f.max_by(name, "t1").alias(alias or name)


def build_links(inputs: Inputs) -> DataFrame:
    """Return federation_5m."""
    rows = inputs.kind("fed").withColumn("window_start", window("t0", WINDOW_US))
    links = rows.groupBy(*_KEY).agg(
        _last("upstream"),
        _last("vhost"),
        _last("exchange"),
        _last("queue"),
        _last("state", "state_last"),
        _last("err", "err_last"),
        total("in"),
        total("in_bytes"),
        _last("backlog", "backlog_last"),
        total("reconnects"),
        total("drop_maxhops"),
        total("drop_loop"),
        _share("running"),
        _share("blocked"),
        _share("flow"),
    )
    lag = percentiles.of(rows, "lag", _KEY, {"lag_p50_ms": 0.5, "lag_p95_ms": 0.95})
    # RabbitMQ #17429: a link that says it runs while nothing comes and much is waiting.
    # A federated queue's messages wait upstream until somebody consumes here.
    is_exchange = f.coalesce("queue", f.lit("")) == ""
    is_idle = (f.col("running_pct") == 100) & (f.col("in") == 0)
    stuck = is_exchange & is_idle & (f.col("backlog_last") > 0)
    return links.join(lag, list(_KEY), "left").withColumn(
        "is_stuck", f.coalesce(stuck, f.lit(False))
    )


def build_shovels(inputs: Inputs) -> DataFrame:
    """Return shovel_5m; lag_mean_ms is of messages that were stamped, null without any."""
    rows = inputs.kind("shovel").withColumn("window_start", window("t0", WINDOW_US))
    ends = ("shovel", "vhost", "remote", "queue", "exchange", "dest", "dest_queue", "dest_exchange")
    counted = ("in", "in_bytes", "moved", "refused", "reconnects")
    return rows.groupBy(*_KEY).agg(
        *(_last(name) for name in ends),
        _last("state", "state_last"),
        _last("err", "err_last"),
        _last("in_flight", "in_flight_last"),
        *(total(name) for name in counted),
        ratio(f.sum("lag_sum_ms"), f.sum("lag_count")).alias("lag_mean_ms"),
        _share("running"),
        _share("blocked"),
    )
