"""Which gold tables there are, and what each is made of.  The making is in `tables/`, pure."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark.sql import functions as f
from pyspark.sql import types as t

from brokerd_telemetry import ingest, queue_spans, schema, sinks
from brokerd_telemetry.columns import queue_rows
from brokerd_telemetry.tables import (
    audit,
    capacity,
    confirms,
    consumers,
    dead_letters,
    declared,
    federation,
    lasts,
    memory,
    outlook,
    queues,
    unroutable,
    usage,
)
from brokerd_telemetry.tables.inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokerd_telemetry.sinks import Live

LAST_ROWS = "queue_last_1h"
LAST_EXCHANGES = "exchange_last_1h"

#: What takes longest comes first.
TABLES: dict[str, Callable[[Inputs], DataFrame]] = {
    "audit_1h": audit.build,
    "deadletter_1h": dead_letters.build,
    "confirm_1h": confirms.build,
    "memory_episode": memory.build_episodes,
    "unroutable_1h": unroutable.build,
    "usage_1h": usage.build_hours,
    "chargeback_1d": usage.build_days,
    "dlx_graph_1h": dead_letters.build_graph,
    "flow_10s": queues.build_flow,
    "queue_forecast_1h": outlook.build_forecast,
    "leader_balance_1h": outlook.build_balance,
    "settings_coverage_1h": outlook.build_coverage,
    "federation_5m": federation.build_links,
    "shovel_5m": federation.build_shovels,
    "memory_parts_5m": memory.build_parts,
    "forecast_score_1h": outlook.build_score,
    "consumer_use_1h": consumers.build_use,
    "idle_queues_1h": consumers.build_idle,
    "poison_1h": dead_letters.build_poison,
    "policy_coverage_1h": declared.build_policies,
    "capacity_1d": capacity.build_capacity,
    "member_5m": capacity.build_members,
    "blocked_1h": memory.build_blocked,
    "idle_exchanges_1h": declared.build_idle_exchanges,
    LAST_ROWS: lambda inputs: inputs.lasts,
    LAST_EXCHANGES: lambda inputs: inputs.exchange_lasts,
}

#: Hours of alarms before the touched ones: an episode lies in the hour of its end.
ALARM_HOURS = 72

_COVERAGE = t.StructType(
    [
        t.StructField("cluster", t.StringType()),
        t.StructField("hour_us", t.LongType()),
        t.StructField("completeness", t.DoubleType()),
        t.StructField("seconds", t.DoubleType()),
        t.StructField("start_us", t.LongType()),
        t.StructField("end_us", t.LongType()),
    ]
)
_COMPLETENESS = ("cluster", "window_start", "completeness")
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
        ("since", pyarrow.timestamp("us", "UTC")),
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
    run_id: str,
) -> Inputs:
    """Return what the tables of these hours are made of."""

    def loaded(paths: list[str], **options: bool) -> DataFrame | None:
        return spark.read.parquet(*paths, **options) if paths else None

    def load(table: str, wanted: list[str]) -> DataFrame | None:
        return loaded(live.files(table, wanted))

    days = {hour[:10] for hour in hours}
    others = [hour for hour in live.hours("usage_1h") if hour[:10] in days and hour not in hours]
    week_us = (
        schema.hour_start_us(f"{hours[0][:10]}T00") - (capacity.DAYS - 1) * 24 * schema.HOUR_US
    )
    members = [
        hour
        for hour in live.hours("member_5m")
        if hour >= schema.hour_of(week_us) and hour not in hours
    ]
    hour_before = schema.hour_of(schema.hour_start_us(hours[0]) - schema.HOUR_US)
    covered = spark.createDataFrame(
        [tuple(line[field.name] for field in _COVERAGE.fields) for line in coverage], _COVERAGE
    ).select("*", f.timestamp_micros("hour_us").alias("window_start"))
    last = _last_files(live, LAST_ROWS, hours[0])
    carry = loaded([path for paths in last.values() for path in paths])
    last_exchanges = _last_files(live, LAST_EXCHANGES, hours[0])
    exchanges = loaded([path for paths in last_exchanges.values() for path in paths])
    rows = ingest.by_kind(spark, live.files("silver", hours))
    nothing = ingest.read_silver(spark, [])
    parts = _parts(live, hours, coverage, last)
    active = queue_spans.make(spark, parts, _spans_dir(live, run_id), run_id)
    starts_us = [schema.hour_start_us(hour) for hour in hours]
    return Inputs(
        rows=rows,
        nothing=nothing,
        minutes=active.minutes,
        hours=active.hours,
        groups=active.groups,
        lasts=_told(lasts.last_rows(active.groups, carry, starts_us), covered),
        exchange_lasts=_told(
            declared.exchange_lasts(
                rows.get("topo", nothing), rows.get("exchange", nothing), exchanges, starts_us
            ),
            covered,
        ),
        coverage=covered,
        alarms=ingest.read_silver(spark, _alarm_files(live, hours[0])),
        # On the day of an upgrade both versions' columns are there.
        usage_before=loaded(live.files("usage_1h", others), mergeSchema=True),
        quality_before=load("data_quality_1h", others),
        forecasts_before=load("queue_forecast_1h", [hour_before]),
        members_before=load("member_5m", members),
    )


def queue_files(live: Live, run_id: str) -> dict[str, sinks.Files]:
    """Return the new files of queue_1m and queue_1h, which were made with the spans."""
    return queue_spans.adopt(_spans_dir(live, run_id), live.out_dir, run_id)


def forget(inputs: Inputs, live: Live, run_id: str) -> None:
    """Give back what `prepare` keeps for the tables."""
    inputs.lasts.unpersist()
    inputs.exchange_lasts.unpersist()
    shutil.rmtree(_spans_dir(live, run_id))


def _spans_dir(live: Live, run_id: str) -> Path:
    return sinks.staging(live.out_dir, run_id) / "spans"


def _parts(
    live: Live, hours: list[str], coverage: list[dict[str, Any]], last: dict[str, list[str]]
) -> Iterator[queue_spans.Part]:
    """Yield each cluster's queue rows by their hours, and its last ones before."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for hour_of in hours:
        for entry in ingest.of_kind("queue", live.entries("silver", [hour_of])):
            found.setdefault((entry["cluster"], hour_of), []).append(entry)
    own: dict[str, list[queue_spans.Hour]] = {}
    for line in coverage:
        entries = found.get((line["cluster"], schema.hour_of(line["hour_us"])))
        if entries:
            names = [field.name for field in fields(queue_rows.Hour)]
            hour = queue_rows.Hour(*(line[name] for name in names))
            files = tuple(live.here([entry["path"] for entry in entries]))
            rows = sum(entry["rows"] for entry in entries)
            own.setdefault(line["cluster"], []).append(queue_spans.Hour(hour, files, rows))
    for cluster, told in own.items():
        yield queue_spans.Part(
            cluster,
            tuple(sorted(told, key=lambda one: one.hour.hour_us)),
            tuple(last.get(cluster, ())),
            sum(one.rows for one in told),
        )


