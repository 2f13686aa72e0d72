"""How complete an hour is: what members told, and what must be missing.

design/telemetry.md §8.18, §10.

Each member writes one `node` row per interval, so time without one is loss.  A boot that ended
without saying so (SIGKILL) took up to an interval of its counts with it: that hour is not complete
on that member (design/telemetry.md §13.14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet

from brokerd_telemetry import ingest
from brokerd_telemetry.columns import told
from brokerd_telemetry.schema import HOUR_US, hour_of, hour_start_us

if TYPE_CHECKING:
    from brokerd_telemetry.sinks import Live
    from brokerd_telemetry.verify import Segment

#: A boot is taken for dead when it is silent for so many intervals while others go on.
SILENT_INTERVALS = 3
SILENT_US_MIN = 60_000_000


@dataclass(slots=True)
class NodeHour:
    """What one member told of one hour in one boot."""

    cluster: str
    node: str
    boot: str
    hour_us: int
    first_us: int
    last_us: int
    told_us: int
    rows: int
    gap_rows: int
    has_ended: bool
    missing_us: int = 0

    @property
    def completeness(self) -> float:
        """Return the share of its time that was told, less the share of rows that got lost."""
        whole = self.told_us + self.missing_us
        by_time = self.told_us / whole if whole else 0.0
        rows = self.rows + self.gap_rows
        return by_time * (self.rows / rows if rows else 1.0)


def observe(live: Live, hours: Iterable[str]) -> list[NodeHour]:
    """Return one line per member, boot and hour of silver's rows.

    The driver does it: of each file four columns, as many a second as two tasks would read in the
    time that a task of Spark takes to begin.
    """
    found: dict[tuple[str, str, str, int], NodeHour] = {}
    for hour in hours:
        hour_us = hour_start_us(hour)
        for entry in live.entries("silver", [hour]):
            kind = ingest.kind_of(entry["path"])
            (path,) = live.here([entry["path"]])
            with pyarrow.parquet.ParquetFile(path) as file:
                rows = file.read(told.columns(kind))
            for line in told.of(rows, kind).to_pylist():
                own = NodeHour(cluster=entry["cluster"], hour_us=hour_us, **line)
                key = (own.cluster, own.node, own.boot, hour_us)
                found[key] = own if key not in found else _both(found[key], own)
    return list(found.values())


def _both(one: NodeHour, other: NodeHour) -> NodeHour:
    return replace(
        one,
        first_us=min(one.first_us, other.first_us),
        last_us=max(one.last_us, other.last_us),
        told_us=one.told_us + other.told_us,
        rows=one.rows + other.rows,
        gap_rows=one.gap_rows + other.gap_rows,
        has_ended=one.has_ended or other.has_ended,
    )


def note_boots(
    boots: dict[str, dict[str, Any]], hours: Iterable[NodeHour], fresh: Iterable[Segment]
) -> None:
    """Bring what the ledger knows of each boot up to date."""
    for hour in hours:
        boot = boots.setdefault(
            hour.boot,
            {"cluster": hour.cluster, "node": hour.node, "first_us": hour.first_us, "last_us": 0},
        )
        boot["first_us"] = min(boot["first_us"], hour.first_us)
        boot["last_us"] = max(boot["last_us"], hour.last_us)
        boot["has_ended"] = boot.get("has_ended", False) or hour.has_ended
    for segment in fresh:
        if segment.boot in boots:
            boots[segment.boot]["interval_us"] = segment.interval_us
            if segment.is_recovered:
                boots[segment.boot]["was_killed"] = True


def judge(hours: list[NodeHour], boots: Mapping[str, Mapping[str, Any]]) -> None:
    """Set `missing_us`: holes between node rows, and the last interval of a killed boot."""
    latest: dict[str, int] = {}
    newest: dict[tuple[str, str], int] = {}
    for boot in boots.values():
        cluster, node = boot["cluster"], boot["node"]
        latest[cluster] = max(latest.get(cluster, 0), boot["last_us"])
        newest[cluster, node] = max(newest.get((cluster, node), 0), boot["first_us"])
    for hour in hours:
        boot = boots[hour.boot]
        interval_us = boot.get("interval_us", 10_000_000)
        # Rows that began in the hour before reach in; a hole is only what exceeds an interval.
        hole_us = hour.last_us - hour.first_us - hour.told_us
        hour.missing_us = hole_us if hole_us > interval_us else 0
        was_followed = newest[hour.cluster, hour.node] > boot["last_us"]
        silence_us = max(SILENT_INTERVALS * interval_us, SILENT_US_MIN)
        is_silent = latest[hour.cluster] - boot["last_us"] > silence_us
        ended_badly = not boot.get("has_ended") and (
            boot.get("was_killed") or was_followed or is_silent
        )
        if ended_badly and hour.last_us >= boot["last_us"]:
            hour.missing_us += interval_us


def coverage(hours: list[NodeHour]) -> list[dict[str, Any]]:
    """Return one line per cluster and hour: how complete it is, from when to when it was told."""
    lines: dict[tuple[str, int], list[NodeHour]] = {}
    for hour in hours:
        lines.setdefault((hour.cluster, hour.hour_us), []).append(hour)
    result = []
    for (cluster, hour_us), members in sorted(lines.items()):
        by_node: dict[str, list[float]] = {}
        for member in members:
            by_node.setdefault(member.node, []).append(member.completeness)
        first = max(min(member.first_us for member in members), hour_us)
        last = max(member.last_us for member in members)
        result.append(
            {
                "cluster": cluster,
                "hour_us": hour_us,
                "completeness": min(min(values) for values in by_node.values()),
                "seconds": max((min(last, hour_us + HOUR_US) - first) / 1e6, 0.0),
                "start_us": first,
                "end_us": min(last, hour_us + HOUR_US),
            }
        )
    return result


def table(
    hours: list[NodeHour],
    fresh: Iterable[Segment],
    counts: Mapping[str, int],
    bad_rows: Mapping[tuple[str, str, int], int],
) -> list[dict[str, Any]]:
    """Return data_quality_1h: one line per member and hour, the run's totals on each."""
    segments: dict[tuple[str, str], int] = {}
    for segment in fresh:
        segments[segment.boot, segment.hour] = segments.get((segment.boot, segment.hour), 0) + 1
    return [
        {
            "cluster": hour.cluster,
            "hour_us": hour.hour_us,
            "node": hour.node,
            "boot": hour.boot,
            "rows": hour.rows,
            "gap_rows": hour.gap_rows,
            "bad_rows": bad_rows.get((hour.cluster, hour.node, hour.hour_us), 0),
            "segments": segments.get((hour.boot, hour_of(hour.hour_us)), 0),
            "segments_quarantined": counts.get("quarantined", 0),
            "segments_duplicate": counts.get("duplicates", 0),
            "rows_overlapping": counts.get("overlapping", 0),
            "missing_s": hour.missing_us / 1e6,
            "has_ended": hour.has_ended,
            "completeness": hour.completeness,
        }
        for hour in sorted(hours, key=lambda item: (item.hour_us, item.node, item.first_us))
    ]
