"""Writes table files and reads back which ones there are (design/telemetry.md §7.1).

Files are only ever added, in directories that carry the run's id; the manifest decides which count.
Spark writes what Spark made, pyarrow the few rows that the driver made itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
from pyspark.sql import functions as f

from brokerd_telemetry.schema import hour_of, partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from brokerd_telemetry.commit import Manifest

Files = dict[str, list[dict[str, Any]]]


def write_table(frame: DataFrame, out_dir: Path, table: str, run_id: str, parts: int) -> Files:
    """Write a gold table by hours of its window_start; return the new files by hour."""
    start = f.col("window_start")
    (
        frame.withColumns(
            {
                "dt": f.date_format(start, "yyyy-MM-dd"),
                "hh": f.date_format(start, "HH"),
                "v": f.lit(run_id),
                "run_id": f.lit(run_id),
            }
        )
        .coalesce(parts)
        .write.mode("append")
        .partitionBy("dt", "hh", "v")
        .parquet(str(out_dir / "gold" / table))
    )
    return new_files(out_dir, out_dir / "gold" / table, f"v={run_id}")


def write_rows(
    rows: list[dict[str, Any]], schema: pyarrow.Schema, out_dir: Path, table: str, run_id: str
) -> Files:
    """Write rows of the driver as a gold table; each has hour_us, which becomes window_start."""
    by_hour: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_hour.setdefault(row["hour_us"], []).append(row)
    whole = pyarrow.schema(
        [
            ("cluster", pyarrow.string()),
            ("window_start", pyarrow.timestamp("us", "UTC")),
            *((field.name, field.type) for field in schema),
            ("run_id", pyarrow.string()),
        ]
    )
    for hour_us, items in by_hour.items():
        folder = out_dir / "gold" / table / partition_of(hour_of(hour_us)) / f"v={run_id}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [{**item, "window_start": hour_us, "run_id": run_id} for item in items]
        columns = {
            field.name: pyarrow.array([line.get(field.name) for line in lines], field.type)
            for field in whole
        }
        pyarrow.parquet.write_table(
            pyarrow.table(columns, schema=whole), folder / "part-00000.parquet", compression="zstd"
        )
    return new_files(out_dir, out_dir / "gold" / table, f"v={run_id}")


def new_files(out_dir: Path, folder: Path, mark: str) -> Files:
    """Return the Parquet files of one run below a folder, by hour, with their row counts."""
    files: Files = {}
    for path in sorted(folder.rglob("*.parquet")):
        parts = path.relative_to(out_dir).parts
        if mark not in parts:
            continue
        values = dict(part.split("=", 1) for part in parts if "=" in part)
        entry = {
            "path": path.relative_to(out_dir).as_posix(),
            "rows": pyarrow.parquet.read_metadata(path).num_rows,
            "bytes": path.stat().st_size,
        }
        files.setdefault(f"{values['dt']}T{values['hh']}", []).append(entry)
    return files


def read_rows(
    out_dir: Path, manifest: Manifest, table: str, hours: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Read the rows of a small table back, for findings and the report."""
    rows: list[dict[str, Any]] = []
    for path in manifest.paths(table, None if hours is None else list(hours)):
        # A path with `dt=` in it would make pyarrow add columns: open the file itself.
        with pyarrow.parquet.ParquetFile(out_dir / path) as file:
            rows += file.read().to_pylist()
    return rows


def views_sql(out_dir: Path, manifest: Manifest) -> bytes:
    """Return views for DuckDB over the live files, from wherever it is read: paths are whole."""
    lines = [
        "-- Views over the live files for DuckDB; made by each run. If the directory was moved,",
        "-- `brokerctl telemetry report --out DIR` writes it anew.",
    ]
    for table in sorted(manifest.tables):
        whole = (str(out_dir.resolve() / path) for path in manifest.paths(table))
        paths = ", ".join("'" + path.replace("'", "''") + "'" for path in whole)
        if paths:
            lines.append(
                f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM "
                f"read_parquet([{paths}], hive_partitioning = false, union_by_name = true);"
            )
    return ("\n".join(lines) + "\n").encode()