def _told(last: DataFrame, covered: DataFrame) -> DataFrame:
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


def make(name: str, inputs: Inputs, hours: list[str]) -> DataFrame:
    """Return a table's rows of these hours, with the completeness of each row's hour or day."""
    frame = TABLES[name](inputs)
    if name in (LAST_ROWS, LAST_EXCHANGES):
        return frame
    if name == "memory_episode":
        # Alarms of earlier hours were only read for episodes that end in these.
        frame = frame.where(f.col("end_us") >= schema.hour_start_us(hours[0]))
    hour = f.date_trunc("hour", "window_start")
    size = "day" if name.endswith("_1d") else "hour"
    covered = inputs.coverage.select(*_COMPLETENESS)
    if size == "day" and inputs.quality_before is not None:
        covered = covered.unionByName(inputs.quality_before.select(*_COMPLETENESS))
    known = covered.groupBy(
        f.col("cluster"), f.date_trunc(size, "window_start").alias("covered_hour")
    ).agg(f.min("completeness").alias("completeness"))
    key = hour if size == "hour" else f.col("window_start")
    return (
        frame.withColumn("covered_hour", key)
        .join(f.broadcast(known), ["cluster", "covered_hour"], "left")
        .drop("covered_hour")
    )


def hours_of(name: str, hours: list[str]) -> list[str]:
    """Return the partitions that a table's rows of these hours lie in."""
    return sorted({f"{hour[:10]}T00" for hour in hours}) if name.endswith("_1d") else hours
