"""Findings: when what the rules found is raised, stands, and is clear again.

design/telemetry.md §8.19, ADR 33.  A condition is PENDING in its first hour, RAISED from the second
on, CLEAR after three hours without; rules that are certain at once are raised at once, others name
more hours.  The table
`findings` is its own memory: a run goes on from what stands in the hour before the ones that it
makes anew, so doing it twice gives the same, and what has stood for a year is still one finding.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from brokerd_telemetry import rules, schema
from brokerd_telemetry.rules import Facts, Hit

if TYPE_CHECKING:
    from brokerd_telemetry.sinks import Live

CLEAR_WINDOWS = 3
#: Age in hours up to which dead letters say what a queue is for.
LETTER_HOURS = 24
#: Known hours without a report after which a cluster is forgotten.
MEMORY_HOURS = 72
#: Findings of one cluster and hour, the worst first; no reader goes through more.
FINDINGS_MAX = 5_000

Row = dict[str, Any]
#: (cluster, rule, object type, vhost, name).
Key = tuple[str, str, str, str, str]
_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}


@dataclass(slots=True)
class Standing:
    """One finding from hour to hour."""

    status: str
    since_us: int
    hit: Hit
    hours_seen: int
    hours_quiet: int

    @property
    def is_over(self) -> bool:
        """Say whether nothing of it goes on into the next hour."""
        return self.status != "RAISED" and self.hours_quiet > 0


def step(before: Standing | None, hit: Hit | None, windows: int, hour_us: int) -> Standing | None:
    """Return what becomes of a finding in an hour; None: there is nothing to tell.

    windows: how many hours in a row raise it.
    """
    if before is not None and before.is_over:
        before = None
    if hit is not None:
        since_us = hour_us if before is None else before.since_us
        seen = 1 if before is None or before.hours_quiet else before.hours_seen + 1
        was_raised = before is not None and before.status == "RAISED"
        is_raised = was_raised or seen >= windows
        return Standing("RAISED" if is_raised else "PENDING", since_us, hit, seen, 0)
    if before is None or before.status != "RAISED":
        return None
    quiet = before.hours_quiet + 1
    status = "CLEAR" if quiet >= CLEAR_WINDOWS else "RAISED"
    return Standing(status, before.since_us, before.hit, 0, quiet)


def evaluate(live: Live, hours: list[str]) -> list[Row]:
    """Return the findings of the touched hours, one line per finding and hour."""
    standing = _before(live, hours[0])
    lines: list[Row] = []
    for hour in hours:
        hour_us = schema.hour_start_us(hour)
        reported = {
            cluster
            for cluster in live.names("data_quality_1h")
            if _has_reported(live, cluster, hour)
        }
        facts = Facts(
            _letter_boxes(live, hour),
            _forecast_error(live, hour),
            set(standing),
        )
        hits = _hits(live, hour, facts)
        # A cluster that told nothing of an hour is neither better nor worse in it.
        for key in sorted({*standing, *hits}):
            if key[0] not in reported:
                continue
            windows = rules.BY_ID[key[1]].raised_after
            now = step(standing.pop(key, None), hits.get(key), windows, hour_us)
            if now is not None:
                standing[key] = now
                lines.append(_line(key, now, hour_us))
    return _bounded(lines)


def _hits(live: Live, hour: str, facts: Facts) -> dict[Key, Hit]:
    """Return what the rules find in an hour, of several rows of one object the worst."""
    found: dict[Key, Hit] = {}
    tables: dict[str, list[Row]] = {}
    for rule in rules.RULES:
        if rule.table not in tables:
            # A table of days stands with its first hour.
            within = f"{hour[:10]}T00" if rule.table.endswith("_1d") else hour
            tables[rule.table] = live.rows(rule.table, [within])
        for row in tables[rule.table]:
            for hit in rule.check(row, facts):
                key = (row["cluster"], rule.id, hit.object_type, hit.vhost, hit.name)
                worst = found.get(key)
                if worst is None or abs(hit.value) > abs(worst.value):
                    found[key] = hit
    return found


def _letter_boxes(live: Live, hour: str) -> set[tuple[str, str, str]]:
    first = schema.hour_of(schema.hour_start_us(hour) - LETTER_HOURS * schema.HOUR_US)
    wanted = [each for each in live.hours("dlx_graph_1h") if first <= each <= hour]
    return {
        (row["cluster"], row["vhost"], row["target"])
        for row in live.rows("dlx_graph_1h", wanted)
        if row["target"] != row["queue"]
    }


def _forecast_error(live: Live, hour: str) -> dict[str, float]:
    """Return by cluster how far the forecasts of the day up to an hour were off."""
    first = schema.hour_of(schema.hour_start_us(hour) - LETTER_HOURS * schema.HOUR_US)
    wanted = [at for at in live.hours("forecast_score_1h") if first <= at <= hour]
    errors: dict[str, list[float]] = {}
    for row in live.rows("forecast_score_1h", wanted):
        errors.setdefault(row["cluster"], []).append(abs(row["error"]))
    return {cluster: median(values) for cluster, values in errors.items()}


def latest(live: Live, until: str | None = None) -> list[Row]:
    """Return the findings of each cluster's last hour that is known; until: hours before this."""
    known = [hour for hour in live.hours("data_quality_1h") if until is None or hour < until]
    recent = known[-MEMORY_HOURS:]
    rows: list[Row] = []
    for cluster in live.names("data_quality_1h"):
        reported = [hour for hour in recent if _has_reported(live, cluster, hour)]
        rows += live.of([cluster]).rows("findings", reported[-1:])
    return rows


