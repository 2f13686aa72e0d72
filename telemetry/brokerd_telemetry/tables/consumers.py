"""8.13 idle_queues_1h, consumer_use_1h: which queues are unused (Q9), whether consumers keep up
(Q4). PURE.

Queues tell of themselves every five minutes even when nothing happens, so silence in a queue is
known for certain.  Exchanges do not, and have a table of their own (declared.py).  Users that are
idle do not tell, nor does anybody tell that one was deleted: they are in no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.tables.inputs import IDLE_US, Inputs, ratio

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def build_idle(inputs: Inputs) -> DataFrame:
    """Return idle_queues_1h: queues from which nothing was taken for an hour and more.

    idle_in_s, idle_out_s: at the hour's end, since something came and since something was taken or
    went, or since the queue is known (known_us).
    """
    ends = inputs.coverage.select("cluster", "window_start", "end_us")
    known = inputs.queues().last_rows.join(f.broadcast(ends), ["cluster", "window_start"])
    # One that was not told of in this hour is deleted, or its members are silent.
    reported = known.where(f.col("t1") > f.unix_micros("window_start"))

    def idle_us(name: str) -> Column:
        return f.col("end_us") - f.coalesce(f.col(name), f.col("first_us"))

    return reported.where(idle_us("out_us") >= IDLE_US).select(
        "cluster", "window_start", "vhost", "queue", "qtype", "ready", "unacked", "consumers",
        (f.col("ready_bytes") + f.col("unacked_bytes")).alias("bytes"),
        f.col("first_us").alias("known_us"),
        f.col("in_us").alias("last_in_us"),
        f.col("out_us").alias("last_out_us"),
        (idle_us("in_us") / 1e6).alias("idle_in_s"),
        (idle_us("out_us") / 1e6).alias("idle_out_s"),
    )  # fmt: skip


def build_use(inputs: Inputs) -> DataFrame:
    """Return consumer_use_1h: of queues with consumers, how much of them is used.

    consumer_capacity: RabbitMQ's name for the share of the time with consumers in which nothing
    waited; below 1 consumers or their prefetch are the limit.  full_s: seconds in which messages
    waited and the prefetch of all was used up.  rate_each: messages per second that one consumer
    settles while some wait; consumers_needed: for what came in at that rate; both null where none
    ever waited.
    """

    def seconds(name: str) -> Column:
        return f.col(f"{name}_us") / 1e6

    used = inputs.queues().hours.select(
        "cluster", f.timestamp_micros("t0").alias("window_start"), "vhost", "queue",
        "consumers_max",
        *(seconds(name).alias(f"{name}_s") for name in ("consumed", "consumer", "waiting", "full")),
        *(f.coalesce(f"d_{name}", f.lit(0)).alias(name) for name in ("enq", "ack")),
        ratio(f.col("settled"), seconds("busy")).alias("rate_each"),
        seconds("told").alias("told_s"),
    )  # fmt: skip
    in_rate = ratio(f.col("enq"), f.col("told_s"))
    return used.where(f.col("consumed_s") > 0).withColumns(
        {
            "consumer_capacity": 1 - f.col("waiting_s") / f.col("consumed_s"),
            "consumers_needed": f.ceil(ratio(in_rate, f.col("rate_each"))),
        }
    )
