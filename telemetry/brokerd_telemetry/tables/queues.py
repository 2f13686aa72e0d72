"""8.1 flow_10s: what came and went in each ten seconds (Q4). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import FLOW_US, FLOWS
from brokerd_telemetry.tables.inputs import Inputs, total, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build_flow(inputs: Inputs) -> DataFrame:
    """Return flow_10s: what clients published, queues took and consumers acknowledged.

    step_s: the members' interval; finer than that it means nothing.
    """
    key = ("cluster", window("t0", FLOW_US).alias("window_start"))
    step = f.max((f.col("t1") - f.col("t0")) / 1e6).alias("step_s")
    nothing = {"published": 0, "enq": 0, "ack": 0}
    queues = flows(inputs.queues().flows)
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
