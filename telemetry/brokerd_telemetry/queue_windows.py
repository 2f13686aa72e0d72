"""Queue rows of silver to what each queue did in each minute and hour, in tasks of Spark.

ADR 55.  A task is given some queues of some clusters and reads their rows as Arrow's columns
(columns/deltas.py); what it writes lies in the run's own directory, is read by the tables, and goes
with the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
from pyspark.sql.pandas.types import from_arrow_schema

from brokerd_telemetry import schema, sinks
from brokerd_telemetry.columns import deltas, last_rows, queue_rows, windows
from brokerd_telemetry.tables.inputs import Queues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: So many rows are in a task's memory at a time, about 4,000 octets each.
PART_ROWS = 40_000
#: Below, a task more, which is a process more, costs more than it gains.
TASK_ROWS_MIN = 20_000
_NAME = "queue"
MINUTES, HOURS, LASTS = "queue_1m", "queue_1h", "queue_last_1h"


@dataclass(slots=True, frozen=True)
class Hour:
    """An hour's rows of a cluster."""

    hour: queue_rows.Hour
    files: tuple[str, ...]
    rows: int


@dataclass(slots=True, frozen=True)
class Part:
    """Queues of a cluster: all rows of a name must be looked at together, hour by hour."""

    cluster: str
    #: In their order.
    hours: tuple[Hour, ...]
    #: Files of the last rows before.
    carry: tuple[str, ...]
    rows: int
    #: The first name, and the first that is not among them; None: all before, all from there on.
    names: tuple[str | None, str | None] = (None, None)


def make(spark: SparkSession, parts: Iterable[Part], staged: Path, run_id: str) -> Queues:
    """Return what each queue of some clusters did; tables are made on the way, and `adopt` returns
    them.
    """
    tasks = shared_out(list(parts), spark.sparkContext.defaultParallelism)
    staged.mkdir(parents=True)
    folders = [staged / f"{number:05d}" for number in range(len(tasks))]
    if tasks:
        works = [(own, folder, run_id) for own, folder in zip(tasks, folders, strict=True)]
        spark.sparkContext.parallelize(works, len(works)).foreach(_write)

    def read(name: str) -> DataFrame:
        kind = _schema_of(name)
        if not folders:
            return spark.createDataFrame(kind.empty_table())
        paths = [str(folder / f"{name}.parquet") for folder in folders]
        return spark.read.schema(from_arrow_schema(kind)).parquet(*paths)

    return Queues(*(read(field.name) for field in fields(Queues)))


def _schema_of(name: str) -> pyarrow.Schema:
    return last_rows.SCHEMA if name == "last_rows" else windows.SCHEMA


