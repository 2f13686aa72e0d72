"""Alerts, dashboards and the runbook: their metrics exist, their pages exist, they fire when meant.

`promtool` (Debian's package prometheus) evaluates the rules as the chart renders them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import conditions
from brokerd_operator.engine.metrics import Metrics
from brokerd_operator.manifests import cluster
from prometheus_client.parser import text_string_to_metric_families

from brokerd.telemetry.client_totals import SIZE_BOUNDS
from tests.operator.charts import OPERATOR, ROOT, of_kind, render
from tests.operator.manifests.test_manifests import all_on
from tests.test_tidy import anchors

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(200)]

RUNBOOK = ROOT / "docs" / "runbook"
#: Of Prometheus itself.
BUILT_IN = {"up"}
WANTED = {
    *(
        "MemoryAlarm",
        "DiskAlarm",
        "DiskStalled",
        "DiskFilling",
        "NoMajority",
        "VolumeMissing",
        "Restarts",
    ),
    *("Descriptors", "Churn", "Unroutable", "QueueWithoutConsumers", "QueueGrowing"),
    *("OperatorDown", "CertificateExpiring"),
}


@cache
def monitoring() -> list[dict[str, Any]]:
    names = ("podMonitor", "serviceMonitor", "prometheusRule", "dashboards")
    values = {name: {"enabled": True, "labels": {"release": "prom"}} for name in names}
    values["prometheusRule"]["runbookBaseUrl"] = "https://docs.example/runbook/"
    return render(OPERATOR, {"monitoring": values})


def alerts() -> list[dict[str, Any]]:
    (rule,) = of_kind(monitoring(), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboards() -> dict[str, dict[str, Any]]:
    """By file name."""
    maps = [item for item in of_kind(monitoring(), "ConfigMap") if item["data"]]
    return {name: json.loads(text) for item in maps for name, text in item["data"].items()}


@cache
def documented() -> frozenset[str]:
    """Metrics by docs/reference/metrics.md; a histogram shows as its three series."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    found = set()
    for row in re.findall(r"^\| (`brokerd_.*?) \|", page, flags=re.M):
        found |= set(re.findall(r"`(brokerd_[a-z_]+)", row))
    histogram = "brokerd_operator_pass_seconds"
    return frozenset(found | {f"{histogram}_{end}" for end in ("bucket", "sum", "count")})


def metrics_of(query: str) -> set[str]:
    """Names of metrics in PromQL: what is not a function, an operator, a label or a variable."""
    text = re.sub(r'"[^"]*"', "", query)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", text)
    words = re.findall(r"\b[a-z_][a-z0-9_]*\b(?!\s*\()", text)
    return set(words) - {"and", "or", "unless", "bool", "sum", "max", "min", "by"}


def test_names_are_found_in_expressions() -> None:
    query = 'sum by (kind, le) (rate(a_total{b="c"}[5m])) / on (x) min(d) < bool e and up == 1'
    assert metrics_of(query) == {"a_total", "d", "e", "up"}


def test_alerts_ask_for_metrics_that_exist() -> None:
    for alert in alerts():
        asked = metrics_of(alert["expr"])
        assert asked, alert["alert"]
        assert asked - BUILT_IN <= documented(), alert["alert"]


def test_dashboards_ask_for_metrics_that_exist() -> None:
    found = dashboards()
    assert sorted(found) == [f"brokerd-{name}.json" for name in ("operator", "overview", "queues")]
    for name, dashboard in found.items():
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        assert len(queries) >= 8
        for query in queries:
            assert metrics_of(query), (name, query)
            assert metrics_of(query) <= documented(), (name, query)
    for item in of_kind(monitoring(), "ConfigMap"):
        # The user's labels do not take the place of what the sidecar looks for.
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_metrics_of_the_operator_are_those_of_the_reference() -> None:
    metrics = Metrics()
    metrics.leads(lambda: True)
    families = {family.name: family for family in text_string_to_metric_families(rendered(metrics))}
    assert families["brokerd_operator_leading"].samples[0].value == 1
    ends = {"counter": "_total"}
    there = {
        f"{name}{ends.get(family.type, '')}"
        for name, family in families.items()
        # The clients' own: when a counter was made.
        if not name.endswith("_created")
    }
    ours = {name for name in documented() if name.startswith("brokerd_operator_")}
    assert there == {name for name in ours if "pass_seconds_" not in name}


