"""Which gold tables there are, and what each is made of.  The making is in `tables/`, pure."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark.sql import functions as f

from brokerd_telemetry import ingest, queue_windows, schema, sinks
from brokerd_telemetry.columns import queue_rows
from brokerd_telemetry.tables import (
    audit,
    capacity,
    confirms,
    consumers,
    dead_letters,
    declared,
    fates,
    federation,
    memory,
    outlook,
    queues,
    unroutable,
    usage,
)
from brokerd_telemetry.tables.inputs import Inputs, Queues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokerd_telemetry.sinks import Live

LAST_EXCHANGES = "exchange_last_1h"


@dataclass(slots=True, frozen=True)
class Table:
    """How a table is made."""

    build: Callable[[Inputs], DataFrame]
    #: Without rows of any of these kinds it has no row; none: it may have some all the same.
    kinds: tuple[str, ...] = ()


#: First those that need nothing of queues, which is made meanwhile; then what takes longest.
TABLES: dict[str, Table] = {
    "confirm_1h": Table(confirms.build, ("confirm",)),
    "unroutable_1h": Table(unroutable.build, ("exchange", "unr")),
    "memory_episode": Table(memory.build_episodes, ("wm",)),
    "policy_coverage_1h": Table(declared.build_policies, ("policy", "topo")),
    "capacity_1d": Table(capacity.build_capacity),
    "federation_5m": Table(federation.build_links, ("fed",)),
    "idle_exchanges_1h": Table(declared.build_idle_exchanges),
    "shovel_5m": Table(federation.build_shovels, ("shovel",)),
    "member_5m": Table(capacity.build_members, ("node",)),
    "memory_parts_5m": Table(memory.build_parts, ("node",)),
    "blocked_1h": Table(memory.build_blocked, ("throttle",)),
    "poison_1h": Table(dead_letters.build_poison, ("redel",)),
    "dlx_graph_1h": Table(dead_letters.build_graph, ("dl",)),
    LAST_EXCHANGES: Table(lambda inputs: inputs.exchange_last_rows),
    "audit_1h": Table(audit.build),
    "fates_1h": Table(lambda inputs: fates.build(inputs, audit.per_exchange(inputs))),
    "deadletter_1h": Table(dead_letters.build),
    "chargeback_1d": Table(usage.build_days),
    "usage_1h": Table(usage.build_hours),
    "flow_10s": Table(queues.build_flow),
    "forecast_score_1h": Table(outlook.build_score),
    "leader_balance_1h": Table(outlook.build_balance),
    "queue_forecast_1h": Table(outlook.build_forecast),
    "consumer_use_1h": Table(consumers.build_use),
    "idle_queues_1h": Table(consumers.build_idle),
    "settings_coverage_1h": Table(outlook.build_coverage),
}

DAY_US = 24 * schema.HOUR_US
#: Hours of alarms before the touched ones: an episode lies in the hour of its end.
ALARM_HOURS = 72

_TIME = pyarrow.timestamp("us", "UTC")
_COVERAGE = pyarrow.schema(
    [
        ("cluster", pyarrow.string()),
        ("hour_us", pyarrow.int64()),
        ("window_start", _TIME),
        ("completeness", pyarrow.float64()),
        ("seconds", pyarrow.float64()),
        ("start_us", pyarrow.int64()),
        ("end_us", pyarrow.int64()),
        # What of the hour is not known, in words; "" if nothing.
        ("unseen", pyarrow.string()),
    ]
)
_COMPLETENESS = pyarrow.schema(
    [
        ("cluster", pyarrow.string()),
        ("covered_hour", _TIME),
        ("completeness", pyarrow.float64()),
    ]
)
QUALITY_SCHEMA = pyarrow.schema(
    [
        ("node", pyarrow.string()),
        ("boot", pyarrow.string()),
        ("rows", pyarrow.int64()),
        ("gap_rows", pyarrow.int64()),
        ("bad_rows", pyarrow.int64()),
        ("segments", pyarrow.int64()),
        ("segments_quarantined", pyarrow.int64()),
        ("segments_duplicate", pyarrow.int64()),
        ("rows_overlapping", pyarrow.int64()),
        ("missing_s", pyarrow.float64()),
        ("has_ended", pyarrow.bool_()),
        ("completeness", pyarrow.float64()),
        # What of it is not known, in words; "" if nothing.
        ("why", pyarrow.string()),
        # By how much its clock was off at the most; ahead of the others: more than 0.
        ("skew_s", pyarrow.float64()),
        # By how much it was ahead of the clock of the job's machine when the member was asked last;
        # null: by little, or it was not asked.
        ("job_skew_s", pyarrow.float64()),
        ("is_off", pyarrow.bool_()),
    ]
)
CYCLES_SCHEMA = pyarrow.schema(
    [
        ("vhost", pyarrow.string()),
        ("ring", pyarrow.string()),
        ("queues", pyarrow.list_(pyarrow.string())),
        ("reasons", pyarrow.list_(pyarrow.string())),
        ("n", pyarrow.int64()),
        ("messages", pyarrow.int64()),
        ("rounds", pyarrow.float64()),
    ]
)
FINDINGS_SCHEMA = pyarrow.schema(
    [
        ("id", pyarrow.string()),
        ("rule", pyarrow.string()),
        ("severity", pyarrow.string()),
        ("status", pyarrow.string()),
        ("since", _TIME),
        # Hours in a row with it, and without it: what the next run goes on from.
        ("hours_seen", pyarrow.int64()),
        ("hours_quiet", pyarrow.int64()),
        ("object_type", pyarrow.string()),
        ("vhost", pyarrow.string()),
        ("object", pyarrow.string()),
        ("upstream", pyarrow.string()),
        ("value", pyarrow.float64()),
        ("threshold", pyarrow.float64()),
        ("message", pyarrow.string()),
        ("action", pyarrow.string()),
        ("evidence", pyarrow.string()),
    ]
)


def prepare(
    spark: SparkSession,
    live: Live,
    hours: list[str],
    coverage: list[dict[str, Any]],
    queues: Callable[[], Queues],
) -> Inputs:
    """Return what the tables of these hours are made of.  queues: gives what `queues_of` makes."""

    def loaded(paths: list[str], **options: bool) -> DataFrame | None:
        return spark.read.parquet(*paths, **options) if paths else None

    def load(table: str, wanted: list[str]) -> DataFrame | None:
        return loaded(live.files(table, wanted))

    days = {hour[:10] for hour in hours}
    others = [hour for hour in live.hours("usage_1h") if hour[:10] in days and hour not in hours]
    week_us = schema.hour_start_us(f"{hours[0][:10]}T00") - (capacity.DAYS - 1) * DAY_US
    members = [
        hour
        for hour in live.hours("member_5m")
        if hour >= schema.hour_of(week_us) and hour not in hours
    ]
    hour_before = schema.hour_of(schema.hour_start_us(hours[0]) - schema.HOUR_US)
    covered = _local(
        spark, [{**line, "window_start": line["hour_us"]} for line in coverage], _COVERAGE
    )
    reported = ("cluster", "window_start", "completeness")
    known_hours, known_days = (
        _local(spark, lines, _COMPLETENESS)
        for lines in _completeness(coverage, live.rows("data_quality_1h", others, reported))
    )
    last_exchanges = _last_files(live, LAST_EXCHANGES, hours[0])
    exchanges = loaded([path for paths in last_exchanges.values() for path in paths])
    rows = ingest.by_kind(spark, live.files("silver", hours))
    nothing = ingest.read_silver(spark, [])
    starts_us = [schema.hour_start_us(hour) for hour in hours]
    return Inputs(
        rows=rows,
        nothing=nothing,
        queues=queues,
        exchange_last_rows=_reported(
            declared.exchange_last_rows(
                rows.get("topo", nothing), rows.get("exchange", nothing), exchanges, starts_us
            ),
            covered,
        ),
        coverage=covered,
        known_hours=known_hours,
        known_days=known_days,
        alarms=ingest.read_silver(spark, _alarm_files(live, hours[0])),
        # On the day of an upgrade both versions' columns are there.
        usage_before=loaded(live.files("usage_1h", others), mergeSchema=True),
        forecasts_before=load("queue_forecast_1h", [hour_before]),
        members_before=load("member_5m", members),
    )


def queues_of(
    spark: SparkSession, live: Live, hours: list[str], coverage: list[dict[str, Any]], run_id: str
) -> Queues:
    """Return what queues did in these hours; it lies in the run's directory until `forget`."""
    parts = _parts(live, hours, coverage)
    return queue_windows.make(spark, parts, _windows_dir(live, run_id), run_id)


