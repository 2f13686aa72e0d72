"""Writes the Grafana dashboards of the operator's chart from the table below.

Panels are one query or a few each; what differs between them is here, what Grafana wants around
them is made. A test holds every metric against docs/reference/metrics.md.

    python tools/generate_dashboards.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "charts" / "brokerd-operator" / "files" / "dashboards"

#: Grafana's grid is 24 wide: three panels a row.
WIDTH, HEIGHT = 8, 7
BROKER = 'namespace="$namespace",brokercluster="$brokercluster"'
RATE = "$__rate_interval"


class Panel(NamedTuple):
    """One graph. `queries` are pairs of legend and PromQL."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def of_broker(name: str, how: str = "sum") -> str:
    """A gauge of all members."""
    return f"{how}({name}{{{BROKER}}})"


def rate(name: str) -> str:
    return f"sum(rate({name}{{{BROKER}}}[{RATE}]))"


def moved(name: str) -> str:
    """A counter of the queues, per second. It moves with the leader, so the sum is what counts."""
    return f"clamp_min(deriv(sum({name}{{{BROKER}}})[5m:30s]), 0)"


def by_pod(name: str) -> str:
    return f"{name}{{{BROKER}}}"


OVERVIEW = (
    Panel(
        "Members",
        "short",
        (
            ("known", of_broker("brokerd_cluster_members", "max")),
            ("running", of_broker("brokerd_cluster_members_running", "max")),
            ("catalog has a leader", of_broker("brokerd_catalog_has_leader", "max")),
        ),
    ),
    Panel(
        "Alarms and replicas at fault",
        "short",
        (
            ("{{pod}} {{resource}} alarm", by_pod("brokerd_alarm")),
            ("damaged", of_broker("brokerd_raft_damaged")),
            ("refilling", of_broker("brokerd_raft_refilling")),
            ("kept aside", of_broker("brokerd_kept_aside")),
        ),
    ),
    Panel(
        "Clients",
        "short",
        (
            ("connections", of_broker("brokerd_connections")),
            ("blocked", of_broker("brokerd_connections_blocked")),
            ("channels", of_broker("brokerd_channels")),
            ("consumers", of_broker("brokerd_consumers")),
        ),
    ),
    Panel(
        "Memory",
        "bytes",
        (
            ("{{pod}}", by_pod("brokerd_memory_used_bytes")),
            ("{{pod}} limit", by_pod("brokerd_memory_limit_bytes")),
        ),
    ),
    Panel(
        "Free disk space",
        "bytes",
        (
            ("{{pod}}", by_pod("brokerd_disk_free_bytes")),
            ("{{pod}} limit", by_pod("brokerd_disk_free_limit_bytes")),
        ),
    ),
    Panel(
        "File descriptors in use",
        "percentunit",
        (
            (
                "{{pod}}",
                f"{by_pod('brokerd_process_open_fds')} / {by_pod('brokerd_process_max_fds')}",
            ),
        ),
    ),
    Panel(
        "Opened per second",
        "ops",
        (
            ("connections", rate("brokerd_connections_accepted_total")),
            ("channels", rate("brokerd_channels_opened_total")),
            ("queues", f"max(rate(brokerd_queues_declared_total{{{BROKER}}}[{RATE}]))"),
        ),
    ),
    Panel(
        "Refused per second",
        "ops",
        (
            (
                "logins: {{reason}}",
                f"sum by (reason) (rate(brokerd_logins_refused_total{{{BROKER}}}[{RATE}]))",
            ),
            ("connections", rate("brokerd_connections_refused_total")),
            ("unroutable messages", rate("brokerd_messages_unroutable_total")),
        ),
    ),
    Panel(
        "Starts within an hour",
        "short",
        (("{{pod}}", f"changes({by_pod('brokerd_process_start_time_seconds')}[1h])"),),
    ),
)