def rendered(metrics: Metrics) -> str:
    return metrics.render().decode()


def test_each_alert_says_what_to_do() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    assert {f"Brokerd{name}" for name in WANTED} <= set(names)
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert page == "https://docs.example/runbook/alerts.md"
        assert anchor in anchors(RUNBOOK / "alerts.md"), f"docs/runbook/alerts.md: {alert['alert']}"


def test_each_reason_has_its_place_in_the_runbook() -> None:
    there = anchors(RUNBOOK / "reasons.md")
    missing = [reason for reason in conditions.REASONS if reason.lower() not in there]
    assert missing == [], "docs/runbook/reasons.md: say what they mean and what to do"


def test_commands_of_the_runbook_exist() -> None:
    modules = (ROOT / "brokerd" / "ctl" / "main.py").read_text()
    for page in RUNBOOK.glob("*.md"):
        for name in re.findall(r"`(?:ctl|brokerctl) ([a-z_]+)", page.read_text()):
            assert f'"{name}"' in modules, f"{page.name}: brokerctl has no {name}"


def test_alerts_can_be_left_out_and_labels_are_put_on() -> None:
    values = {"enabled": True, "labels": {"release": "prom"}, "disabled": ["BrokerdChurn"]}
    items = render(OPERATOR, {"monitoring": {"prometheusRule": values}})
    (rule,) = of_kind(items, "PrometheusRule")
    names = {alert["alert"] for alert in rule["spec"]["groups"][0]["rules"]}
    assert names == {alert["alert"] for alert in alerts()} - {"BrokerdChurn"}
    assert rule["metadata"]["labels"]["release"] == "prom"
    assert not of_kind(items, "PodMonitor")
    assert not of_kind(items, "ConfigMap")