def _local(spark: SparkSession, lines: list[dict[str, Any]], kind: pyarrow.Schema) -> DataFrame:
    """Return lines of the driver as a relation that Spark has at hand.

    As a list of rows each plan that looks at them would start Python to unpickle them.
    """
    columns = [pyarrow.array([line[field.name] for line in lines], field.type) for field in kind]
    return spark.createDataFrame(pyarrow.table(columns, schema=kind))


def _completeness(
    coverage: list[dict[str, Any]], quality_before: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return how complete each cluster's touched hours are, and the days that they are in.

    quality_before: data_quality_1h of the other hours of these days.
    """
    hours = {(line["cluster"], line["hour_us"]): line["completeness"] for line in coverage}
    before = (((line["cluster"], _start_us(line)), line["completeness"]) for line in quality_before)
    days: dict[tuple[str, int], float] = {}
    for (cluster, hour_us), share in itertools.chain(hours.items(), before):
        day = cluster, hour_us - hour_us % DAY_US
        days[day] = min(days.get(day, share), share)

    def lines(known: Mapping[tuple[str, int], float]) -> list[dict[str, Any]]:
        return [
            {"cluster": cluster, "covered_hour": start_us, "completeness": share}
            for (cluster, start_us), share in known.items()
        ]

    return lines(hours), lines(days)


def _start_us(row: Mapping[str, Any]) -> int:
    return int(row["window_start"].timestamp()) * 1_000_000


def queue_files(live: Live, run_id: str) -> dict[str, sinks.Files]:
    """Return the new files of the tables that were made with the spans."""
    return queue_windows.adopt(_windows_dir(live, run_id), live.out_dir, run_id)


def forget(inputs: Inputs, live: Live, run_id: str) -> None:
    """Give back what `prepare` keeps for the tables."""
    inputs.exchange_last_rows.unpersist()
    shutil.rmtree(_windows_dir(live, run_id))


def _windows_dir(live: Live, run_id: str) -> Path:
    return sinks.staging(live.out_dir, run_id) / "spans"


def _parts(
    live: Live, hours: list[str], coverage: list[dict[str, Any]]
) -> Iterator[queue_windows.Part]:
    """Yield each cluster's queue rows by its hours, and its last ones before."""
    last = _last_files(live, queue_windows.LASTS, hours[0])
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for hour_of in hours:
        for entry in ingest.of_kind(schema.QUEUE, live.entries("silver", [hour_of])):
            found.setdefault((entry["cluster"], hour_of), []).append(entry)
    own: dict[str, list[queue_windows.Hour]] = {}
    for line in coverage:
        entries = found.get((line["cluster"], schema.hour_of(line["hour_us"])), [])
        names = [field.name for field in fields(queue_rows.Hour)]
        hour = queue_rows.Hour(*(line[name] for name in names))
        files = tuple(live.here([entry["path"] for entry in entries]))
        rows = sum(entry["rows"] for entry in entries)
        own.setdefault(line["cluster"], []).append(queue_windows.Hour(hour, files, rows))
    for cluster, reported in own.items():
        carry = tuple(last.get(cluster, ()))
        if carry or any(one.rows for one in reported):
            ordered = tuple(sorted(reported, key=lambda one: one.hour.hour_us))
            yield queue_windows.Part(cluster, ordered, carry, sum(one.rows for one in reported))


def _reported(last: DataFrame, covered: DataFrame) -> DataFrame:
    """Return last rows, only of hours that a cluster told of: those of others are not its own, so
    that it does not matter which clusters are made in one pass.
    """
    hours = f.broadcast(covered.select("cluster", "window_start"))
    return last.join(hours, ["cluster", "window_start"], "left_semi").persist()


def _alarm_files(live: Live, first_hour: str) -> list[str]:
    """Return the silver files of alarms that may last into an hour."""
    first_us = schema.hour_start_us(first_hour) - ALARM_HOURS * schema.HOUR_US
    since = [hour for hour in live.hours("silver") if schema.hour_start_us(hour) >= first_us]
    alarms = [f"/{ingest.KIND}={kind}/" for kind in ("wm", "throttle")]
    paths = live.paths("silver", since)
    return live.here([path for path in paths if any(part in path for part in alarms)])


def _last_files(live: Live, table: str, first_hour: str) -> dict[str, list[str]]:
    """Return the last rows of each cluster's last hour before one: clusters fall silent apart."""
    found: dict[str, list[str]] = {}
    for cluster in live.names(table):
        own = live.of([cluster])
        before = [hour for hour in own.hours(table) if hour < first_hour]
        found[cluster] = own.files(table, before[-1:])
    return found


def make(name: str, inputs: Inputs, hours: list[str]) -> DataFrame | None:
    """Return a table's rows of these hours, with the completeness of each row's hour or day; None:
    it is known to have none.
    """
    kinds = TABLES[name].kinds
    if kinds and inputs.rows.keys().isdisjoint(kinds):
        return None
    frame = TABLES[name].build(inputs)
    if name == LAST_EXCHANGES:
        return frame
    if name == "memory_episode":
        # Alarms of earlier hours were only read for episodes that end in these.
        frame = frame.where(f.col("end_us") >= schema.hour_start_us(hours[0]))
    is_daily = name.endswith("_1d")
    known = inputs.known_days if is_daily else inputs.known_hours
    key = f.col("window_start") if is_daily else f.date_trunc("hour", "window_start")
    return (
        frame.withColumn("covered_hour", key)
        .join(f.broadcast(known), ["cluster", "covered_hour"], "left")
        .drop("covered_hour")
    )


def hours_of(name: str, hours: list[str]) -> list[str]:
    """Return the partitions that a table's rows of these hours lie in."""
    return sorted({f"{hour[:10]}T00" for hour in hours}) if name.endswith("_1d") else hours
