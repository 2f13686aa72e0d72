"""Percentiles of merged log-bucket histograms (design/telemetry.md §7.3). PURE.

Counts of equal buckets are added up, and the percentile is read from the running sum: never an
average of percentiles.  The merged histogram is kept, so that coarser roll-ups stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GAMMA = 1.02


def of(
    rows: DataFrame, histogram: str, key: Sequence[str], shares: Mapping[str, float]
) -> DataFrame:
    """Return per key the wanted percentiles, `<histogram>_count`, and the merged buckets."""
    buckets = (
        rows.where(f.col(histogram).isNotNull())
        .select(*key, f.explode(f.arrays_zip(f.col(f"{histogram}.i"), f.col(f"{histogram}.c"))))
        .select(*key, f.col("col.i").alias("bucket"), f.col("col.c").alias("count"))
        .groupBy(*key, "bucket")
        .agg(f.sum("count").alias("count"))
    )
    everything = Window.partitionBy(*key)
    running = everything.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
    summed = buckets.withColumns(
        {
            "seen": f.sum("count").over(running),
            "of_all": f.sum("count").over(everything),
            "value": value_of("bucket"),
        }
    )
    return summed.groupBy(*key).agg(
        *(
            f.min(f.when(f.col("seen") >= f.col("of_all") * share, f.col("value"))).alias(name)
            for name, share in shares.items()
        ),
        f.sum("count").alias(f"{histogram}_count"),
        f.sort_array(f.collect_list(f.struct("bucket", "count"))).alias(f"{histogram}_buckets"),
    )


def value_of(bucket: str) -> Column:
    """Return the value that a bucket stands for."""
    raised = f.lit(2.0) * f.pow(f.lit(GAMMA), f.col(bucket)) / f.lit(1 + GAMMA)
    return f.when(f.col(bucket) > 0, raised).otherwise(f.lit(0.0))
