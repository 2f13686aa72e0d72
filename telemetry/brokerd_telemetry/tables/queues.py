"""8.1 queue_1m and queue_1h: rates, depths and waiting times of queues (Q4). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import QUEUE_COUNTERS
from brokerd_telemetry.tables.inputs import HOUR_US, Inputs, ratio, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_US = 60_000_000


def build_minutes(inputs: Inputs) -> DataFrame:
    """Return queue_1m."""
    return _summary(inputs.steps, MINUTE_US).withColumn("seconds", f.lit(60.0)).transform(_rates)


def build_hours(inputs: Inputs) -> DataFrame:
    """Return queue_1h; rates are over the part of the hour that the cluster was seen in."""
    seconds = inputs.coverage.select("cluster", "window_start", "seconds")
    hours = _summary(inputs.steps, HOUR_US)
    return hours.join(f.broadcast(seconds), ["cluster", "window_start"], "left").transform(_rates)


def _summary(steps: DataFrame, size_us: int) -> DataFrame:
    def last(name: str) -> Column:
        return f.max_by(name, f.struct("term", "t1")).alias(f"{name}_last")

    span_us = f.sum(f.col("quiet_us") + f.col("busy_us"))
    return steps.groupBy(
        "cluster", window("t0", size_us).alias("window_start"), "vhost", "queue"
    ).agg(
        f.max_by("qtype", "t1").alias("qtype"),
        *(f.sum(f"d_{name}").alias(name) for name in QUEUE_COUNTERS),
        f.sum("d_gone").alias("gone"),
        last("ready"), last("unacked"), last("ready_bytes"), last("unacked_bytes"),
        last("dl_pending"), last("consumers"),
        f.max("ready").alias("ready_max"),
        f.max("ready_bytes").alias("ready_bytes_max"),
        ratio(f.sum("ready_us"), span_us).alias("ready_avg"),
        ratio(f.sum("byte_us"), span_us).alias("bytes_avg"),
        f.sum("byte_us").alias("byte_us"),
        f.max("head_age_ms").alias("head_age_max_ms"),
        f.max("dl_pending_age_ms").alias("dl_pending_age_max_ms"),
        f.min("consumers").alias("consumers_min"),
        f.max("consumers").alias("consumers_max"),
        f.max("max_len").alias("max_len"),
        f.countDistinct("node").alias("leaders"),
        f.count("*").alias("rows"),
    )  # fmt: skip


def _rates(frame: DataFrame) -> DataFrame:
    seconds = f.col("seconds")
    in_rate, out_rate = ratio(f.col("enq"), seconds), ratio(f.col("gone"), seconds)
    return frame.withColumns(
        {
            "in_rate": in_rate,
            "out_rate": out_rate,
            "net_rate": in_rate - out_rate,
            "redelivery_ratio": ratio(f.col("redlv"), f.col("dlv")),
            # Little's law.
            "wait_est_s": ratio(f.col("ready_avg"), out_rate),
        }
    )
