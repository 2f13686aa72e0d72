"""Verified segments to typed silver rows; what is no row goes to quarantine.

design/telemetry.md §7.1, §10.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
from pyspark.sql import functions as f
from pyspark.sql import types as t

from brokerd_telemetry import schema, sinks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from brokerd_telemetry.verify import Segment

FUTURE_US = 300_000_000
#: The directory of a kind's files.
KIND = "kind_of"
#: A quarantined line keeps so much of its text.
LINE_CHARS_MAX = 4096

_OF_SEGMENT = ("first_seq", "segment_hour_us", "oldest_us")
_SEGMENTS = t.StructType(
    [
        t.StructField("file", t.StringType()),
        *(t.StructField(name, t.StringType()) for name in schema.IDENTITY),
        *(t.StructField(name, t.LongType()) for name in _OF_SEGMENT),
    ]
)


def rows_of(
    spark: SparkSession, segments: list[Segment], now_us: int, oldest_us: Mapping[str, int]
) -> DataFrame:
    """Return every line of the segments as a silver row; `error` says what is wrong with some.

    oldest_us: by cluster; rows before are too late to change the tables.
    """
    identity = spark.createDataFrame(
        [
            (
                Path(s.path).name, s.cluster, s.node, s.boot, s.stream, s.first_seq,
                schema.hour_start_us(s.hour), oldest_us.get(s.cluster, 0),
            )
            for s in segments
        ],
        _SEGMENTS,
    )  # fmt: skip
    lines = (
        spark.read.text([segment.file for segment in segments])
        .select(f.col("value"), f.col("_metadata.file_name").alias("file"))
        .where(~f.col("value").startswith('{"k":"_'))
    )
    options = {"columnNameOfCorruptRecord": schema.CORRUPT, "mode": "PERMISSIVE"}
    parsed = lines.join(f.broadcast(identity), "file").withColumns(
        {
            "row": f.from_json("value", schema.PARSED, options),
            # Not deterministic, so that Spark does not move the condition on seq below from_json,
            # where each line would be parsed three times.
            "position": f.monotonically_increasing_id(),
        }
    )
    error = _error(now_us)
    is_own = f.col("seq").isNull() | (f.col("seq") >= f.col("first_seq"))
    return (
        parsed.select("row.*", *schema.IDENTITY, *_OF_SEGMENT, "value", "position")
        .where(is_own & (f.col("position") >= 0))
        .withColumn("error", error)
        .withColumn(
            "line", f.when(f.col("error").isNotNull(), f.substring("value", 1, LINE_CHARS_MAX))
        )
        .withColumn(
            "hour_us",
            f.when(f.col("error").isNull(), f.col("t0")).otherwise(f.col("segment_hour_us")),
        )
    )


def _error(now_us: int) -> Column:
    """Return what is wrong with a row: parse, key, kind, range, future, late; null if nothing."""
    missing = f.lit(False)
    for kind, names in schema.REQUIRED.items():
        if names:
            lacks = reduce(or_, (f.col(name).isNull() for name in names))
            missing = missing | ((f.col("k") == kind) & lacks)
    times = f.col("t0").isNull() | f.col("t1").isNull() | f.col("seq").isNull()
    return (
        f.when(f.col(schema.CORRUPT).isNotNull(), "parse")
        .when(f.col("k").isNull() | times, "key")
        .when(~f.col("k").isin(*schema.REQUIRED), "kind")
        .when(missing, "key")
        .when((f.col("t1") < f.col("t0")) | (f.col("t0") < 0), "range")
        .when(f.col("t1") > now_us + FUTURE_US, "future")
        .when(f.col("t0") < f.col("oldest_us"), "late")
    )


def write_silver(
    frame: DataFrame, out_dir: Path, run_id: str, parts: int
) -> tuple[sinks.Files, sinks.Files]:
    """Write silver by cluster, kind and hour; return the new files, and those of bad lines, which
    lie in quarantine.
    """
    hour = f.timestamp_micros("hour_us")
    staged = sinks.staging(out_dir, run_id) / "silver"
    (
        frame.withColumns(
            {
                sinks.CLUSTER: sinks.cluster_column(),
                KIND: f.when(f.col("error").isNotNull(), f.lit(schema.BAD_KIND)).otherwise(
                    f.col("k")
                ),
                "dt": f.date_format(hour, "yyyy-MM-dd"),
                "hh": f.date_format(hour, "HH"),
            }
        )
        .select(*(field.name for field in schema.SILVER.fields), sinks.CLUSTER, KIND, "dt", "hh")
        .coalesce(parts)
        .write.mode("append")
        .partitionBy(sinks.CLUSTER, KIND, "dt", "hh")
        .parquet(str(staged))
    )
    quarantine = out_dir / "quarantine" / "rows"
    bad: sinks.Files = {}
    for folder in sorted(staged.glob(f"*/{KIND}={schema.BAD_KIND}")):
        own = quarantine / folder.parent.name
        for hour_name, items in sinks.adopt(out_dir, folder, own, f"run={run_id}").items():
            bad.setdefault(hour_name, []).extend(items)
    return sinks.adopt(out_dir, staged, out_dir / "silver", f"run={run_id}"), bad


def by_kind(spark: SparkSession, paths: list[str]) -> dict[str, DataFrame]:
    """Return silver rows of each kind that has a file; a kind is read from its own files only."""
    files: dict[str, list[str]] = {}
    for path in paths:
        kind = path.partition(f"/{KIND}=")[2].partition("/")[0]
        files.setdefault(kind, []).append(path)
    return {kind: read_silver(spark, own) for kind, own in files.items()}


def count_bad(out_dir: Path, files: sinks.Files) -> dict[tuple[str, str, int], int]:
    """Return how many bad lines each cluster, member and hour has in these files."""
    counts: dict[tuple[str, str, int], int] = {}
    for hour, items in files.items():
        for item in items:
            with pyarrow.parquet.ParquetFile(out_dir / item["path"]) as file:
                nodes = file.read(["node"]).column(0).to_pylist()
            for node in nodes:
                key = (item["cluster"], node, schema.hour_start_us(hour))
                counts[key] = counts.get(key, 0) + 1
    return counts


def read_silver(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Return silver rows of some files; without any, a frame that Spark knows to be empty."""
    if not paths:
        return spark.createDataFrame([], schema.SILVER).where(f.lit(False))
    return spark.read.schema(schema.SILVER).parquet(*paths)
