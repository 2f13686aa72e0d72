"""8.15 usage_1h and chargeback_1d: who used what (Q11). PURE.

Ingress is what came into exchanges, not the copies in queues.  Storage is billed to the queue's
vhost (user ""): only messages with a validated user-id could be billed to users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import HOUR_US
from brokerd_telemetry.tables.inputs import Inputs, ratio, total, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUMS = (
    "in", "in_bytes", "out", "out_bytes", "confirmed", "redlv", "blocked_ms", "stored_byte_s",
    "copies", "dl_msgs",
)  # fmt: skip
_KEY = ("cluster", "window_start", "vhost", "user")
#: 1e9 octets held for an hour, in octet-seconds.
GB_HOUR_S = 1e9 * HOUR_US / 1e6


def build_hours(inputs: Inputs) -> DataFrame:
    """Return usage_1h: users, and per vhost (user "") storage, copies and dead letters."""
    hour = window("t0", HOUR_US).alias("window_start")
    users = (
        inputs.kind("principal")
        .groupBy("cluster", hour, "vhost", "user")
        .agg(
            *(total(name) for name in ("in", "in_bytes", "out", "out_bytes", "confirmed")),
            total("redlv"),
            total("blocked_ms"),
        )
    )
    storage = (
        inputs.queues()
        .hours.groupBy("cluster", hour, "vhost")
        .agg(f.sum("byte_s").alias("stored_byte_s"), f.sum("d_dl_out").alias("dl_msgs"))
    )
    copies = inputs.kind("exchange").groupBy("cluster", hour, "vhost").agg(total("copies"))
    shared = storage.join(copies, ["cluster", "window_start", "vhost"], "full").withColumn(
        "user", f.lit("")
    )
    return users.unionByName(shared, allowMissingColumns=True).fillna(0, list(_SUMS))


def build_days(inputs: Inputs) -> DataFrame:
    """Return chargeback_1d from the hours of its day."""
    hours = build_hours(inputs)
    if inputs.usage_before is not None:
        hours = hours.unionByName(_earlier(inputs.usage_before).select(*_KEY, *_SUMS))
    days = (
        hours.withColumn("window_start", f.date_trunc("day", "window_start"))
        .groupBy(*_KEY)
        .agg(*(total(name) for name in _SUMS))
    )
    ingress = days.groupBy("cluster", "window_start", "vhost").agg(f.sum("in").alias("vhost_in"))
    return (
        days.join(ingress, ["cluster", "window_start", "vhost"])
        .withColumns(
            {
                "gb_hours_stored": f.col("stored_byte_s") / GB_HOUR_S,
                "amplification": f.when(
                    f.col("user") == "", ratio(f.col("copies"), f.col("vhost_in"))
                ),
            }
        )
        .drop("vhost_in")
    )


def _earlier(hours: DataFrame) -> DataFrame:
    """Return usage_1h as it is written now; an earlier version's job wrote octet-microseconds."""
    if "stored_byte_us" not in hours.columns:
        return hours
    stored = f.col("stored_byte_us") / 1e6
    if "stored_byte_s" in hours.columns:
        stored = f.coalesce(f.col("stored_byte_s"), stored)
    return hours.withColumn("stored_byte_s", stored)
