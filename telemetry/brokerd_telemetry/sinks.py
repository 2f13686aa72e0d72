"""Writes table files, and reads the live ones back (design/telemetry.md §7.1).

Files are only ever added, in directories of their cluster and hour that carry the run's id; the
manifest decides which count.  Spark writes what Spark made, pyarrow the few rows that the driver
made itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyspark.sql import functions as f

from brokerd_telemetry.schema import hour_of, partition_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from brokerd_telemetry.manifest import Manifest

Files = dict[str, list[dict[str, Any]]]
#: The directory of a cluster's files; the column `cluster` stays in the files as well.
CLUSTER = "cluster_of"
_SIGNS = (("%", "%25"), ("~", "%7E"), ("/", "~"))


@dataclass(slots=True, frozen=True)
class Live:
    """The live files of some clusters (None: of all), and their rows."""

    out_dir: Path
    manifest: Manifest
    clusters: Collection[str] | None = None
    #: Brings files here that are elsewhere; None: all are here.
    fetch: Callable[[Iterable[str]], None] | None = None

    def of(self, clusters: Collection[str]) -> Live:
        """Return the same for fewer clusters."""
        return Live(self.out_dir, self.manifest, clusters, self.fetch)

    def names(self, table: str) -> list[str]:
        """Return the clusters, in order."""
        return sorted(self.manifest.clusters(table) if self.clusters is None else self.clusters)

    def hours(self, table: str) -> list[str]:
        """Return the hours that a table has rows of, in order."""
        return self.manifest.hours(table, self.clusters)

    def paths(self, table: str, hours: Collection[str] | None = None) -> list[str]:
        """Return a table's paths below the directory."""
        return self.manifest.paths(table, hours, self.clusters)

    def entries(self, table: str, hours: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Return what the manifest says of a table's files."""
        return self.manifest.entries(table, hours, self.clusters)

    def here(self, paths: Collection[str]) -> list[str]:
        """Return where files are, once they are there."""
        if self.fetch is not None:
            self.fetch(paths)
        return [str(self.out_dir / path) for path in paths]

    def files(self, table: str, hours: Collection[str] | None = None) -> list[str]:
        """Return where a table's files are, once they are there."""
        return self.here(self.paths(table, hours))

    def rows(
        self,
        table: str,
        hours: Iterable[str] | None = None,
        columns: Sequence[str] | None = None,
        only: tuple[str, Collection[str]] | None = None,
    ) -> list[dict[str, Any]]:
        """Read rows for findings and the report, which are few.

        columns: which; None: all.  only: a column, and which of its values are wanted.
        """
        return [
            row for part in self._parts(table, hours, columns, only) for row in part.to_pylist()
        ]

    def columns(self, table: str, hours: Iterable[str], columns: pyarrow.Schema) -> pyarrow.Table:
        """Read columns of a table that has many rows."""
        found = [columns.empty_table()]
        for part in self._parts(table, hours, columns.names, None):
            # Spark and Arrow write times each in their own way.
            found.append(part.select(columns.names).cast(columns))
        return pyarrow.concat_tables(found)

    def _parts(
        self,
        table: str,
        hours: Iterable[str] | None,
        columns: Sequence[str] | None,
        only: tuple[str, Collection[str]] | None,
    ) -> Iterator[pyarrow.Table]:
        for path in self.files(table, None if hours is None else list(hours)):
            # A path with `dt=` in it would make pyarrow add columns: open the file itself.
            with pyarrow.parquet.ParquetFile(path) as file:
                found = file.read(columns)
            if only is not None:
                wanted = pyarrow.array(only[1], pyarrow.string())
                found = found.filter(pyarrow.compute.is_in(found[only[0]], wanted))
            yield found


def write_table(frame: DataFrame, out_dir: Path, table: str, run_id: str, parts: int) -> Files:
    """Write a gold table by clusters and hours of window_start; return the new files by hour."""
    start = f.col("window_start")
    staged = staging(out_dir, run_id) / table
    (
        frame.withColumns(
            {
                CLUSTER: cluster_column(),
                "dt": f.date_format(start, "yyyy-MM-dd"),
                "hh": f.date_format(start, "HH"),
                "run_id": f.lit(run_id),
            }
        )
        .coalesce(parts)
        .write.mode("append")
        .partitionBy(CLUSTER, "dt", "hh")
        .parquet(str(staged))
    )
    return adopt(out_dir, staged, out_dir / "gold" / table, f"v={run_id}")


def write_rows(
    rows: list[dict[str, Any]], schema: pyarrow.Schema, out_dir: Path, table: str, run_id: str
) -> Files:
    """Write rows of the driver as a gold table; each has hour_us, which becomes window_start."""
    parts: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault((row["cluster"], row["hour_us"]), []).append(row)
    whole = pyarrow.schema(
        [
            ("cluster", pyarrow.string()),
            ("window_start", pyarrow.timestamp("us", "UTC")),
            *((field.name, field.type) for field in schema),
            ("run_id", pyarrow.string()),
        ]
    )
    staged = staging(out_dir, run_id) / table
    for (cluster, hour_us), items in parts.items():
        folder = staged / f"{CLUSTER}={encoded(cluster)}" / partition_of(hour_of(hour_us))
        folder.mkdir(parents=True, exist_ok=True)
        lines = [{**item, "window_start": hour_us, "run_id": run_id} for item in items]
        columns = {
            field.name: pyarrow.array([line.get(field.name) for line in lines], field.type)
            for field in whole
        }
        pyarrow.parquet.write_table(
            pyarrow.table(columns, schema=whole), folder / "part-00000.parquet", compression="zstd"
        )
    return adopt(out_dir, staged, out_dir / "gold" / table, f"v={run_id}")


def cluster_column() -> Column:
    """Return what a cluster's directory is named by, to be decoded by `cluster_of`: `eu~shop`.

    Spark would write a slash as %2F, which programs and stores decode once, twice or never.
    """
    column = f.col("cluster")
    for plain, sign in _SIGNS:
        column = f.replace(column, f.lit(plain), f.lit(sign))
    return column


def encoded(cluster: str) -> str:
    """Return a cluster's name as one path component, as `cluster_column` has it."""
    for plain, sign in _SIGNS:
        cluster = cluster.replace(plain, sign)
    return quote(cluster, safe="~")


def cluster_of(component: str) -> str:
    """Return the cluster that a path component names."""
    return unquote(unquote(component).replace("~", "/"))


def staging(out_dir: Path, run_id: str) -> Path:
    """Return where a run writes: what is new is known without a walk through all that is old."""
    return out_dir / "work" / run_id


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Give a task of Spark a directory to make, which is `folder` when all in it is written.

    Another attempt at the task begins anew, and what the one before left is never taken.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    number = 0 if context is None else context.taskAttemptId()
    staged = folder.parent
    attempt = staged.with_name(f"{staged.name}-{folder.name}-{number}")
    yield attempt
    shutil.rmtree(folder, ignore_errors=True)
    if attempt.exists():
        staged.mkdir(parents=True, exist_ok=True)
        attempt.rename(folder)


def adopt(out_dir: Path, staged: Path, folder: Path, mark: str) -> Files:
    """Move the new Parquet files of a table to where they stay; return them by hour."""
    files: Files = {}
    for path in sorted(staged.rglob("*.parquet")):
        below = path.relative_to(staged).parent
        target = folder / below / mark / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        checks = path.with_name(f".{path.name}.crc")
        if checks.exists():
            checks.rename(target.with_name(checks.name))
        path.rename(target)
        values = dict(part.split("=", 1) for part in target.parts if "=" in part)
        entry = {
            "path": target.relative_to(out_dir).as_posix(),
            "rows": pyarrow.parquet.read_metadata(target).num_rows,
            "bytes": target.stat().st_size,
            "cluster": cluster_of(values[CLUSTER]),
        }
        files.setdefault(f"{values['dt']}T{values['hh']}", []).append(entry)
    return files


def views_sql(base: str, manifest: Manifest) -> bytes:
    """Return views for DuckDB over the live files, from wherever it is read: paths are whole.

    base: what a manifest's paths lie below, a directory or s3://bucket/prefix.
    """
    lines = [
        "-- Views over the live files for DuckDB; made by each run. If the directory was moved,",
        "-- `brokerctl telemetry report --out DIR` writes it anew.",
    ]
    for table in sorted(manifest.tables):
        whole = (f"{base}/{path}" for path in manifest.paths(table))
        paths = ", ".join("'" + path.replace("'", "''") + "'" for path in whole)
        if paths:
            lines.append(
                f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM "
                f"read_parquet([{paths}], hive_partitioning = false, union_by_name = true);"
            )
    return ("\n".join(lines) + "\n").encode()
