"""8.1 queue_1m, queue_1h, flow_10s: rates, depths and waiting times of queues (Q4). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import FLOW_US, FLOWS, QUEUE_COUNTERS
from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def build_minutes(inputs: Inputs) -> DataFrame:
    """Return queue_1m."""
    minutes = _summary(inputs.minutes).drop("told_until_us", "taken_us")
    return minutes.withColumn("seconds", f.lit(60.0)).transform(_rates)


def build_hours(inputs: Inputs) -> DataFrame:
    """Return queue_1h; rates are over the part of the hour that the cluster was seen in.

    unread_s: how long at its end messages had waited while nobody took any and nobody consumed.
    """
    span = inputs.coverage.select("cluster", "window_start", "seconds", "start_us", "end_us")
    hours = _summary(inputs.hours)
    known = hours.join(f.broadcast(span), ["cluster", "window_start"], "left").transform(_rates)
    # A row that did not come said the same as the last one, whose message has aged since.
    waited_us = f.col("head_age_ms_last") * 1000 + f.col("end_us") - f.col("told_until_us")
    idle_us = f.col("end_us") - f.coalesce("taken_us", "start_us")
    is_left = (f.col("ready_last") > 0) & (f.col("consumers_last") == 0)
    unread_s = f.when(is_left, f.least(waited_us, idle_us) / 1e6).otherwise(0.0)
    return known.withColumn("unread_s", f.coalesce(unread_s, f.lit(0.0))).drop(
        "start_us", "end_us", "told_until_us", "taken_us"
    )


def build_flow(inputs: Inputs) -> DataFrame:
    """Return flow_10s: what clients published, queues took and consumers acknowledged.

    step_s: the members' interval; finer than that it means nothing.
    """
    key = ("cluster", window("t0", FLOW_US).alias("window_start"))
    step = f.max((f.col("t1") - f.col("t0")) / 1e6).alias("step_s")
    nothing = {"published": 0, "enq": 0, "ack": 0}
    queues = flows(inputs.minutes)
    clients = inputs.kind("exchange").groupBy(*key).agg(total("in").alias("published"), step)
    both = queues.unionByName(clients, allowMissingColumns=True).fillna(nothing)
    return both.groupBy("cluster", "window_start").agg(
        *(f.sum(name).alias(name) for name in nothing), f.max("step_s").alias("step_s")
    )


def flows(minutes: DataFrame) -> DataFrame:
    """Return what queues took and consumers settled in each ten seconds of a cluster, as
    build_flow has it.
    """
    tens = f.array(
        *(
            f.struct(
                (f.col("t0") + n * FLOW_US).alias("t0"),
                f.col(f"enq_{n}").alias("enq"),
                f.col(f"ack_{n}").alias("ack"),
            )
            for n in FLOWS
        )
    )
    summed = minutes.groupBy("cluster", "t0").agg(
        *(f.sum(f"{name}_{n}").alias(f"{name}_{n}") for name in ("enq", "ack") for n in FLOWS),
        f.max("step_us").alias("step_us"),
    )
    each = summed.select("cluster", f.inline(tens), (f.col("step_us") / 1e6).alias("step_s"))
    start = window("t0", FLOW_US).alias("window_start")
    return each.where(f.col("enq").isNotNull()).select("cluster", start, "enq", "ack", "step_s")


def _summary(spans: DataFrame) -> DataFrame:
    def last(name: str) -> Column:
        return f.col(f"{name}_last")

    def most(name: str) -> Column:
        return f.col(f"{name}_max")

    return spans.select(
        "cluster", f.timestamp_micros("t0").alias("window_start"), "vhost", "queue", "qtype",
        *(f.col(f"d_{name}").alias(name) for name in QUEUE_COUNTERS),
        f.col("d_gone").alias("gone"),
        last("ready"), last("unacked"), last("ready_bytes"), last("unacked_bytes"),
        last("dl_pending"), last("consumers"), last("head_age_ms"),
        most("c_ack").alias("c_ack_last"),
        most("t1").alias("told_until_us"),
        "taken_us",
        most("ready"), most("ready_bytes"),
        ratio(f.col("ready_us"), f.col("told_us")).alias("ready_avg"),
        ratio(f.col("byte_s"), f.col("told_us") / 1e6).alias("bytes_avg"),
        "byte_s",
        most("head_age_ms").alias("head_age_max_ms"),
        most("dl_pending_age_ms").alias("dl_pending_age_max_ms"),
        "consumers_min",
        most("consumers"),
        most("max_len").alias("max_len"),
        "leaders",
        "rows",
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