def shared_out(parts: list[Part], cores: int) -> list[list[Part]]:
    """Return the parts of each task, to be made one after the other: as many rows for each core."""
    share = max(TASK_ROWS_MIN, -(-sum(part.rows for part in parts) // cores))
    tasks: list[list[Part]] = []
    room = 0
    for part in parts:
        most = max(hour.rows for hour in part.hours)
        for piece in divided(part, max(-(-part.rows // share), -(-most // PART_ROWS))):
            if not tasks or room < piece.rows // 2:
                tasks.append([])
                room = share
            tasks[-1].append(piece)
            room -= piece.rows
    return tasks


def divided(part: Part, count: int) -> list[Part]:
    """Return a cluster's queues in at most `count` parts, in order of their names: about as many
    rows of the hour that has most.
    """
    if count <= 1:
        return [part]
    rows: dict[str, int] = {}
    largest = max(part.hours, key=lambda hour: hour.rows)
    for file in largest.files:
        names = pyarrow.parquet.read_table(file, columns=[_NAME], partitioning=None)[_NAME]
        for found in pyarrow.compute.value_counts(names).to_pylist():
            rows[found["values"]] = rows.get(found["values"], 0) + found["counts"]
    share = sum(rows.values()) / count
    borders: list[str | None] = [None]
    seen = 0
    for name in sorted(rows):
        if seen >= share * len(borders):
            borders.append(name)
        seen += rows[name]
    ends = [*borders[1:], None]
    own = part.rows // len(borders)
    return [replace(part, rows=own, names=names) for names in zip(borders, ends, strict=True)]


def adopt(staged: Path, out_dir: Path, run_id: str) -> dict[str, sinks.Files]:
    """Return the new files of each table: one of each cluster's hour, whichever tasks made it."""
    found = {}
    for table in (MINUTES, HOURS, LASTS):
        pieces: dict[Path, list[Path]] = {}
        for top in sorted(staged.glob(f"*/{table}")):
            for file in sorted(top.rglob("*.parquet")):
                pieces.setdefault(file.parent.relative_to(top), []).append(file)
        for below, files in pieces.items():
            target = sinks.staging(out_dir, run_id) / table / below / "part-00000.parquet"
            if len(files) > 1:
                tables = [pyarrow.parquet.ParquetFile(file).read() for file in files]
                _put(pyarrow.concat_tables(tables), target)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                files[0].rename(target)
        own = sinks.staging(out_dir, run_id) / table
        found[table] = sinks.adopt(out_dir, own, out_dir / "gold" / table, f"v={run_id}")
    return found


# ---- in a task ------------------------------------------------------------------------------


def _write(work: tuple[list[Part], Path, str]) -> None:
    parts, target, run_id = work
    # Arrow's own keeps what was given back: 450 MiB instead of 260, and is no faster here.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    with sinks.whole(target) as folder:
        folder.mkdir(parents=True)
        with contextlib.ExitStack() as files:
            writers = {
                field.name: files.enter_context(
                    pyarrow.parquet.ParquetWriter(
                        folder / f"{field.name}.parquet", _schema_of(field.name), compression="zstd"
                    )
                )
                for field in fields(Queues)
            }
            for number, part in enumerate(parts):
                for hour, made, last in _windows(part):
                    below = Path(
                        f"{sinks.CLUSTER}={sinks.encoded(part.cluster)}",
                        schema.partition_of(schema.hour_of(hour.hour_us)),
                        f"part-{target.name}-{number:05d}.parquet",
                    )
                    reported = last_rows.table(last, part.cluster, hour.hour_us)
                    for name, writer in writers.items():
                        writer.write_table(reported if name == "last_rows" else getattr(made, name))
                    _put(queue_rows.minutes(made.minutes, hour, run_id), folder / MINUTES / below)
                    _put(queue_rows.hours(made.hours, hour, run_id), folder / HOURS / below)
                    of_run = pyarrow.repeat(run_id, len(reported))
                    _put(reported.append_column("run_id", of_run), folder / LASTS / below)


def _put(rows: pyarrow.Table, file: Path) -> None:
    if not len(rows):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    # Times as Spark writes them in all other tables.
    pyarrow.parquet.write_table(
        rows, file, compression="zstd", use_deprecated_int96_timestamps=True
    )


def _windows(part: Part) -> Iterator[tuple[queue_rows.Hour, windows.Windows, pyarrow.Table]]:
    """Yield what the queues did in each hour, which begins with the last rows before it, and their
    last rows at its end.
    """
    carry = _rows(part.carry, part, last_rows.ROWS)
    for hour in part.hours:
        reported = hour.hour
        rows = _rows(hour.files, part, deltas.ROWS)
        own = deltas.in_order(rows, carry.select(deltas.ROWS.names))
        made = windows.of(deltas.of(own, reported.start_us, reported.end_us), part.cluster)
        carry = last_rows.of(own, made.groups, carry, reported.hour_us - schema.CARRY_US)
        yield reported, made, carry


def _rows(files: tuple[str, ...], part: Part, kind: pyarrow.Schema) -> pyarrow.Table:
    """Return what files have of a part's queues, from those of their pieces that may have some."""
    if not files:
        return kind.empty_table()
    begin, end = part.names
    name, wanted = pyarrow.compute.field(_NAME), None
    if begin is not None:
        wanted = name >= begin
    if end is not None:
        wanted = name < end if wanted is None else wanted & (name < end)
    # Given the schema it looks into no file before; what a file does not have is null.
    source = pyarrow.dataset.dataset(list(files), kind, format="parquet")
    return source.to_table(filter=wanted, use_threads=False)
