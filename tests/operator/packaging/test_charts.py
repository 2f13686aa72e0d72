"""The Helm charts, rendered by the real Helm and installed into a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from brokerd_operator.manifests import cluster
from brokerd_operator.specs import registry

from tests.cluster_fixtures import Kubernetes
from tests.operator.charts import (
    CLUSTER,
    OPERATOR,
    ROOT,
    helm,
    is_of_uninstallation,
    of_kind,
    render,
)
from tests.operator.manifests.test_manifests import all_on, pod_specs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

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
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "serviceAccount": {"annotations": {"e": "f"}},
    "networkPolicy": {"enabled": True},
    "telemetryFleet": {
        "sources": [
            {"cluster": "eu/shop", "pull": ["shop-0.shop.eu:5680"], "credentialsSecret": "login"},
            {"cluster": "us/shop", "raw": "s3://telemetry/us"},
        ],
        "store": "s3://telemetry/tables",
        "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
        "envFrom": [{"secretRef": {"name": "bucket"}}],
        "serviceAccountName": "bucket",
        "storage": {"className": "fast"},
    },
    "monitoring": {
        "podMonitor": {"enabled": True, "detailed": ["queue_coarse_metrics"]},
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "rabbitmqLabels": True},
        "dashboards": {"enabled": True},
    },
}
CLUSTER_WIDE = {"watchNamespaces": ["*"]}
MINIMAL = {
    "crds": {"create": False},
    "rbac": {"create": False, "aggregate": False},
    "serviceAccount": {"create": False},
}
#: Groups whose schemas come with their CRDs.
THEIR_OWN = ("brokerd.io/", "monitoring.coreos.com/", "apiextensions.k8s.io/")
MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "all-on": ALL_ON,
    "cluster-wide": CLUSTER_WIDE,
    "minimal": MINIMAL,
}


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
    for values in MATRIX.values() if chart == OPERATOR else ({},):
        done = helm("lint", "--strict", str(chart), values=values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_pods_of_the_chart_meet_the_restricted_profile(name: str) -> None:
    """SEC-29. The operator's, and those of `helm test`."""
    items = render(OPERATOR, MATRIX[name])
    pods = [*pod_specs(of_kind(items, "Deployment")), *pod_specs(of_kind(items, "Job"))]
    pods += [
        item["spec"] for item in [*of_kind(items, "Pod"), *of_kind(render(CLUSTER, {}), "Pod")]
    ]
    assert len(pods) == 2 + len(of_kind(items, "Deployment")) + len(of_kind(items, "Job"))
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_rights_hold_no_wildcard_and_no_exec(name: str) -> None:
    """SEC-25, SEC-27."""
    for role in [item for item in render(OPERATOR, MATRIX[name]) if item["kind"].endswith("Role")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            assert not any("exec" in resource for resource in rule["resources"])


def test_own_namespace_is_the_default_and_needs_no_cluster_rights() -> None:
    """SEC-24; design/operator.md §16."""
    items = render(OPERATOR, {})
    assert not of_kind(items, "ClusterRoleBinding")
    assert {item["metadata"]["namespace"] for item in of_kind(items, "Role")} == {"brokerd-system"}
    aggregated = {item["metadata"]["name"] for item in of_kind(items, "ClusterRole")}
    assert all(name.endswith(("-view", "-edit")) for name in aggregated)


@pytest.mark.parametrize(("values", "kind"), [({}, "Role"), (CLUSTER_WIDE, "ClusterRole")])
def test_running_pods_are_resized_and_nothing_else_of_them_is_changed(
    values: dict[str, Any], kind: str
) -> None:
    verbs = rules(render(OPERATOR, values), kind)
    assert verbs["pods/resize"] == {"patch"}
    assert verbs["controllerrevisions"] == {"get"}
    assert not {"patch", "update"} & verbs["pods"]


def test_each_watched_namespace_has_its_binding() -> None:
    values = {"watchNamespaces": ["shop", "team-b", "brokerd-system"]}
    items = [item for item in render(OPERATOR, values) if not is_of_uninstallation(item)]
    bindings = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item["roleRef"]
        for item in of_kind(items, "RoleBinding")
    }
    own, lease = "r-brokerd-operator", "r-brokerd-operator-lease"
    watched = ("ClusterRole", "brokerd-system-r-brokerd-operator-watched")
    assert {key: (ref["kind"], ref["name"]) for key, ref in bindings.items()} == {
        ("shop", f"{own}-watched"): watched,
        ("team-b", f"{own}-watched"): watched,
        ("brokerd-system", own): ("Role", own),
        ("brokerd-system", lease): ("Role", lease),
    }
    # What the operator holds back by its finalizer is what the chart has made.
    (pod,) = pod_specs(of_kind(items, "Deployment"))
    values_of = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    assert values_of["BROKERD_OPERATOR_ROLE_BINDING"] == f"{own}-watched"
    assert not of_kind(items, "ClusterRoleBinding")


