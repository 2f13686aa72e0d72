"""Each queue's last row, which the next hours' steps begin with (queue_last_1h). PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.columns import steps
from brokerd_telemetry.schema import CARRY_US, HOUR_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is carried from the last row of earlier hours.
CARRIED = ("cluster", *steps.CARRIED)
#: What is carried beside it (8.13).
ACTIVITY = ("first_us", "in_us", "out_us")


def _carried(carry: DataFrame, names: Sequence[str] = CARRIED) -> list[Column]:
    """Return columns of last rows; what an earlier version's job did not know is null."""
    known = set(carry.columns)
    return [
        f.col(name) if name in known else f.lit(None).cast("long").alias(name) for name in names
    ]


def last_rows(groups: DataFrame, carry: DataFrame | None, hours_us: list[int]) -> DataFrame:
    """Return queue_last_1h: each queue's last row at the end of each hour.

    groups: what each group did in each hour (Inputs.groups).  carry: the table's rows before the
    first of these hours; None: there are none.

    first_us: since when the queue is known; in_us, out_us: the end of the last interval in which
    something came, and in which something was taken or went; null if nothing did since then.
    """
    texts = ("node", "vhost", "queue", "qtype", "strategy", "dlx")
    row = f.struct(
        *(
            f.col(name if name in ("cluster", "grp", *texts) else f"{name}_last").alias(name)
            for name in CARRIED
        )
    )
    own = groups.select(
        "cluster", "grp", row.alias("row"), f.col("first_us").alias("t0"),
        f.col("t1_max").alias("t1"), *ACTIVITY,
    )  # fmt: skip
    if carry is not None:
        own = own.unionByName(
            carry.select(
                "cluster", "grp", f.struct(*_carried(carry)).alias("row"), "t0", "t1",
                *_carried(carry, ACTIVITY),
            ).withColumn("first_us", f.coalesce(f.col("first_us"), f.col("t0")))
        )  # fmt: skip
    ends = f.explode(f.array(*(f.lit(hour_us) for hour_us in hours_us))).alias("end_us")
    return (
        own.select("*", ends)
        .where(
            (f.col("t0") < f.col("end_us") + HOUR_US) & (f.col("t1") > f.col("end_us") - CARRY_US)
        )
        .groupBy("cluster", "grp", "end_us")
        .agg(
            f.max_by("row", f.struct(*(f.col(f"row.{name}") for name in steps.ORDER))).alias(
                "last"
            ),
            f.min("first_us").alias("first_us"),
            f.max("in_us").alias("in_us"),
            f.max("out_us").alias("out_us"),
        )
        .select(f.timestamp_micros("end_us").alias("window_start"), "last.*", *ACTIVITY)
    )