@pytest.mark.parametrize(
    ("watched", "selector"),
    [
        ([], {"matchNames": ["brokerd-system"]}),
        (["shop", "team-b"], {"matchNames": ["shop", "team-b"]}),
        (["*"], {"any": True}),
    ],
)
def test_members_are_scraped_where_the_operator_watches(
    watched: list[str], selector: dict[str, Any]
) -> None:
    values = {"watchNamespaces": watched, "monitoring": {"podMonitor": {"enabled": True}}}
    (monitor,) = of_kind(render(OPERATOR, values), "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == selector


def test_monitors_select_what_is_there() -> None:
    """The labels and ports of the pods that the operator makes, and of its own Service."""
    (monitor,) = of_kind(monitoring(), "PodMonitor")
    (member,) = of_kind(cluster.objects(all_on()), "StatefulSet")
    template = member["spec"]["template"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {item["port"] for item in monitor["spec"]["podMetricsEndpoints"]} <= ports
    (monitor,) = of_kind(monitoring(), "ServiceMonitor")
    services = [
        item
        for item in of_kind(monitoring(), "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()
    ]
    assert len(services) == 1
    ports = {port["name"] for port in services[0]["spec"]["ports"]}
    assert {item["port"] for item in monitor["spec"]["endpoints"]} <= ports


# ---- what RabbitMQ's dashboards and alerts select -----------------------------------------------


def as_prometheus_3(bound: float) -> str:
    """A bound of a histogram as Prometheus 3 keeps it, whatever the page says."""
    digits = f"{bound:.0f}"
    mantissa = digits.rstrip("0")
    # From a million on its shortest form has an exponent.
    return f"{mantissa}e+{len(digits) - len(mantissa):02}" if len(digits) > 6 else f"{digits}.0"


def relabelled(labels: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, str]:
    """What Prometheus makes of a series' labels."""
    for rule in rules:
        source = ";".join(labels[name] for name in rule["sourceLabels"])
        if found := re.fullmatch(rule["regex"], source):
            value = found.expand(rule["replacement"].replace("$", "\\"))
            labels = {**labels, rule["targetLabel"]: value}
    return labels


def test_bounds_of_sizes_are_as_rabbitmq_writes_them_in_prometheus_3() -> None:
    (monitor,) = of_kind(monitoring(), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    rules = endpoint["metricRelabelings"]
    name = "rabbitmq_message_size_bytes_bucket"
    for bound in SIZE_BOUNDS:
        for written in (str(bound), as_prometheus_3(bound)):
            found = relabelled({"__name__": name, "le": written}, rules)
            assert found == {"__name__": name, "le": str(bound)}
    for labels in (
        {"__name__": name, "le": "+Inf"},
        {"__name__": "rabbitmq_raft_entry_commit_latency_seconds_bucket", "le": "1.0"},
    ):
        assert relabelled(labels, rules) == labels


def test_figures_by_queue_are_scraped_where_they_are_asked_for() -> None:
    """Each alert on a queue joins with the one who-am-I of its page."""
    values = {"enabled": True, "detailed": ["queue_coarse_metrics", "queue_consumer_count"]}
    (monitor,) = of_kind(render(OPERATOR, {"monitoring": {"podMonitor": values}}), "PodMonitor")
    plain, detailed = monitor["spec"]["podMetricsEndpoints"]
    assert detailed["path"] == "/metrics/detailed"
    assert detailed["params"] == {"family": values["detailed"]}
    pod = {"__meta_kubernetes_pod_name": "prod-0"}
    instances = []
    for endpoint in (plain, detailed):
        (rule,) = [item for item in endpoint["relabelings"] if item["targetLabel"] == "instance"]
        instances.append(relabelled(pod, [{"regex": "(.*)", "replacement": "$1", **rule}]))
    assert [item["instance"] for item in instances] == ["prod-0", "prod-0/detailed"]


def test_rabbitmqs_alerts_on_objects_of_kubernetes_find_ours(promtool: str, tmp_path: Path) -> None:
    """NoMajorityOfNodesReady and PersistentVolumeMissing of RabbitMQ's operator."""
    values = {"enabled": True, "rabbitmqLabels": True}
    (rule,) = of_kind(
        render(OPERATOR, {"monitoring": {"prometheusRule": values}}), "PrometheusRule"
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(rule["spec"]))
    objects = cluster.objects(all_on())
    (stateful_set,) = of_kind(objects, "StatefulSet")
    claims = stateful_set["spec"]["selector"]["matchLabels"]
    by_kind = {"statefulset": stateful_set["metadata"]["labels"], "persistentvolumeclaim": claims}
    shown = {}
    for kind, labels in by_kind.items():
        own = {f"label_{re.sub('[^a-z]', '_', name)}": value for name, value in labels.items()}
        pairs = ",".join(f'{name}="{value}"' for name, value in own.items())
        shown[f'kube_{kind}_labels{{namespace="shop",{kind}="x",{pairs}}}'] = "1x10"
        # Somebody else's.
        shown[f'kube_{kind}_labels{{namespace="shop",{kind}="y"}}'] = "1x10"
    shown['kube_statefulset_status_replicas_ready{namespace="shop",statefulset="x"}'] = "1x10"
    claim = 'namespace="shop",persistentvolumeclaim="x",phase="Bound"'
    shown[f"kube_persistentvolumeclaim_status_phase{{{claim}}}"] = "0x10"
    name = stateful_set["metadata"]["name"]
    asked = []
    for kind, figure in (
        ("statefulset", "kube_statefulset_status_replicas_ready"),
        ("persistentvolumeclaim", "kube_persistentvolumeclaim_status_phase"),
    ):
        chosen = f'kube_{kind}_labels{{label_app_kubernetes_io_component="rabbitmq"}}'
        join = f"on(namespace, {kind}) group_left(label_app_kubernetes_io_name) {chosen}"
        expression = f"count by(label_app_kubernetes_io_name) ({figure} * {join} <= 1)"
        labels = f'{{label_app_kubernetes_io_name="{name}"}}'
        samples = [{"labels": labels, "value": 1}]
        asked.append({"expr": expression, "eval_time": "5m", "exp_samples": samples})
    case = {"interval": "1m", "input_series": series(shown), "promql_expr_test": asked}
    tests = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(tests))
    run_promtool(promtool, "test", "rules", str(path))


# ---- promtool -----------------------------------------------------------------------------------


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    return found


POD = 'namespace="shop",brokercluster="prod",pod="prod-0"'
OTHER = POD.replace("prod-0", "prod-1")
OPERATOR_OF = 'namespace="brokerd-system"'
KILLED = 'namespace="shop",cluster="prod",member="prod-0",reason="OOMKilled"'
#: Alert: series that make it fire, minute by minute in promtool's notation, and the minute.
FIRING: dict[str, tuple[dict[str, str], int]] = {
    "BrokerdMemoryAlarm": ({f'brokerd_alarm{{{POD},resource="memory"}}': "1x10"}, 2),
    "BrokerdDiskAlarm": ({f'brokerd_alarm{{{POD},resource="disk"}}': "1x10"}, 2),
    "BrokerdDiskStalled": ({f'brokerd_alarm{{{POD},resource="disk_stalled"}}': "0 1x10"}, 2),
    "BrokerdDiskFilling": (
        {
            f"brokerd_disk_free_bytes{{{POD}}}": "1000000-1000x300",
            f"brokerd_disk_free_limit_bytes{{{POD}}}": "50000x300",
        },
        200,
    ),
    "BrokerdNoMajority": (
        {
            f"brokerd_catalog_has_leader{{{POD}}}": "1x10",
            f"brokerd_queues{{{POD}}}": "3x10",
            f"brokerd_queues{{{OTHER}}}": "3x10",
            f"brokerd_queues_led{{{POD}}}": "1x10",
            f"brokerd_queues_led{{{OTHER}}}": "1x10",
        },
        5,
    ),
    "BrokerdMemberMissing": (
        {
            f"brokerd_cluster_members{{{POD}}}": "3x20",
            f"brokerd_cluster_members_running{{{POD}}}": "2x20",
        },
        15,
    ),
    "BrokerdVolumeMissing": (
        {
            f"brokerd_raft_damaged{{{POD}}}": "0x10",
            f"brokerd_kept_aside{{{POD}}}": "0x10",
            f"brokerd_raft_refilling{{{POD}}}": "4x10",
        },
        7,
    ),
    "BrokerdRestarts": (
        {f"brokerd_process_start_time_seconds{{{POD}}}": "100x5 200x5 300x5 400x5"},
        22,
    ),
    "BrokerdMemberKilled": (
        {f"brokerd_operator_member_ended_timestamp_seconds{{{KILLED}}}": "_x3 180x20"},
        5,
    ),
    "BrokerdDescriptors": (
        {
            f"brokerd_process_open_fds{{{POD}}}": "900x10",
            f"brokerd_process_max_fds{{{POD}}}": "1000x10",
        },
        7,
    ),
    "BrokerdChurn": ({f"brokerd_channels_opened_total{{{POD}}}": "0+18000x20"}, 18),
    "BrokerdUnroutable": ({f"brokerd_messages_unroutable_total{{{POD}}}": "0+60x20"}, 18),
    "BrokerdQueueWithoutConsumers": (
        {f"brokerd_queues_without_consumers{{{POD}}}": "2x20"},
        18,
    ),
    "BrokerdQueueGrowing": (
        {f"brokerd_queue_messages_ready_max{{{POD}}}": "11000+600x60"},
        55,
    ),
    "BrokerdCertificateExpiring": (
        # Evaluation begins at 1970: ten days and a bit.
        {f'brokerd_certificate_expiry_timestamp_seconds{{{POD},listener="amqps"}}': "900000x90"},
        70,
    ),
    "BrokerdCertificateUnusable": (
        {f'brokerd_certificate_files_unusable{{{POD},listener="grpc"}}': "1x20"},
        15,
    ),
    "BrokerdOperatorDown": ({f"brokerd_operator_leading{{{OPERATOR_OF}}}": "0x20"}, 15),
    "BrokerdOperatorErrors": (
        {f'brokerd_operator_pass_errors_total{{{OPERATOR_OF},kind="Queue"}}': "0+1x60"},
        40,
    ),
    "BrokerdDriftFight": (
        {f'brokerd_operator_drift_repairs_total{{{OPERATOR_OF},kind="Queue"}}': "0+1x60"},
        50,
    ),
}
#: All is well: nothing fires.
HEALTHY = {
    # Long ago, as far as evaluation that begins at 1970 goes.
    f"brokerd_operator_member_ended_timestamp_seconds{{{KILLED}}}": "-900x240",
    f'brokerd_certificate_files_unusable{{{POD},listener="grpc"}}': "0x240",
    f'brokerd_alarm{{{POD},resource="memory"}}': "0x240",
    f"brokerd_disk_free_bytes{{{POD}}}": "1000000x240",
    f"brokerd_disk_free_limit_bytes{{{POD}}}": "50000x240",
    f"brokerd_catalog_has_leader{{{POD}}}": "0x240",
    f"brokerd_catalog_has_leader{{{OTHER}}}": "1x240",
    f"brokerd_queues{{{POD}}}": "3x240",
    f"brokerd_queues_led{{{POD}}}": "3x240",
    f"up{{{POD}}}": "1x240",
    f"up{{{OTHER}}}": "0x240",
    f"brokerd_cluster_members{{{POD}}}": "3x240",
    f"brokerd_cluster_members_running{{{POD}}}": "3x240",
    f"brokerd_raft_damaged{{{POD}}}": "0x240",
    f"brokerd_kept_aside{{{POD}}}": "0x240",
    f"brokerd_raft_refilling{{{POD}}}": "0x240",
    f"brokerd_process_start_time_seconds{{{POD}}}": "100x120 200x120",
    f"brokerd_process_open_fds{{{POD}}}": "100x240",
    f"brokerd_process_max_fds{{{POD}}}": "1000x240",
    f"brokerd_connections_accepted_total{{{POD}}}": "0+60x240",
    f"brokerd_messages_unroutable_total{{{POD}}}": "7x240",
    f"brokerd_queues_without_consumers{{{POD}}}": "0x240",
    f"brokerd_queue_messages_ready_max{{{POD}}}": "50000x240",
    f"brokerd_certificate_expiry_timestamp_seconds{{{POD}}}": "9000000x240",
    f'brokerd_operator_leading{{{OPERATOR_OF},pod="a"}}': "1x240",
    f'brokerd_operator_leading{{{OPERATOR_OF},pod="b"}}': "0x240",
    f'brokerd_operator_pass_errors_total{{{OPERATOR_OF},kind="Queue"}}': "3x240",
}


def run_promtool(promtool: str, *args: str) -> str:
    done = subprocess.run([promtool, *args], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules_file(tmp_path: Path) -> Path:
    (rule,) = of_kind(monitoring(), "PrometheusRule")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    return path


def series(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": value} for name, value in values.items()]


def test_prometheus_takes_the_rules(promtool: str, tmp_path: Path) -> None:
    said = run_promtool(promtool, "check", "rules", str(rules_file(tmp_path)))
    assert f"{len(alerts())} rules found" in said


def test_alerts_fire_when_meant_and_only_then(promtool: str, tmp_path: Path) -> None:
    by_name = {alert["alert"]: alert for alert in alerts()}
    assert set(FIRING) == set(by_name)
    cases: list[dict[str, Any]] = []
    for name, (values, minute) in FIRING.items():
        # What fires is told by its labels; the texts are templates of them.
        query = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
        count = {"expr": f"count({query})", "eval_time": f"{minute}m"}
        is_there = count | {"exp_samples": [{"labels": "{}", "value": 1}]}
        before = {"expr": query, "eval_time": "0m", "exp_samples": []}
        cases.append(
            {
                "interval": "1m",
                "input_series": series(values),
                "promql_expr_test": [is_there, before],
            }
        )
    quiet = [
        {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": []}
        for name in by_name
        for minute in (60, 119, 125, 235)
    ]
    cases.append({"interval": "1m", "input_series": series(HEALTHY), "alert_rule_test": quiet})
    path = tmp_path / "test.yaml"
    tests = {"rule_files": [str(rules_file(tmp_path))], "evaluation_interval": "1m"}
    path.write_text(yaml.safe_dump(tests | {"tests": cases}))
    run_promtool(promtool, "test", "rules", str(path))
