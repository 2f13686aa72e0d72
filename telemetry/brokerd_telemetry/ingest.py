"""Verified segments to typed silver files; what is no row goes to quarantine.

design/telemetry.md §7.1, §10, ADR 55.  Spark gives each task some segments; a task is Python,
reads lines as Arrow's columns (lines.py) and writes Parquet; no row is an object anywhere.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
from pyspark.sql import functions as f

from brokerd_telemetry import lines, schema, sinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokerd_telemetry.verify import Segment

#: The directory of a kind's files.
KIND = "kind_of"
#: A task writes what it has when it is so many rows, of all kinds together.
PENDING_ROWS_MAX = 50_000
#: Rows of a part of a file: what a reader has in memory at a time.
GROUP_ROWS = 25_000

_Key = tuple[str, str, int]


@dataclass(slots=True, frozen=True)
class Work:
    """What a task is given: segments, and where to put their rows."""

    number: int
    segments: tuple[tuple[str, lines.Origin], ...]
    staged: Path


def write_silver(
    spark: SparkSession,
    segments: list[Segment],
    limits: tuple[int, Mapping[str, int]],
    out_dir: Path,
    run_id: str,
    parts: int,
) -> tuple[sinks.Files, sinks.Files]:
    """Write rows by cluster, kind and hour; return the new files, and those of bad lines, which
    lie in quarantine.

    limits: the time, and by cluster since when rows may change the tables, in microseconds.
    """
    staged = sinks.staging(out_dir, run_id) / "silver"
    staged.mkdir(parents=True)
    works = [
        Work(number, own, staged) for number, own in enumerate(_shared_out(segments, limits, parts))
    ]
    spark.sparkContext.parallelize(works, len(works)).foreach(write)
    files: sinks.Files = {}
    bad: sinks.Files = {}
    for task in sorted(staged.iterdir()):
        for folder in sorted(task.glob(f"*/{KIND}={schema.BAD_KIND}")):
            own = out_dir / "quarantine" / "rows" / folder.parent.name
            _add(bad, sinks.adopt(out_dir, folder, own, f"run={run_id}"))
        _add(files, sinks.adopt(out_dir, task, out_dir / "silver", f"run={run_id}"))
    return files, bad


def _add(files: sinks.Files, more: sinks.Files) -> None:
    for hour, items in more.items():
        files.setdefault(hour, []).extend(items)


def _shared_out(
    segments: list[Segment], limits: tuple[int, Mapping[str, int]], parts: int
) -> list[tuple[tuple[str, lines.Origin], ...]]:
    """Return the segments of each task: about as many rows each, neighbours in time together."""
    now_us, oldest_us = limits
    ordered = sorted(segments, key=lambda segment: (segment.cluster, segment.hour, segment.path))
    share = sum(segment.rows for segment in segments) / parts
    tasks: list[list[tuple[str, lines.Origin]]] = [[] for _ in range(parts)]
    before = 0
    for segment in ordered:
        origin = lines.Origin(
            (segment.cluster, segment.node, segment.boot, segment.stream),
            segment.first_seq,
            schema.hour_start_us(segment.hour),
            now_us,
            oldest_us.get(segment.cluster, 0),
        )
        tasks[min(int(before / share), parts - 1)].append((segment.file, origin))
        before += segment.rows
    return [tuple(own) for own in tasks if own]


# ---- in a task ------------------------------------------------------------------------------


def write(work: Work) -> None:
    """Write the rows of a task's segments; all its files are there at once, or none.

    Another attempt at it begins anew, and what the one before left is taken by nobody.
    """
    attempt = work.staged.with_name(f"silver-{work.number:05d}-{_attempt()}")
    pending: dict[_Key, list[pyarrow.Table]] = {}
    count = written = 0
    for file, origin in work.segments:
        for kind, hour_us, table in lines.rows_of(gzip.decompress(Path(file).read_bytes()), origin):
            # A kind has half of the columns at most; the others are filled in when it is written.
            used = [name for name in table.column_names if table[name].null_count < len(table)]
            pending.setdefault((origin.identity[0], kind, hour_us), []).append(table.select(used))
            count += len(table)
            if count >= PENDING_ROWS_MAX:
                _write(attempt, f"{work.number:05d}-{written:05d}", pending)
                pending, count, written = {}, 0, written + 1
    _write(attempt, f"{work.number:05d}-{written:05d}", pending)
    final = work.staged / f"{work.number:05d}"
    shutil.rmtree(final, ignore_errors=True)
    if attempt.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        attempt.rename(final)


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


def _write(folder: Path, name: str, pending: dict[_Key, list[pyarrow.Table]]) -> None:
    whole = lines.silver_schema()
    for (cluster, kind, hour_us), tables in pending.items():
        hour = schema.partition_of(schema.hour_of(hour_us))
        target = folder / f"{sinks.CLUSTER}={sinks.encoded(cluster)}" / f"{KIND}={kind}" / hour
        target.mkdir(parents=True, exist_ok=True)
        with pyarrow.parquet.ParquetWriter(
            target / f"part-{name}.parquet", whole, compression="zstd"
        ) as file:
            for group in _groups(tables):
                file.write_table(
                    pyarrow.concat_tables([whole.empty_table(), *group], promote_options="default")
                )


def _groups(tables: list[pyarrow.Table]) -> Iterator[list[pyarrow.Table]]:
    """Yield the tables, about GROUP_ROWS rows together."""
    group: list[pyarrow.Table] = []
    count = 0
    for table in tables:
        group.append(table)
        count += len(table)
        if count >= GROUP_ROWS:
            yield group
            group, count = [], 0
    if group:
        yield group


# ---- back ------------------------------------------------------------------------------------


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