QUEUES = (
    Panel(
        "Messages",
        "short",
        (
            ("ready", of_broker("brokerd_queue_messages_ready")),
            ("unacked", of_broker("brokerd_queue_messages_unacked")),
        ),
    ),
    Panel(
        "Bytes of messages",
        "bytes",
        (
            ("ready", of_broker("brokerd_queue_messages_ready_bytes")),
            ("unacked", of_broker("brokerd_queue_messages_unacked_bytes")),
        ),
    ),
    Panel(
        "Longest queue",
        "short",
        (("ready", of_broker("brokerd_queue_messages_ready_max", "max")),),
    ),
    Panel(
        "Messages per second",
        "ops",
        (
            ("in", moved("brokerd_queue_messages_enqueued_total")),
            ("delivered", moved("brokerd_queue_messages_delivered_total")),
            ("acknowledged", moved("brokerd_queue_messages_acknowledged_total")),
            ("redelivered", moved("brokerd_queue_messages_redelivered_total")),
        ),
    ),
    Panel(
        "Dead and dropped per second",
        "ops",
        (
            ("rejected", moved("brokerd_queue_messages_rejected_total")),
            ("expired", moved("brokerd_queue_messages_expired_total")),
            ("over a length limit", moved("brokerd_queue_messages_dropped_maxlen_total")),
            ("over a delivery limit", moved("brokerd_queue_messages_over_delivery_limit_total")),
            ("dead-lettered", moved("brokerd_queue_messages_dead_lettered_total")),
        ),
    ),
    Panel(
        "Queues",
        "short",
        (
            ("declared", of_broker("brokerd_queues", "max")),
            ("with a leader", of_broker("brokerd_queues_led")),
            ("with messages and no consumer", of_broker("brokerd_queues_without_consumers")),
        ),
    ),
    Panel("Queues led", "short", (("{{pod}}", by_pod("brokerd_queues_led")),)),
    Panel(
        "Dead letters without a confirm",
        "short",
        (("pending", of_broker("brokerd_queue_dead_letters_pending")),),
    ),
    Panel("Committed and not applied", "short", (("{{pod}}", by_pod("brokerd_raft_unapplied")),)),
)


def of_operator(name: str) -> str:
    return f'sum by (kind) (rate({name}{{namespace="$namespace"}}[{RATE}]))'


OPERATOR = (
    Panel("Works", "short", (("{{pod}}", 'brokerd_operator_leading{namespace="$namespace"}'),)),
    Panel(
        "Passes per second", "ops", (("{{kind}}", of_operator("brokerd_operator_passes_total")),)
    ),
    Panel(
        "Longest passes (99 of 100)",
        "s",
        (
            (
                "{{kind}}",
                "histogram_quantile(0.99, sum by (kind, le) (rate("
                f'brokerd_operator_pass_seconds_bucket{{namespace="$namespace"}}[{RATE}])))',
            ),
        ),
    ),
    Panel(
        "Unexpected errors per second",
        "ops",
        (("{{kind}}", of_operator("brokerd_operator_pass_errors_total")),),
    ),
    Panel(
        "Drift repaired per second",
        "ops",
        (("{{kind}}", of_operator("brokerd_operator_drift_repairs_total")),),
    ),
    Panel(
        "Statuses written per second",
        "ops",
        (("{{kind}}", of_operator("brokerd_operator_status_writes_total")),),
    ),
    Panel(
        "Memory",
        "bytes",
        (("{{pod}}", 'brokerd_operator_process_resident_memory_bytes{namespace="$namespace"}'),),
    ),
    Panel(
        "Certificates of brokers expire in",
        "s",
        (
            (
                "{{namespace}}/{{brokercluster}} {{listener}}",
                "min by (namespace, brokercluster, listener)"
                " (brokerd_certificate_expiry_timestamp_seconds) - time()",
            ),
        ),
    ),
)

#: File name: title, a metric that names the namespaces, whether a broker is chosen, panels.
DASHBOARDS = {
    "overview": ("brokerd: cluster", "brokerd_build_info", True, OVERVIEW),
    "queues": ("brokerd: queues", "brokerd_build_info", True, QUEUES),
    "operator": ("brokerd: operator", "brokerd_operator_leading", False, OPERATOR),
}


def variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def panel(at: int, made: Panel) -> dict[str, Any]:
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": made.title,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": at % 3 * WIDTH, "y": at // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": made.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "legendFormat": legend, "expr": query}
            for number, (legend, query) in enumerate(made.queries)
        ],
    }


def dashboard(
    name: str, title: str, metric: str, has_broker: bool, panels: tuple[Panel, ...]
) -> dict[str, Any]:
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        variable("namespace", f"label_values({metric}, namespace)"),
    ]
    if has_broker:
        query = f'label_values({metric}{{namespace="$namespace"}}, brokercluster)'
        variables.append(variable("brokercluster", query))
    return {
        "uid": f"brokerd-{name}",
        "title": title,
        "tags": ["brokerd"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": [panel(at, made) for at, made in enumerate(panels)],
    }


def expected() -> dict[str, str]:
    """File name to contents."""
    return {
        f"{name}.json": json.dumps(dashboard(name, *rest), indent=1) + "\n"
        for name, rest in DASHBOARDS.items()
    }


def main() -> int:
    wanted = expected()
    present = {path.name: path.read_text() for path in TARGET.glob("*.json")}
    stale = sorted(
        name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name)
    )
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"stale: {TARGET.relative_to(ROOT) / name}")
        return 1 if stale else 0
    for name in stale:
        if name in wanted:
            (TARGET / name).write_text(wanted[name])
        else:
            (TARGET / name).unlink()
    print(f"{len(stale)} of {len(wanted)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
