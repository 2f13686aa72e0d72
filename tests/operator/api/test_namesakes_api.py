"""Objects of somebody else's with a name that a BrokerCluster needs, against a real API server.

They stay as they are, whatever their kind, and when the BrokerCluster goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster_fixtures import CLUSTER, Kubernetes
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

NAMESPACE = "op-namesakes"
APP = {"app": "shop"}


def _pods(name: str) -> dict[str, Any]:
    container = {"name": "shop", "image": "localhost/shop:1"}
    return {
        "serviceName": name,
        "replicas": 0,
        "selector": {"matchLabels": APP},
        "template": {"metadata": {"labels": APP}, "spec": {"containers": [container]}},
    }


WEB = {"name": "web", "port": 80}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
#: By the name of the BrokerCluster: kind, apiVersion, what follows the name, and what is in it.
OTHERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "svc": ("Service", "v1", "", {"spec": {"selector": APP, "ports": [WEB]}}),
    "nodes": ("Service", "v1", "-nodes", {"spec": {"selector": APP, "ports": [WEB]}}),
    "sts": ("StatefulSet", "apps/v1", "", {"spec": _pods("x")}),
    "net": ("NetworkPolicy", "networking.k8s.io/v1", "", {"spec": {"podSelector": {}}}),
    "pdb": (
        "PodDisruptionBudget",
        "policy/v1",
        "",
        {"spec": {"minAvailable": 1, "selector": {"matchLabels": APP}}},
    ),
    "keys": ("Secret", "v1", "-keys", {"stringData": {"token": "of the shop"}}),
    "cert": ("Secret", "v1", "-tls", {"stringData": {"tls.crt": "of an Ingress", "tls.key": "x"}}),
    "claim": ("PersistentVolumeClaim", "v1", "", {"spec": CLAIM}),
    # Taken over by the last test alone.
    "taken": ("Service", "v1", "", {"spec": {"selector": APP, "ports": [WEB]}}),
}


def name_of(cluster: str) -> str:
    kind, _, suffix, _ = OTHERS[cluster]
    return f"data-{cluster}-1" if kind == "PersistentVolumeClaim" else f"{cluster}{suffix}"


def other(cluster: str) -> dict[str, Any]:
    kind, version, _, content = OTHERS[cluster]
    metadata = {"name": name_of(cluster), "labels": APP}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def broker_cluster(name: str) -> dict[str, Any]:
    spec = {"replicas": 3}
    return {
        "apiVersion": "brokerd.io/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def space(kube_api: Kubernetes) -> Iterator[Namespace]:
    kube_api.kubectl("apply", "-f", str(CLUSTER.parents[1] / "crds"))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    kube_api.kubectl("create", "namespace", NAMESPACE)
    yield Namespace(kube_api, NAMESPACE)
    kube_api.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def seen(space: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The others' objects as they were before there were BrokerClusters of their names."""
    space.apply(*(other(cluster) for cluster in OTHERS))
    # Whatever their own controllers write into them is no matter here.
    before = {cluster: _essence(space, cluster) for cluster in OTHERS}
    space.apply(*(broker_cluster(cluster) for cluster in OTHERS))
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with running(OperatorProcess(space.cluster.kubeconfig, space.name, log)):
        yield before


def _essence(space: Namespace, cluster: str) -> dict[str, Any]:
    kind = OTHERS[cluster][0]
    found = space.get(kind, name_of(cluster))
    assert found is not None, f"{kind} {name_of(cluster)} is gone"
    metadata = found["metadata"]
    marks = {key: metadata.get(key) for key in ("uid", "labels", "ownerReferences")}
    return {**marks, "spec": found.get("spec"), "data": found.get("data")}


@pytest.mark.parametrize("cluster", [name for name in OTHERS if name != "taken"])
def test_what_somebody_else_made_is_left_as_it_is(
    cluster: str, space: Namespace, seen: dict[str, Any]
) -> None:
    kind, name = OTHERS[cluster][0], name_of(cluster)
    message = space.wait_reason("BrokerCluster", cluster, "NameConflict")["message"]
    assert f"{kind} {name} was not made by the operator" in message
    if kind != "Secret":
        assert f"{kind.lower()} {name} brokerd.io/adopt={cluster}" in message
    assert space.condition("BrokerCluster", cluster, "Stalled")["status"] == "True"
    assert _essence(space, cluster) == seen[cluster]
    assert name_of(cluster) not in _owned(space, cluster)
    space.delete("BrokerCluster", cluster)
    space.wait_gone("BrokerCluster", cluster)
    space.apply(broker_cluster(cluster))
    space.wait_reason("BrokerCluster", cluster, "NameConflict")
    assert _essence(space, cluster) == seen[cluster]


def _owned(space: Namespace, cluster: str) -> set[str]:
    owned = set()
    for item in space.list(OTHERS[cluster][0]):
        owners = item["metadata"].get("ownerReferences") or ()
        if any(owner.get("kind") == "BrokerCluster" for owner in owners):
            owned.add(item["metadata"]["name"])
    return owned


def test_it_is_taken_over_when_it_says_so(space: Namespace, seen: dict[str, Any]) -> None:
    """The line of the message is what does it."""
    message = space.wait_reason("BrokerCluster", "taken", "NameConflict")["message"]
    _, _, line = message.partition("kubectl ")
    space.cluster.kubectl(*line.partition(";")[0].split())
    look = ["annotate", "--overwrite", "brokercluster", "taken", "brokerd.io/reconcile-at=1"]
    space.cluster.kubectl("-n", NAMESPACE, *look)
    wait_for("it is owned", lambda: "taken" in _owned(space, "taken"))
    found = space.get("Service", "taken")
    assert found is not None
    assert found["spec"]["selector"]["app.kubernetes.io/name"] == "brokerd"
