"""What a run hands to people and programs: report, metrics, findings, views.

design/telemetry.md §9.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd_telemetry import report, sinks

if TYPE_CHECKING:
    from brokerd_telemetry.commit import Manifest

#: What members serve.
SERVED = ("report.html", "metrics.prom", "findings.json")
FINDINGS_MAX = 200


def render(out_dir: Path, manifest: Manifest) -> dict[str, bytes]:
    """Return all published files by name."""
    hours = sorted(manifest.tables.get("silver", {}))
    findings = sinks.read_rows(out_dir, manifest, "findings", hours[-1:])
    return {
        "report.html": report.render(out_dir, manifest, findings),
        "metrics.prom": _metrics(out_dir, manifest, findings, hours),
        "findings.json": _findings(manifest, findings),
        "views.sql": sinks.views_sql(manifest),
    }


def _findings(manifest: Manifest, findings: list[dict[str, Any]]) -> bytes:
    lines = [
        {name: value for name, value in item.items() if name not in ("window_start", "run_id")}
        for item in findings[:FINDINGS_MAX]
    ]
    document = {"run_id": manifest.run_id, "findings": lines}
    return json.dumps(document, indent=1, default=str).encode()


def _metrics(
    out_dir: Path, manifest: Manifest, findings: list[dict[str, Any]], hours: list[str]
) -> bytes:
    """Low-cardinality results as a Prometheus text file."""
    run = manifest.run
    raised: dict[tuple[str, str], int] = {}
    for item in findings:
        if item["status"] == "RAISED":
            key = (item["rule"], item["severity"])
            raised[key] = raised.get(key, 0) + 1
    audit = sinks.read_rows(out_dir, manifest, "audit_1h", hours[-1:])
    residual = sum(abs(row["residual"] or 0) for row in audit)
    lines = ["# TYPE broker_tele_finding gauge"]
    lines += [
        f'broker_tele_finding{{rule="{rule}",severity="{severity}"}} {count}'
        for (rule, severity), count in sorted(raised.items())
    ]
    for name, value in (
        ("audit_residual", residual),
        ("last_run_timestamp_seconds", run.get("finished_us", 0) / 1e6),
        ("run_seconds", run.get("seconds", 0)),
        ("rows_quarantined", run.get("bad_rows", 0)),
        ("segments_quarantined", run.get("quarantined", 0)),
    ):
        lines += [f"# TYPE broker_tele_{name} gauge", f"broker_tele_{name} {value}"]
    return ("\n".join(lines) + "\n").encode()
