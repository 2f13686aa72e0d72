"""Verified segments to typed silver files; what is no row goes to quarantine.

design/telemetry.md §7.1, §10, ADR 55.  Spark gives each task some segments; a task is Python,
reads lines as Arrow's columns (columns/lines.py) and writes Parquet; no row is an object anywhere.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
from pyspark.sql import functions as f

from brokerd_telemetry import progress, schema, sinks
from brokerd_telemetry.columns import lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokerd_telemetry.verify import Segment

#: The directory of a kind's files.
KIND = "kind_of"
#: Rows, of all kinds together, at which a task writes what it has.
PENDING_ROWS_MAX = 50_000
#: What is less waits, if it can, for more rows of its file.
FILE_ROWS_MIN = 5_000
#: Rows of a piece of a file: what a reader has in memory at a time.
GROUP_ROWS = 10_000

#: Rows of a time beyond have no sense, and no clock is taken from them.
LEAD_US_MAX = 48 * schema.HOUR_US

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
    say: Callable[[str], None],
) -> tuple[sinks.Files, sinks.Files]:
    """Write rows by cluster, kind and hour; return the new files, and those of bad lines, which
    lie in quarantine.  say: told how far it is.

    limits: the time, and by cluster since when rows may change the tables, in microseconds.
    """
    staged = sinks.staging(out_dir, run_id) / "silver"
    staged.mkdir(parents=True)
    works = [
        Work(number, own, staged) for number, own in enumerate(_shared_out(segments, limits, parts))
    ]
    rows = sum(segment.rows for segment in segments)

    def so_far() -> str:
        # Tasks have about as many rows each, and a directory there when they are done.
        return f"{len(os.listdir(staged)) / len(works):.0%} of {rows:,} rows read"

    with progress.reported(say, so_far):
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
    leads = leads_us(segments, now_us)
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
            leads.get(segment.boot, 0),
        )
        tasks[min(int(before / share), parts - 1)].append((segment.file, origin))
        before += segment.rows
    return [tuple(own) for own in tasks if own]


def leads_us(segments: list[Segment], now_us: int) -> dict[str, int]:
    """Return of each boot that tells of what is still to come by how much its clock is at least
    ahead: its rows are not lost for it.

    Those of one that members of an earlier version wrote, or a lone one; others say it themselves.
    """
    leads: dict[str, int] = {}
    for segment in segments:
        lead_us = segment.last_us - now_us
        if schema.GRACE_US < lead_us < LEAD_US_MAX:
            leads[segment.boot] = max(leads.get(segment.boot, 0), lead_us)
    return leads


# ---- in a task ------------------------------------------------------------------------------


def write(work: Work) -> None:
    """Write the rows of a task's segments; all its files are there at once, or none."""
    with sinks.whole(work.staged / f"{work.number:05d}") as folder:
        pending: dict[_Key, list[pyarrow.Table]] = {}
        written = 0
        for key, table in _read(work):
            pending.setdefault(key, []).append(table)
            if _count(pending) >= PENDING_ROWS_MAX:
                # What is not much waits for more of its kind: files that are small cost most.
                most = {key: own for key, own in pending.items() if _rows(own) >= FILE_ROWS_MIN}
                full = most if _count(most) >= PENDING_ROWS_MAX // 2 else pending
                _write(folder, f"{work.number:05d}-{written:05d}", full)
                pending = {key: own for key, own in pending.items() if key not in full}
                written += 1
        _write(folder, f"{work.number:05d}-{written:05d}", pending)


def _rows(tables: list[pyarrow.Table]) -> int:
    return sum(map(len, tables))


def _count(pending: dict[_Key, list[pyarrow.Table]]) -> int:
    return sum(map(_rows, pending.values()))


def _read(work: Work) -> Iterator[tuple[_Key, pyarrow.Table]]:
    fields = lines.Fields()
    for file, origin in work.segments:
        text = gzip.decompress(Path(file).read_bytes())
        for kind, hour_us, table in lines.rows_of(text, origin, fields):
            # What no row has is filled in when they are written.
            used = [name for name in table.column_names if table[name].null_count < len(table)]
            yield (origin.identity[0], kind, hour_us), table.select(used)


def _write(folder: Path, name: str, pending: dict[_Key, list[pyarrow.Table]]) -> None:
    for (cluster, kind, hour_us), tables in pending.items():
        hour = schema.partition_of(schema.hour_of(hour_us))
        target = folder / f"{sinks.CLUSTER}={sinks.encoded(cluster)}" / f"{KIND}={kind}" / hour
        target.mkdir(parents=True, exist_ok=True)
        rows = _together(tables, kind)
        whole = lines.silver_schema(kind)
        texts = [field.name for field in whole if pyarrow.types.is_string(field.type)]
        # Numbers of queues grow from row to row: differences take less time and room.
        deltas = {
            field.name: "DELTA_BINARY_PACKED"
            for field in whole
            if kind == schema.QUEUE and pyarrow.types.is_integer(field.type)
        }
        with pyarrow.parquet.ParquetWriter(
            target / f"part-{name}.parquet", whole, compression="zstd",
            use_dictionary=texts, column_encoding=deltas or None,
        ) as file:  # fmt: skip
            for begin in range(0, len(rows), GROUP_ROWS):
                group = rows.slice(begin, GROUP_ROWS)
                file.write_table(
                    pyarrow.concat_tables([whole.empty_table(), group], promote_options="default")
                )


def _together(tables: list[pyarrow.Table], kind: str) -> pyarrow.Table:
    """Return tables as one; queues in order of their names, so that who wants the rows of some
    (queue_windows.py) reads no more than the pieces of the file that have them.
    """
    rows = pyarrow.concat_tables(tables, promote_options="default")
    return rows.sort_by("queue") if kind == schema.QUEUE else rows


# ---- back ------------------------------------------------------------------------------------


def kind_of(path: str) -> str:
    """Return which kind of rows a file of silver has."""
    return path.partition(f"/{KIND}=")[2].partition("/")[0]


def of_kind(kind: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of silver's files that have rows of a kind."""
    return [entry for entry in entries if kind_of(entry["path"]) == kind]


def by_kind(spark: SparkSession, paths: list[str]) -> dict[str, DataFrame]:
    """Return silver rows of each kind that has a file; a kind is read from its own files only."""
    files: dict[str, list[str]] = {}
    for path in paths:
        files.setdefault(kind_of(path), []).append(path)
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


def whole_schema() -> pyarrow.Schema:
    """Return all columns that rows of silver may have."""
    return lines.silver_schema()


def read_silver(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Return silver rows of some files; without any, a frame that Spark knows to be empty."""
    if not paths:
        return spark.createDataFrame([], schema.SILVER).where(f.lit(False))
    return spark.read.schema(schema.SILVER).parquet(*paths)
