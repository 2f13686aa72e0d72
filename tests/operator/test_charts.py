"""The Helm charts, rendered by the real Helm and installed into a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.manifests import cluster
from brokerd_operator.specs import registry

from tests.cluster_fixtures import BIN, Kubernetes, require_binaries
from tests.operator.test_manifests import all_on, pod_specs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "charts" / "brokerd-operator"
CLUSTER = ROOT / "charts" / "brokerd-cluster"
ACCOUNT = "system:serviceaccount:brokerd-system:r-brokerd-operator"

ALL_ON = {
    "global": {"imageRegistry": "registry.example"},
    "watchNamespaces": ["shop", "team-b"],
    "images": {"operator": {"repository": "op", "digest": "sha256:" + "0" * 64}},
    "imagePullSecrets": ["pull"],
    "replicas": 2,
    "commonLabels": {"team": "shop"},
    "commonAnnotations": {"note": "x"},
    "podLabels": {"a": "b"},
    "podAnnotations": {"c": "d"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "extraEnv": [{"name": "E", "value": "v"}],
    "extraArgs": ["--x"],
    "serviceAccount": {"annotations": {"e": "f"}},
}
CLUSTER_WIDE = {"watchNamespaces": ["*"]}
MINIMAL = {
    "crds": {"create": False},
    "rbac": {"create": False, "aggregate": False},
    "serviceAccount": {"create": False},
}
MATRIX = {"default": {}, "all-on": ALL_ON, "cluster-wide": CLUSTER_WIDE, "minimal": MINIMAL}


def helm(*args: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    require_binaries()
    command = [str(BIN / "helm"), *args]
    if values is not None:
        command += ["--values", "-"]
    return subprocess.run(
        command, input=json.dumps(values or {}), text=True, capture_output=True, timeout=120
    )


def render(chart: Path, values: dict[str, Any], name: str = "r") -> list[dict[str, Any]]:
    done = helm(
        "template",
        name,
        str(chart),
        "--namespace=brokerd-system",
        "--kube-version=1.34.4",
        values=values,
    )
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def of_kind(items: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in items if item["kind"] == kind]


def rules(items: list[dict[str, Any]], kind: str) -> dict[str, set[str]]:
    """Verbs by resource, of the operator's own roles."""
    found: dict[str, set[str]] = {}
    for role in of_kind(items, kind):
        if not role["metadata"]["name"].endswith(("-view", "-edit")):
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    found.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_crds_of_the_chart_are_those_of_the_source() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "sync_chart_crds.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"run tools/sync_chart_crds.py: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("chart", [OPERATOR, CLUSTER], ids=lambda chart: chart.name)
def test_charts_pass_the_lint(chart: Path) -> None:
    done = helm("lint", "--strict", str(chart), "--kube-version=1.34.4")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_pods_of_the_chart_meet_the_restricted_profile(name: str) -> None:
    """SEC-29."""
    (pod,) = pod_specs(of_kind(render(OPERATOR, MATRIX[name]), "Deployment"))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_rights_hold_no_wildcard_and_no_exec(name: str) -> None:
    """SEC-25, SEC-27."""
    for role in [item for item in render(OPERATOR, MATRIX[name]) if item["kind"].endswith("Role")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            assert not any("exec" in resource for resource in rule["resources"])


def test_own_namespace_is_the_default_and_needs_no_cluster_rights() -> None:
    """SEC-24; operator.md §19.2."""
    items = render(OPERATOR, {})
    assert not of_kind(items, "ClusterRoleBinding")
    assert {item["metadata"]["namespace"] for item in of_kind(items, "Role")} == {"brokerd-system"}
    aggregated = {item["metadata"]["name"] for item in of_kind(items, "ClusterRole")}
    assert all(name.endswith(("-view", "-edit")) for name in aggregated)


def test_each_watched_namespace_has_its_role() -> None:
    roles = of_kind(render(OPERATOR, ALL_ON), "Role")
    assert sorted(item["metadata"]["namespace"] for item in roles) == [
        "brokerd-system",
        "shop",
        "team-b",
    ]
    (lease,) = [role for role in roles if role["metadata"]["namespace"] == "brokerd-system"]
    assert lease["rules"][0]["resources"] == ["leases"]


def test_cluster_wide_operator_cannot_list_secrets() -> None:
    """SEC-26."""
    verbs = rules(render(OPERATOR, CLUSTER_WIDE), "ClusterRole")
    assert verbs["secrets"] == {"get", "create", "patch"}
    assert "delete" not in rules(render(OPERATOR, {}), "Role")["secrets"]


def test_every_kind_is_in_every_rule() -> None:
    """A kind that was forgotten here would never be reconciled."""
    plurals = set(registry.PLURALS.values())
    verbs = rules(render(OPERATOR, {}), "Role")
    assert plurals <= set(verbs)
    assert {f"{plural}/status" for plural in plurals} <= set(verbs)
    for item in of_kind(render(OPERATOR, {}), "ClusterRole"):
        assert plurals <= set(item["rules"][0]["resources"])


def test_images_come_from_values() -> None:
    (pod,) = pod_specs(of_kind(render(OPERATOR, ALL_ON), "Deployment"))
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/op@sha256:" + "0" * 64
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert values["BROKERD_OPERATOR_BROKER_IMAGE"] == "registry.example/localhost/brokerd:0.1.0"
    assert values["BROKERD_OPERATOR_WATCH_NAMESPACES"] == "shop,team-b"
    assert values["E"] == "v"


def test_crds_stay_when_the_release_goes() -> None:
    crds = of_kind(render(OPERATOR, {}), "CustomResourceDefinition")
    assert len(crds) == len(registry.KINDS)
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(render(OPERATOR, MINIMAL), "CustomResourceDefinition")


@pytest.mark.parametrize(
    "values",
    [
        {"watchNamespace": "a"},
        {"watchNamespaces": ["*", "a"]},
        {"watchNamespaces": ["Not_A_Name"]},
        {"replicas": 9},
        {"images": {"operator": {"digest": "latest"}}},
        {"logLevel": "loud"},
        {"crds": {"install": True}},
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    done = helm("template", "r", str(OPERATOR), "--kube-version=1.34.4", values=values)
    assert done.returncode != 0
    assert "schema" in done.stderr


def test_cluster_chart_makes_a_cluster_with_its_resources() -> None:
    items = render(
        CLUSTER,
        {
            "cluster": {"replicas": 1},
            "resources": [
                {"kind": "Queue", "name": "orders", "spec": {"deliveryLimit": 3}},
                {"kind": "Vhost", "name": "v"},
            ],
        },
        name="prod",
    )
    assert [(item["kind"], item["metadata"]["name"]) for item in items] == [
        ("BrokerCluster", "prod"),
        ("Queue", "orders"),
        ("Vhost", "v"),
    ]
    assert items[1]["spec"] == {"brokerRef": {"name": "prod"}, "deliveryLimit": 3}


@pytest.fixture(scope="module")
def installed(kube_api: Kubernetes) -> Kubernetes:
    """The chart as it is installed by default, without a pod that runs."""
    kube_api.kubectl("create", "namespace", "brokerd-system")
    kube_api.kubectl(
        "label",
        "namespace",
        "brokerd-system",
        "pod-security.kubernetes.io/enforce=restricted",
    )
    # Other modules may have applied crds/ themselves.
    kube_api.helm("install", "r", str(OPERATOR), "--namespace=brokerd-system", "--take-ownership")
    return kube_api


def can(
    kubernetes: Kubernetes, verb: str, resource: str, namespace: str, subresource: str = ""
) -> bool:
    said = kubernetes.kubectl(
        "auth",
        "can-i",
        verb,
        resource,
        f"--namespace={namespace}",
        f"--as={ACCOUNT}",
        f"--subresource={subresource}",
        check=False,
    )
    # Warnings of kubectl may stand beside the answer.
    return "yes" in said.split()


def soon_can(kubernetes: Kubernetes, verb: str, resource: str, namespace: str) -> bool:
    """The API server's authoriser learns of a new Role a moment after it was made."""
    deadline = time.monotonic() + 60
    while not can(kubernetes, verb, resource, namespace):
        if time.monotonic() > deadline:
            return False
    return True


def test_api_server_takes_the_installed_chart(installed: Kubernetes) -> None:
    established = installed.kubectl(
        "wait", "--for=condition=Established", "--timeout=100s", "-f", str(ROOT / "crds")
    )
    assert established.count("condition met") == len(registry.KINDS)
    applied = installed.kubectl(
        "apply", "--namespace=brokerd-system", "-f", str(ROOT / "examples" / "orders")
    )
    assert applied.count("created") >= 16
    shown = installed.kubectl("get", "broker", "--namespace=brokerd-system")
    assert "queue.brokerd.io/orders" in shown


def test_operator_has_no_rights_beyond_its_namespace(installed: Kubernetes) -> None:
    """SEC-24, SEC-25, SEC-26, asked of the API server's own RBAC."""
    assert soon_can(installed, "patch", "queues.brokerd.io", "brokerd-system")
    assert not can(installed, "patch", "queues.brokerd.io", "default")
    assert not can(installed, "get", "secrets", "default")
    assert not can(installed, "create", "pods", "brokerd-system", "exec")
    assert not can(installed, "delete", "secrets", "brokerd-system")
    assert not can(installed, "delete", "persistentvolumeclaims", "brokerd-system")
    assert not can(installed, "create", "queues.brokerd.io", "brokerd-system")


def test_operator_may_make_everything_that_a_cluster_needs(installed: Kubernetes) -> None:
    """The telemetry job's Role too, which Kubernetes allows only to one who holds its rights."""
    made = all_on()
    items = [
        {**item, "metadata": {**item["metadata"], "namespace": "brokerd-system"}}
        for item in cluster.objects(made)
    ]
    for item in items:
        item["metadata"].pop("ownerReferences", None)
        for subject in item.get("subjects", ()):
            subject["namespace"] = "brokerd-system"
    installed.kubectl(
        "create",
        f"--as={ACCOUNT}",
        "-f",
        "-",
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )


def test_release_can_be_upgraded_and_leaves_the_crds_behind(installed: Kubernetes) -> None:
    installed.kubectl("create", "namespace", "second")
    args = ("second", str(OPERATOR), "--namespace=second", "--set=crds.create=false")
    installed.helm("install", *args, "--set=rbac.aggregate=true")
    installed.helm("upgrade", *args, "--set=replicas=2")
    installed.helm("uninstall", "second", "--namespace=second")
    assert "queues.brokerd.io" in installed.kubectl("get", "crd", "--output=name")
