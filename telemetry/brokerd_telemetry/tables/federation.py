"""8.10 federation_5m, shovel_5m: lag, backlog and health of federation links and shovels (Q6).
PURE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW_US = 300_000_000
#: A link is stuck when nothing has come for so long although something should have.
STUCK_S = 300.0
#: Members ask their upstreams every five seconds how much waits; one that has not answered for so
#: long is silent.
SILENT_MS = 60_000
_KEY = ("cluster", "window_start", "link")


def _share(state: str) -> Column:
    """Return which part of its time a link was in a state, percent."""
    span_us = f.col("t1") - f.col("t0")
    spent = f.sum(f.when(f.col("state") == state, span_us).otherwise(0))
    return ratio(spent * 100, f.sum(span_us)).alias(f"{state}_pct")


def _last(name: str, alias: str | None = None) -> Column:
    return f.max_by(name, "t1").alias(alias or name)


def _stalls(rows: DataFrame) -> DataFrame:
    """Return the rows of links with since when nothing came although something should have.

    RabbitMQ #17429: a link that says it runs while nothing comes and much is waiting.  Also one
    that does not run, whatever it says waits, and one whose upstream does not even answer how much
    waits.  A federated queue's messages wait upstream until somebody consumes here; alarms and
    flow control of this cluster are not the link's doing.
    """
    is_exchange = f.coalesce("queue", f.lit("")) == ""
    is_silent = f.coalesce("backlog_age_ms", f.lit(0)) > SILENT_MS
    is_down = f.col("state").isin("error", "starting")
    is_starved = (f.col("state") == "running") & (
        (is_exchange & (f.col("backlog") > 0)) | is_silent
    )
    is_stalled = (f.coalesce("in", f.lit(0)) == 0) & f.coalesce(is_down | is_starved, f.lit(False))
    by_time = Window.partitionBy("cluster", "link").orderBy("t0", "t1", "seq")
    islands = rows.withColumn("stalled", is_stalled).withColumn(
        "island", f.sum(f.when(f.col("stalled"), 0).otherwise(1)).over(by_time)
    )
    island = Window.partitionBy("cluster", "link", "island")
    began = f.min(f.when(f.col("stalled"), f.col("t0"))).over(island)
    return islands.withColumn(
        "stalled_us", f.when(f.col("stalled"), f.col("t1") - began).otherwise(0)
    )


def build_links(inputs: Inputs) -> DataFrame:
    """Return federation_5m; lag_mean_ms is of messages that were stamped, null without any.

    lag_est_s is by Little's law: what waits over what comes, null while nothing comes.
    """
    rows = _stalls(inputs.kind("fed")).withColumn("window_start", window("t0", WINDOW_US))
    span_us = f.sum(f.col("t1") - f.col("t0"))
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
        ratio(f.sum("lag_sum_ms"), f.sum("lag_count")).alias("lag_mean_ms"),
        ratio(f.max_by("backlog", "t1") * span_us, f.sum("in") * 1_000_000).alias("lag_est_s"),
        (f.max("stalled_us") / 1e6).alias("stalled_s"),
        (f.max_by("stalled_us", "t1") / 1e6).alias("stalled_last_s"),
        total("reconnects"),
        total("drop_maxhops"),
        total("drop_loop"),
        _share("running"),
        _share("blocked"),
        _share("flow"),
    )
    return links.withColumn("is_stuck", f.col("stalled_s") >= STUCK_S)


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
