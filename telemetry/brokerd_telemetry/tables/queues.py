"""8.1 queue_1m, queue_1h, flow_10s: rates, depths and waiting times of queues (Q4). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import QUEUE_COUNTERS
from brokerd_telemetry.tables import spans
from brokerd_telemetry.tables.inputs import HOUR_US, Inputs, ratio, total, window
from brokerd_telemetry.tables.spans import FLOW_US, MINUTE_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def build_minutes(inputs: Inputs) -> DataFrame:
    """Return queue_1m."""
    minutes = _summary(inputs.spans, MINUTE_US).drop("told_us", "taken_us")
    return minutes.withColumn("seconds", f.lit(60.0)).transform(_rates)


def build_hours(inputs: Inputs) -> DataFrame:
    """Return queue_1h; rates are over the part of the hour that the cluster was seen in.

    unread_s: how long at its end messages had waited while nobody took any and nobody consumed.
    """
    span = inputs.coverage.select("cluster", "window_start", "seconds", "start_us", "end_us")
    hours = _summary(inputs.spans, HOUR_US)
    known = hours.join(f.broadcast(span), ["cluster", "window_start"], "left").transform(_rates)
    # A row that did not come said the same as the last one, whose message has aged since.
    waited_us = f.col("head_age_ms_last") * 1000 + f.col("end_us") - f.col("told_us")
    idle_us = f.col("end_us") - f.coalesce("taken_us", "start_us")
    is_left = (f.col("ready_last") > 0) & (f.col("consumers_last") == 0)
    unread_s = f.when(is_left, f.least(waited_us, idle_us) / 1e6).otherwise(0.0)
    return known.withColumn("unread_s", f.coalesce(unread_s, f.lit(0.0))).drop(
        "start_us", "end_us", "told_us", "taken_us"
    )


def build_flow(inputs: Inputs) -> DataFrame:
    """Return flow_10s: what clients published, queues took and consumers acknowledged.

    step_s: the members' interval; finer than that it means nothing.
    """
    key = ("cluster", window("t0", FLOW_US).alias("window_start"))
    step = f.max((f.col("t1") - f.col("t0")) / 1e6).alias("step_s")
    nothing = {"published": 0, "enq": 0, "ack": 0}
    queues = spans.flows(inputs.spans)
    clients = inputs.kind("exchange").groupBy(*key).agg(total("in").alias("published"), step)
    both = queues.unionByName(clients, allowMissingColumns=True).fillna(nothing)
    return both.groupBy("cluster", "window_start").agg(
        *(f.sum(name).alias(name) for name in nothing), f.max("step_s").alias("step_s")
    )


def _summary(rows: DataFrame, size_us: int) -> DataFrame:
    def last(name: str) -> Column:
        return f.max_by(f"{name}_last", "last").alias(f"{name}_last")

    def most(name: str) -> Column:
        return f.max(f"{name}_max").alias(f"{name}_max")

    start = window("t0", size_us).alias("window_start")
    return rows.groupBy("cluster", start, "vhost", "queue").agg(
        f.max_by("qtype", "last").alias("qtype"),
        *(f.sum(f"d_{name}").alias(name) for name in QUEUE_COUNTERS),
        f.sum("d_gone").alias("gone"),
        last("ready"), last("unacked"), last("ready_bytes"), last("unacked_bytes"),
        last("dl_pending"), last("consumers"), last("head_age_ms"),
        f.max("c_ack_max").alias("c_ack_last"),
        f.max("t1_max").alias("told_us"),
        f.max("taken_us").alias("taken_us"),
        most("ready"), most("ready_bytes"),
        ratio(f.sum("ready_us"), f.sum("told_us")).alias("ready_avg"),
        ratio(f.sum("byte_s"), f.sum("told_us") / 1e6).alias("bytes_avg"),
        f.sum("byte_s").alias("byte_s"),
        f.max("head_age_ms_max").alias("head_age_max_ms"),
        f.max("dl_pending_age_ms_max").alias("dl_pending_age_max_ms"),
        f.min("consumers_min").alias("consumers_min"),
        most("consumers"),
        f.max("max_len_max").alias("max_len"),
        f.countDistinct("node").alias("leaders"),
        f.sum("rows").alias("rows"),
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
