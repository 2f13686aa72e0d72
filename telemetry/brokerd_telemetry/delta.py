"""A log of Delta Lake beside each table, for engines that know nothing of manifests (ADR 59).

Trino, Spark, DuckDB and what else reads Delta tables find the live files and no others.  A log is
brought up to date after the manifest counts: what it lacks is added, what no longer counts is
removed, in one version per table and run; a run that was killed in between is made good by the
next.  Behind `--delta`, by the package deltalake, which is loaded only then.
"""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from brokerd import extras

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    from brokerd_telemetry.sinks import Live

#: What a table's folders are named by (sinks.py); their values stand in the log, and in no file.
PARTITIONS = ["cluster_of", "dt", "hh"]
#: Where a log lies in its table's folder.
LOG = "_delta_log"
#: What is published for Trino.
TRINO = "trino.sql"
#: Rows of many kinds, as they came: no table.
_NONE = "silver"


class DeltaUnavailable(Exception):
    """Logs cannot be kept; the text says what to do about it."""


def check() -> None:
    """Raise DeltaUnavailable where the package is missing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise DeltaUnavailable(
            "--delta needs the package deltalake; install it with: "
            f"{extras.how_to_install('delta')}"
        ) from error


def bring_up_to_date(base: str, live: Live, storage: Callable[[], dict[str, str]]) -> list[str]:
    """Let each table's log name its live files; return the tables that changed.

    base: what a manifest's paths lie below, a directory or s3://bucket/prefix.  storage: how such
    an address is reached, asked for if it is one.
    """
    from deltalake.exceptions import DeltaError

    is_store = "://" in base
    options = storage() if is_store else None
    # A path would be read as a URL.
    place = base if is_store else Path(base).as_uri()
    changed = []
    for table in sorted(live.manifest.tables):
        if table == _NONE:
            continue
        try:
            if _bring(f"{place}/gold/{table}", live, table, options):
                changed.append(table)
        except (DeltaError, OSError) as error:
            raise DeltaUnavailable(
                f"the Delta log of {table} cannot be written: {error}"
            ) from error
    return changed


def _bring(root: str, live: Live, table: str, options: dict[str, str] | None) -> bool:
    import pyarrow
    import pyarrow.parquet
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import TableNotFoundError
    from deltalake.transaction import RemoveAction, create_table_with_add_actions

    wanted = {_below(item["path"], table): item for item in live.entries(table)}
    try:
        log = DeltaTable(root, storage_options=options)
    except TableNotFoundError:
        log = None
    known = set() if log is None else _known(log)
    if not wanted and not known:
        return False
    schema = None
    if wanted:
        # Where tables have got new columns those of the newest run have them.
        (newest,) = live.here([max(wanted.values(), key=lambda item: _run(item["path"]))["path"]])
        schema = Schema.from_arrow(_columns(pyarrow.parquet.read_schema(newest)))
    if log is None or (schema is not None and schema != log.schema()):
        assert schema is not None
        create_table_with_add_actions(
            root,
            schema,
            [_add(path, wanted[path]) for path in sorted(wanted)],
            mode="overwrite",
            partition_by=PARTITIONS,
            name=table,
            description="Made by brokerctl telemetry, which alone writes here.",
            storage_options=options,
        )
        return True
    added = [_add(path, wanted[path]) for path in sorted(wanted.keys() - known)]
    now_ms = time.time_ns() // 1_000_000
    removed = [RemoveAction(path, True, now_ms) for path in sorted(known - wanted.keys())]
    if not added and not removed:
        return False
    log.create_write_transaction(
        [*added, *removed], mode="append", schema=log.schema(), partition_by=PARTITIONS
    )
    return True


def _columns(file: pyarrow.Schema) -> pyarrow.Schema:
    """Return a table's columns by one of its files; times are those of Delta Lake, whichever way
    Spark wrote them.
    """
    import pyarrow

    of_delta = pyarrow.timestamp("us", "UTC")
    own = [
        field.with_type(of_delta) if pyarrow.types.is_timestamp(field.type) else field
        for field in file.remove_metadata()
    ]
    return pyarrow.schema([*own, *(pyarrow.field(name, pyarrow.string()) for name in PARTITIONS)])


def _below(path: str, table: str) -> str:
    return path.removeprefix(f"gold/{table}/")


def _run(path: str) -> str:
    """Return the run that wrote a file; later ones are greater."""
    return path.rpartition("/v=")[2]


def _known(log: DeltaTable) -> set[str]:
    """Return the files that a log names, below its root."""
    return {unquote(path) for path in log.get_add_actions()["path"].to_pylist()}


def _add(path: str, item: dict[str, Any]) -> AddAction:
    from deltalake.transaction import AddAction

    said = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
    values = dict(zip(PARTITIONS, (item["cluster"], said["dt"], said["hh"]), strict=True))
    stats = json.dumps({"numRecords": item["rows"]})
    # The name of a run is when it began, in UTC, and more.
    began_s = calendar.timegm(time.strptime(said["v"].partition("-")[0], "%Y%m%dT%H%M%S"))
    return AddAction(path, item["bytes"], values, began_s * 1000, True, stats)


def trino_sql(base: str, live: Live) -> bytes:
    """Return what makes the tables known to Trino's connector for Delta Lake.

    base: as for `bring_up_to_date`.
    """
    place = base if "://" in base else f"file://{base}"
    lines = [
        "-- For Trino's connector delta_lake with delta.register-table-procedure.enabled=true:",
        "-- `trino --catalog NAME --ignore-errors --file trino.sql` makes tables known; what is in",
        "-- them stays up to date by itself. Again when there are more tables.",
        f"CREATE SCHEMA IF NOT EXISTS brokerd WITH (location = {_quoted(f'{place}/gold')});",
    ]
    for table in sorted(live.manifest.tables):
        if table != _NONE and live.paths(table):
            location = _quoted(f"{place}/gold/{table}")
            lines.append(f"CALL system.register_table('brokerd', '{table}', {location});")
    return ("\n".join(lines) + "\n").encode()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
