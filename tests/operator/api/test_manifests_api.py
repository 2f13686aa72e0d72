"""A real API server takes the manifests, and its pod security admission takes the pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from brokerd_operator.manifests import cluster, naming, secrets

from tests.cluster_fixtures import Kubernetes
from tests.operator.manifests.test_manifests import all_on, context, pod_specs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

CERTIFICATE = secrets.Certificate(b"CERT", b"KEY", b"CA")


def everything(made: naming.Context) -> list[naming.Manifest]:
    generated = [
        secrets.admin_secret(made, "pw"),
        secrets.cluster_secret(made, "s"),
        secrets.certificate_secret(made, made.tls_secret, CERTIFICATE),
        secrets.certificate_secret(made, made.peer_tls_secret, CERTIFICATE),
        secrets.ca_secret(made, {"ca.crt": b"CA", "ca.key": b"KEY"}, {"brokerd.io/mark": "1"}),
    ]
    return [item for item in [*generated, *cluster.objects(made)] if item is not None]


def as_list(items: list[naming.Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture(scope="module")
def shop(kube_api: Kubernetes) -> Kubernetes:
    kube_api.kubectl("create", "namespace", "shop")
    kube_api.kubectl("label", "namespace", "shop", "pod-security.kubernetes.io/enforce=restricted")
    return kube_api


@pytest.mark.parametrize("name", ["default", "all-on"])
def test_api_server_takes_every_manifest_as_it_is(shop: Kubernetes, name: str) -> None:
    """Strict: an unknown or a mistyped field is an error; else it would be dropped in silence."""
    items = everything(all_on() if name == "all-on" else context(telemetry={"enabled": True}))
    shop.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", input=as_list(items))


@pytest.mark.parametrize("name", ["default", "all-on"])
def test_pod_security_admission_takes_every_pod(shop: Kubernetes, name: str) -> None:
    """SEC-29, judged by Kubernetes itself: `enforce=restricted`."""
    items = everything(all_on() if name == "all-on" else context(telemetry={"enabled": True}))
    for index, spec in enumerate(pod_specs(items)):
        shop.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(_pod(index, spec)))


def test_pod_security_admission_would_refuse_less(shop: Kubernetes) -> None:
    """The test above can fail."""
    spec = next(pod_specs(everything(context())))
    weakened = {**_pod(9, spec)}
    weakened["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    said = shop.kubectl(
        "create", "--dry-run=server", "-f", "-", input=json.dumps(weakened), check=False
    )
    assert "violates PodSecurity" in said


def _pod(index: int, spec: dict[str, Any]) -> dict[str, Any]:
    volumes = [*spec.get("volumes", ()), {"name": "data", "emptyDir": {}}]
    containers = [{"image": "localhost/x:1", **item} for item in spec["containers"]]
    # The admission of priorities and accounts is not what is asked here.
    pod = {key: item for key, item in spec.items() if key != "priorityClassName"}
    pod |= {"serviceAccountName": "default", "volumes": volumes, "containers": containers}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{index}", "namespace": "shop"},
        "spec": pod,
    }
