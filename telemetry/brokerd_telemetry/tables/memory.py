"""8.9 memory_episode, blocked_1h and memory_parts_5m: when memory was short, who was blocked, who
had caused it (Q5); what it was used for. PURE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US
from brokerd_telemetry.tables.inputs import Inputs, ratio, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_US = 60_000_000
#: So many connections of an episode are named, those that were blocked longest.
CONNECTIONS_MAX = 100
PARTS_WINDOW_US = 300_000_000


def _is_of_memory() -> Column:
    """Tell of a row whether it is a client that was blocked, not for the disk alone."""
    return (f.col("k") == "throttle") & (f.col("cause") != "disk")


def _episodes(inputs: Inputs) -> DataFrame:
    """Return one row per time that a member's alarm was on and is off again."""
    crossings = inputs.alarms.where(f.col("k") == "wm")
    by_time = Window.partitionBy("cluster", "node", "boot").orderBy("t0", "seq")
    # Gaps and islands: an episode begins where the state leaves 0.
    islands = crossings.withColumn(
        "island", f.sum(f.when(f.col("from") == "0", 1).otherwise(0)).over(by_time)
    )
    return (
        islands.groupBy("cluster", "node", "boot", "island")
        .agg(
            f.min("t0").alias("start_us"),
            f.max(f.when(f.col("to") == "0", f.col("t0"))).alias("end_us"),
            f.max(f.col("to").cast("int")).alias("state"),
            f.max("rss").alias("peak_rss"),
            # What was in force when it began: episodes end by a raised watermark, too.
            f.max(f.when(f.col("from") == "0", f.col("wm_bytes"))).alias("limit_bytes"),
        )
        .where(f.col("end_us").isNotNull())
        .drop("island")
    )


def build_episodes(inputs: Inputs) -> DataFrame:
    """Return the episodes that ended, in the hour of their end; blocked and blame by cluster.

    An alarm of one member blocks publishers on all (R-ALM), so blocked time is the cluster's.
    """
    episodes = _episodes(inputs)
    key = ["cluster", "node", "boot", "start_us"]
    blocked = (
        episodes.alias("e")
        .join(
            inputs.alarms.where(_is_of_memory()).alias("t"),
            (f.col("e.cluster") == f.col("t.cluster"))
            & (f.col("t.t0") > f.col("e.start_us"))
            & (f.col("t.t0") <= f.col("e.end_us") + MINUTE_US),
        )
        .groupBy(*(f.col(f"e.{name}") for name in key))
        .agg(
            (f.sum("t.blocked_ms") / 1000).alias("blocked_conn_s"),
            f.countDistinct("t.conn").alias("conns"),
            f.sort_array(f.collect_set("t.user")).alias("users"),
            f.slice(
                f.sort_array(f.collect_list(f.struct("t.blocked_ms", "t.user", "t.conn")), False),
                1,
                CONNECTIONS_MAX,
            ).alias("connections"),
        )
    )
    inflow = (
        episodes.alias("e")
        .join(
            inputs.kind("principal").alias("p"),
            (f.col("e.cluster") == f.col("p.cluster"))
            & (f.col("p.t1") > f.col("e.start_us") - MINUTE_US)
            & (f.col("p.t0") <= f.col("e.start_us")),
        )
        .groupBy(*(f.col(f"e.{name}") for name in key), "p.vhost", "p.user")
        .agg(f.sum("p.in_bytes").alias("in_bytes"))
    )
    everyone = Window.partitionBy(*key)
    shares = (
        inflow.withColumn("share", ratio(f.col("in_bytes"), f.sum("in_bytes").over(everyone)))
        .where(f.col("share") > 0)
        .groupBy(*key)
        .agg(f.sort_array(f.collect_list(f.struct("share", "vhost", "user")), False).alias("all"))
        .select(*key, f.slice("all", 1, 3).alias("blame"))
    )
    return (
        episodes.join(blocked, key, "left")
        .join(shares, key, "left")
        .withColumns(
            {
                "window_start": window("end_us", HOUR_US),
                "duration_s": (f.col("end_us") - f.col("start_us")) / 1e6,
                "blocked_conn_s": f.coalesce("blocked_conn_s", f.lit(0.0)),
                "conns": f.coalesce("conns", f.lit(0).cast("long")),
            }
        )
    )


def build_blocked(inputs: Inputs) -> DataFrame:
    """Return blocked_1h: whose connections were blocked, for how long and why, in the hour in which
    it ended; spans: the longest of them, from when to when.
    """
    ends = f.col("t1")
    span = f.struct(
        f.col("blocked_ms"), (ends - f.col("blocked_ms") * 1000).alias("start_us"),
        ends.alias("end_us"), f.col("node"), f.col("conn"),
    )  # fmt: skip
    return (
        inputs.kind("throttle")
        .groupBy("cluster", window("t0", HOUR_US).alias("window_start"), "vhost", "user", "cause",
                 "mode")
        .agg(
            f.count("*").alias("times"),
            f.countDistinct("node", "conn").alias("conns"),
            (f.sum("blocked_ms") / 1000).alias("blocked_s"),
            (f.max("blocked_ms") / 1000).alias("longest_s"),
            f.slice(f.sort_array(f.collect_list(span), False), 1, CONNECTIONS_MAX).alias("spans"),
        )
    )  # fmt: skip


def build_parts(inputs: Inputs) -> DataFrame:
    """Return memory_parts_5m: bytes by member and part; nothing of members that do not tell it."""
    parts = inputs.kind("node").select(
        "cluster",
        "node",
        "t1",
        window("t0", PARTS_WINDOW_US).alias("window_start"),
        f.explode("mem_parts").alias("part", "bytes"),
    )
    return parts.groupBy("cluster", "window_start", "node", "part").agg(
        f.max_by("bytes", "t1").alias("bytes_last"), f.max("bytes").alias("bytes_max")
    )
