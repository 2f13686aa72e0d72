"""Verified segments to typed silver rows; what is no row goes to quarantine.

design/telemetry.md §7.1, §10.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from brokerd_telemetry import schema, sinks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from brokerd_telemetry.verify import Segment

FUTURE_US = 300_000_000
#: A quarantined line keeps so much of its text.
LINE_CHARS_MAX = 4096

_SEGMENTS = t.StructType(
    [
        t.StructField("file", t.StringType()),
        *(t.StructField(name, t.StringType()) for name in schema.IDENTITY),
        t.StructField("first_seq", t.LongType()),
        t.StructField("segment_hour_us", t.LongType()),
    ]
)


def rows_of(
    spark: SparkSession, raw_dir: Path, segments: list[Segment], now_us: int, oldest_us: int
) -> DataFrame:
    """Return every line of the segments as a silver row; `error` says what is wrong with some.

    oldest_us: rows before are too late to change the tables.
    """
    identity = spark.createDataFrame(
        [
            (
                Path(s.path).name, s.cluster, s.node, s.boot, s.stream, s.first_seq,
                schema.hour_start_us(s.hour),
            )
            for s in segments
        ],
        _SEGMENTS,
    )  # fmt: skip
    lines = (
        spark.read.text([str(raw_dir / segment.path) for segment in segments])
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
    error = _error(now_us, oldest_us)
    is_own = f.col("seq").isNull() | (f.col("seq") >= f.col("first_seq"))
    return (
        parsed.select(
            "row.*", *schema.IDENTITY, "first_seq", "segment_hour_us", "value", "position"
        )
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


def _error(now_us: int, oldest_us: int) -> Column:
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
        .when(f.col("t0") < oldest_us, "late")
    )


def write_silver(frame: DataFrame, out_dir: Path, run_id: str, parts: int) -> sinks.Files:
    """Write silver by kind and hour; move the bad lines to quarantine; return the new files."""
    hour = f.timestamp_micros("hour_us")
    (
        frame.withColumns(
            {
                "kind_of": f.when(f.col("error").isNotNull(), f.lit(schema.BAD_KIND)).otherwise(
                    f.col("k")
                ),
                "dt": f.date_format(hour, "yyyy-MM-dd"),
                "hh": f.date_format(hour, "HH"),
                "run": f.lit(run_id),
            }
        )
        .select(*(field.name for field in schema.SILVER.fields), "kind_of", "dt", "hh", "run")
        .coalesce(parts)
        .write.mode("append")
        .partitionBy("kind_of", "dt", "hh", "run")
        .parquet(str(out_dir / "silver"))
    )
    bad = out_dir / "silver" / f"kind_of={schema.BAD_KIND}"
    for path in sorted(bad.rglob("*.parquet")):
        if f"run={run_id}" in path.parts:
            target = out_dir / "quarantine" / "rows" / path.relative_to(bad)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    return sinks.new_files(out_dir, out_dir / "silver", f"run={run_id}")


def read_silver(spark: SparkSession, out_dir: Path, paths: list[str]) -> DataFrame:
    """Return silver rows of some files; none gives an empty frame."""
    if not paths:
        return spark.createDataFrame([], schema.SILVER)
    return spark.read.schema(schema.SILVER).parquet(*(str(out_dir / path) for path in paths))
