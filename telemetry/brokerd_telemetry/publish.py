"""What a run hands to people and programs: report, metrics, findings, views.

design/telemetry.md §9.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pyarrow
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from brokerd_telemetry import findings, fleet_report, freshness, report, report_head, sinks
from brokerd_telemetry.columns import report_sums
from brokerd_telemetry.schema import FATES

if TYPE_CHECKING:
    from brokerd_telemetry.manifest import Manifest
    from brokerd_telemetry.sinks import Live

#: What members serve.
SERVED = ("report.html", "metrics.prom", "findings.json")
#: Findings that are handed on, the worst first; of what is clear again fewer, and last.
FINDINGS_MAX = 200
#: What metrics are made of.
_FATES = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("cluster", "kind")),
        *((name, pyarrow.int64()) for name in (*FATES, "unknown")),
    ]
)
_STATES = {"RAISED": 0, "PENDING": 1, "CLEAR": 2}
_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}
#: What findings.json tells of each.
_TOLD = (
    "cluster", "id", "rule", "severity", "status", "since", "object_type", "vhost", "object",
    "upstream", "value", "threshold", "message", "action", "evidence",
)  # fmt: skip


def folder_of(manifest: Manifest, cluster: str | None) -> str | None:
    """Return where what is published of a cluster stands below `publish/`; None: nothing is known
    of it.  Of a single cluster, and of all together, that is `publish/` itself.
    """
    known = manifest.clusters()
    if cluster is not None and cluster not in known:
        return None
    return "" if cluster is None or len(known) == 1 else f"{fleet_report.folder_of(cluster)}/"


def render(live: Live, base: str, touched: Collection[str]) -> dict[str, bytes]:
    """Return all published files by name.

    base: what the tables' paths lie below.  touched: clusters whose pages must be made anew; those
    of others stay as they are, if they are there.
    """
    known = live.names("silver")
    found = _sorted(findings.latest(live))
    files = {
        "metrics.prom": _metrics(live, found),
        "findings.json": _findings(live, found),
        "views.sql": sinks.views_sql(base, live.manifest),
    }
    if len(known) < 2:
        return {"report.html": report.render(live, found), **files}
    lines = []
    for cluster in known:
        own, raised = live.of([cluster]), [item for item in found if item["cluster"] == cluster]
        lines.append(fleet_report.line(own, cluster, raised, report.HOURS_SHOWN))
        folder = fleet_report.folder_of(cluster)
        if cluster in touched or not (live.out_dir / "publish" / folder / "report.html").exists():
            files[f"{folder}/report.html"] = report.render(own, raised)
            files[f"{folder}/metrics.prom"] = _metrics(own, raised)
            files[f"{folder}/findings.json"] = _findings(own, raised)
    files["report.html"] = fleet_report.render(
        lines, found, live.manifest.run.get("failed", {}), live.manifest.run_id
    )
    return files


def _sorted(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings, the worst first."""
    return sorted(
        found,
        key=lambda item: (
            _STATES[item["status"]], _SEVERITIES[item["severity"]], item["rule"], item["id"],
        ),
    )  # fmt: skip


def _findings(live: Live, found: list[dict[str, Any]]) -> bytes:
    """Return what stands; `as_of_us` is the end of what the members had told, `fresh_until_us` when
    it counts as old for a reader that has nothing newer.
    """
    manifest, as_of_us = live.manifest, live.manifest.as_of_us(live.clusters)
    document = {
        "run_id": manifest.run_id,
        "as_of_us": as_of_us,
        "fresh_until_us": freshness.until_us(manifest.run.get("ends_us", ()), as_of_us),
        "findings": [
            {
                name: f"{item[name]:%Y-%m-%dT%H:%M:%SZ}" if name == "since" else item.get(name)
                for name in _TOLD
            }
            for item in found[:FINDINGS_MAX]
        ],
        "left_out": max(len(found) - FINDINGS_MAX, 0),
    }
    return json.dumps(document, indent=1).encode()


def _metrics(live: Live, found: list[dict[str, Any]]) -> bytes:
    """Low-cardinality results as a Prometheus text file."""
    run = live.manifest.run
    registry = CollectorRegistry()
    raised = Gauge(
        "broker_tele_finding", "Findings that are raised, by rule.", ["rule", "severity"],
        registry=registry,
    )  # fmt: skip
    for item in found:
        if item["status"] == "RAISED":
            raised.labels(item["rule"], item["severity"]).inc()
    newest = live.hours("silver")[-1:]
    fates = Gauge(
        "broker_tele_fate_messages",
        "Messages of the newest hour by what became of them; of exchanges, and copies in queues.",
        ["cluster", "kind", "fate"], registry=registry,
    )  # fmt: skip
    for row in report_sums.fates_by_cluster(live.columns("fates_1h", newest, _FATES)):
        for fate in (*FATES, "unknown"):
            if row[fate] or fate == "unknown":
                fates.labels(row["cluster"], row["kind"], fate).set(row[fate])
    complete = Gauge(
        "broker_tele_completeness_ratio", "Which share of the newest hour members have told.",
        ["cluster"], registry=registry,
    )  # fmt: skip
    quality = live.rows("data_quality_1h", newest)
    for cluster in sorted({row["cluster"] for row in quality}):
        own = [row for row in quality if row["cluster"] == cluster]
        complete.labels(cluster).set(report_head.complete(own))
    audit = live.rows("audit_1h", newest)
    for name, text, value in (
        ("audit_residual", "Messages by which the books of the last hour do not balance.",
         sum(abs(row["residual"] or 0) for row in audit)),
        ("last_run_timestamp_seconds", "When the last run ended.",
         run.get("finished_us", 0) / 1e6),
        ("run_seconds", "How long the last run took.", run.get("seconds", 0)),
        ("rows_quarantined", "Rows that the last run could not read.", run.get("bad_rows", 0)),
        ("segments_quarantined", "Segments that the last run could not read.",
         run.get("quarantined", 0)),
    ):  # fmt: skip
        Gauge(f"broker_tele_{name}", text, registry=registry).set(value)
    return generate_latest(registry)
