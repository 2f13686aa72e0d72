"""What a run hands to people and programs: report, metrics, findings, views.

design/telemetry.md §9.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from brokerd_telemetry import findings, freshness, report, sinks

if TYPE_CHECKING:
    from brokerd_telemetry.commit import Manifest

#: What members serve.
SERVED = ("report.html", "metrics.prom", "findings.json")
#: Findings that are handed on, the worst first; of what is clear again fewer, and last.
FINDINGS_MAX = 200
_STATES = {"RAISED": 0, "PENDING": 1, "CLEAR": 2}
_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}
#: What findings.json tells of each.
_TOLD = (
    "cluster", "id", "rule", "severity", "status", "since", "object_type", "vhost", "object",
    "upstream", "value", "threshold", "message", "action", "evidence",
)  # fmt: skip


def render(out_dir: Path, manifest: Manifest) -> dict[str, bytes]:
    """Return all published files by name."""
    hours = sorted(manifest.tables.get("silver", {}))
    found = sorted(
        findings.latest(out_dir, manifest),
        key=lambda item: (
            _STATES[item["status"]], _SEVERITIES[item["severity"]], item["rule"], item["id"],
        ),
    )  # fmt: skip
    return {
        "report.html": report.render(out_dir, manifest, found),
        "metrics.prom": _metrics(out_dir, manifest, found, hours),
        "findings.json": _findings(manifest, found),
        "views.sql": sinks.views_sql(out_dir, manifest),
    }


def _findings(manifest: Manifest, found: list[dict[str, Any]]) -> bytes:
    """Return what stands; `as_of_us` is the end of what the members had told, `fresh_until_us` when
    whoever has heard nothing newer is to take it for old.
    """
    document = {
        "run_id": manifest.run_id,
        "as_of_us": manifest.as_of_us,
        "fresh_until_us": freshness.until_us(manifest.run.get("ends_us", ()), manifest.as_of_us),
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


def _metrics(
    out_dir: Path, manifest: Manifest, found: list[dict[str, Any]], hours: list[str]
) -> bytes:
    """Low-cardinality results as a Prometheus text file."""
    run = manifest.run
    registry = CollectorRegistry()
    raised = Gauge(
        "broker_tele_finding", "Findings that are raised, by rule.", ["rule", "severity"],
        registry=registry,
    )  # fmt: skip
    for item in found:
        if item["status"] == "RAISED":
            raised.labels(item["rule"], item["severity"]).inc()
    audit = sinks.read_rows(out_dir, manifest, "audit_1h", hours[-1:])
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