def test_what_an_uninstallation_runs_may_do_little() -> None:
    """SEC-24. Only where others are watched. What runs beside the deletion is none of the kinds
    that Helm waits for, so that it stops none, and goes by its namesake of the event after it.
    """
    for values in ({}, CLUSTER_WIDE):
        assert not [item for item in render(OPERATOR, values) if is_of_uninstallation(item)]
    items = render(OPERATOR, {"watchNamespaces": ["shop", "brokerd-system", "team-b"]})
    found = [item for item in items if is_of_uninstallation(item)]
    beside, after = (
        [item for item in found if item["metadata"]["annotations"]["helm.sh/hook"] == event]
        for event in ("pre-delete", "post-delete")
    )
    kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment"]
    assert sorted(item["kind"] for item in beside) == sorted(kinds)
    assert sorted(item["kind"] for item in after) == sorted([*kinds, "Job"])
    assert {_place_of(item) for item in beside} <= {_place_of(item) for item in after}
    for role in of_kind(found, "ClusterRole"):
        assert [
            (rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in role["rules"]
        ] == [
            (["rolebindings"], ["r-brokerd-operator-watched"], ["get", "patch"]),
            (["clusterroles"], ["brokerd-system-r-brokerd-operator-watched"], ["delete"]),
        ]
    assert [item["spec"]["replicas"] for item in of_kind(found, "Deployment")] == [1, 0]
    pods = pod_specs([*of_kind(beside, "Deployment"), *of_kind(found, "Job")])
    flags = ["--until-stopped", "--cluster-role=brokerd-system-r-brokerd-operator-watched"]
    for pod, flag in zip(pods, flags, strict=True):
        (container,) = pod["containers"]
        assert container["args"][1:] == [
            "--binding=r-brokerd-operator-watched",
            "--namespaces=shop,team-b",
            flag,
        ]
    policies = [item["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for item in after]
    assert set(policies) == {"before-hook-creation,hook-succeeded,hook-failed"}


def _place_of(item: dict[str, Any]) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def test_rights_of_the_lease_are_few() -> None:
    """Of Leases only its own; what is told of the operator itself where nothing else allows it."""
    named = [("leases", ["brokerd-operator"], ["get", "update"])]
    lease = [("leases", None, ["create"]), *named]
    events = [("events", None, ["create"])]
    for values, expected in ((ALL_ON, lease + events), ({}, lease), (CLUSTER_WIDE, lease)):
        roles = of_kind(render(OPERATOR, values), "Role")
        (found,) = [item for item in roles if item["metadata"]["name"].endswith("-lease")]
        told = [
            (rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in found["rules"]
        ]
        assert told == [([resource], names, verbs) for resource, names, verbs in expected]


def test_operator_can_neither_list_nor_delete_secrets() -> None:
    """SEC-23, SEC-26."""
    for values, kind in (({}, "Role"), (ALL_ON, "ClusterRole"), (CLUSTER_WIDE, "ClusterRole")):
        assert rules(render(OPERATOR, values), kind)["secrets"] == {"get", "create", "patch"}


def test_every_kind_is_in_every_rule() -> None:
    """A kind that was forgotten here would never be reconciled."""
    plurals = set(registry.PLURALS.values())
    verbs = rules(render(OPERATOR, {}), "Role")
    assert plurals <= set(verbs)
    assert {f"{plural}/status" for plural in plurals} <= set(verbs)
    for item in of_kind(render(OPERATOR, {}), "ClusterRole"):
        assert plurals <= set(item["rules"][0]["resources"])


def test_images_come_from_values() -> None:
    deployments = of_kind(render(OPERATOR, ALL_ON), "Deployment")
    (pod,) = pod_specs([item for item in deployments if not is_of_uninstallation(item)])
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/op@sha256:" + "0" * 64
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert values["BROKERD_OPERATOR_BROKER_IMAGE"] == "registry.example/localhost/brokerd:0.1.0"
    assert values["BROKERD_OPERATOR_WATCH_NAMESPACES"] == "shop,team-b"
    assert values["E"] == "v"
    assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert {"name": "ca", "configMap": {"name": "ca"}} in pod["volumes"]


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
        {"monitoring": {"podMonitor": {"interval": "soon"}}},
        {"monitoring": {"prometheusRule": {"disabled": ["Everything"]}}},
        {"monitoring": {"grafana": {}}},
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    done = helm("template", "r", str(OPERATOR), values=values)
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
        ("Pod", "prod-round-trip"),
    ]
    assert items[1]["spec"] == {"brokerRef": {"name": "prod"}, "deliveryLimit": 3}


@pytest.mark.parametrize(
    ("cluster_spec", "image", "secrets"),
    [
        ({}, "localhost/brokerd:0.1.0", {"prod-admin", "prod-tls"}),
        (
            {
                "image": "brokerd:2",
                "tls": {"secretName": "mine", "caSecretName": "my-ca"},
                "admin": {"secretRef": {"name": "root"}},
            },
            "brokerd:2",
            {"root", "my-ca"},
        ),
        ({"tls": {"secretName": "mine"}}, "localhost/brokerd:0.1.0", {"prod-admin"}),
    ],
    ids=["default", "own", "known authority"],
)
def test_round_trip_uses_what_the_cluster_has(
    cluster_spec: dict[str, Any], image: str, secrets: set[str]
) -> None:
    (pod,) = of_kind(render(CLUSTER, {"cluster": cluster_spec}, name="prod"), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == image
    named = {item["valueFrom"]["secretKeyRef"]["name"] for item in container["env"]}
    mounted = [item["secret"]["secretName"] for item in pod["spec"]["volumes"] if "secret" in item]
    assert named | set(mounted) == secrets
    has_file = any(item.startswith("--ca-file=") for item in container["args"])
    assert has_file == (len(mounted) == 2)
    module = ROOT.joinpath(*container["command"][2].split(".")).with_suffix(".py").read_text()
    for item in container["args"]:
        assert f'"{item.partition("=")[0]}"' in module


@pytest.mark.parametrize("chart", [OPERATOR, CLUSTER], ids=lambda chart: chart.name)
def test_the_pod_of_helm_test_stays_for_its_logs(chart: Path) -> None:
    """`--logs` reads it when the test has passed; the next one makes room for itself."""
    (pod,) = of_kind(render(chart, {}), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def kubernetes_versions(validator: Any) -> list[str]:
    """Those from the chart's kubeVersion on that the validator knows."""
    found = {tuple(map(int, text.split(".")[:2])) for text in validator.utils.all_versions()}
    return [f"{major}.{minor}" for major, minor in sorted(found) if (major, minor) >= (1, 29)]


def test_objects_are_valid_for_each_kubernetes() -> None:
    """Of the charts, and what the operator makes of a BrokerCluster."""
    validator = pytest.importorskip("kubernetes_validate")
    items = [*render(CLUSTER, {}), *cluster.objects(all_on())]
    for values in MATRIX.values():
        items += render(OPERATOR, values)
    # Value sets differ in few objects.
    known = {
        json.dumps(item, sort_keys=True): item
        for item in items
        if not item["apiVersion"].startswith(THEIR_OWN)
    }
    versions = kubernetes_versions(validator)
    assert "1.29" in versions
    assert len(versions) >= 6
    for version in versions:
        for item in known.values():
            validator.validate(item, version, strict=True)


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


def test_notes_name_the_namespace_in_each_command(installed: Kubernetes) -> None:
    notes = installed.helm("get", "notes", "r", "--namespace=brokerd-system")
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  ")]
    commands = [line for line in commands if line.startswith(("kubectl", "helm"))]
    assert len(commands) == 6
    assert [line for line in commands if " -n brokerd-system" not in line] == []


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


def test_all_namespaces_are_refused_beside_another_release(installed: Kubernetes) -> None:
    args = ("wide", str(OPERATOR), "--namespace=wide", "--set=crds.create=false")
    installed.kubectl("create", "namespace", "wide")
    said = installed.helm("install", *args, "--set=watchNamespaces={*}", check=False)
    assert "the release r in namespace brokerd-system handles namespaces" in said
    # It says where else it may work, and does not stand in its own way.
    installed.helm("install", *args)
    installed.helm("upgrade", *args, "--set=replicas=2")
    installed.helm("uninstall", "wide", "--namespace=wide")


def test_release_of_all_namespaces_can_be_upgraded(
    kube_api: Kubernetes, installed: Kubernetes
) -> None:
    """Its own bindings are no other operator's."""
    installed.helm(
        "upgrade", "r", str(OPERATOR), "--namespace=brokerd-system", "--set=watchNamespaces={*}"
    )
    installed.helm(
        "upgrade", "r", str(OPERATOR), "--namespace=brokerd-system", "--set=watchNamespaces={*}"
    )
    # Without values Helm takes those of the release before.
    installed.helm("upgrade", "r", str(OPERATOR), "--namespace=brokerd-system", "--reset-values")