def _has_reported(live: Live, cluster: str, hour: str) -> bool:
    """Say whether members of a cluster told of an hour; each has a line there for it."""
    return bool(live.of([cluster]).paths("data_quality_1h", [hour]))


def _before(live: Live, hour: str) -> dict[Key, Standing]:
    """Return what stood when an hour began."""
    found: dict[Key, Standing] = {}
    for row in latest(live, hour):
        if row["rule"] not in rules.BY_ID:
            continue
        key = (row["cluster"], row["rule"], row["object_type"], row["vhost"], row["object"])
        hit = Hit(
            object_type=row["object_type"],
            vhost=row["vhost"],
            name=row["object"],
            value=row["value"],
            threshold=row["threshold"],
            message=row["message"],
            advice=row["action"],
            upstream=row.get("upstream") or "",
        )
        # A table of a version without these knew the same states.
        seen, quiet = row.get("hours_seen", 1), row.get("hours_quiet", 0)
        since_us = int(row["since"].timestamp()) * 1_000_000
        found[key] = Standing(row["status"], since_us, hit, seen, quiet)
    return found


def _line(key: Key, now: Standing, hour_us: int) -> Row:
    rule, hit = rules.BY_ID[key[1]], now.hit
    return {
        "cluster": key[0],
        "hour_us": hour_us,
        "id": hashlib.sha256("\0".join(key).encode()).hexdigest()[:16],
        "rule": rule.id,
        "severity": rule.severity,
        "status": now.status,
        "since": now.since_us,
        "hours_seen": now.hours_seen,
        "hours_quiet": now.hours_quiet,
        "object_type": hit.object_type,
        "vhost": hit.vhost,
        "object": hit.name,
        "upstream": hit.upstream,
        "value": float(hit.value),
        "threshold": float(hit.threshold),
        "message": hit.message,
        "action": hit.advice or rule.action,
        "evidence": rule.table,
    }


def _bounded(lines: list[Row]) -> list[Row]:
    """Return the lines, of each cluster and hour the worst FINDINGS_MAX."""
    by_hour: dict[tuple[str, int], list[Row]] = {}
    for line in lines:
        by_hour.setdefault((line["cluster"], line["hour_us"]), []).append(line)
    kept: list[Row] = []
    for found in by_hour.values():
        found.sort(key=lambda line: (_SEVERITIES[line["severity"]], line["id"]))
        kept += found[:FINDINGS_MAX]
    return kept
