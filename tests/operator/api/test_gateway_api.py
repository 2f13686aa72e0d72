"""spec.gateway against a real API server, by an operator with the chart's rights and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster_fixtures import CLUSTER, Kubernetes
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for
from tests.operator.resources import resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

ROOT = CLUSTER.parents[1]
ROUTE_CRDS = Path(__file__).with_name("gateway_crds.yaml")
NAME = "gateway-shop"
RIGHTS = ("Role", "RoleBinding", "ServiceAccount")
PUBLIC = {"parentRefs": [{"name": "edge"}], "hostnames": ["orders.example"]}
TLS_ROUTE, TCP_ROUTE = "tlsroutes.gateway.networking.k8s.io", "tcproutes.gateway.networking.k8s.io"


@pytest.fixture(scope="module")
def shop(kube_api: Kubernetes) -> Namespace:
    kube_api.kubectl("apply", "-f", str(ROOT / "crds"))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    kube_api.kubectl("create", "namespace", NAME)
    return Namespace(kube_api, NAME)


def with_rights_of_the_chart(shop: Namespace, folder: Path) -> Path:
    """A kubeconfig of the ServiceAccount that the chart makes, with the Roles that it makes."""
    release = ("template", "o", str(ROOT / "charts/brokerd-operator"), f"--namespace={NAME}")
    rendered = yaml.safe_load_all(shop.cluster.helm(*release, "--kube-version=1.34.0"))
    rights = [item for item in rendered if item and item["kind"] in RIGHTS]
    shop.cluster.kubectl("-n", NAME, "apply", "-f", "-", input=yaml.safe_dump_all(rights))
    (account,) = (item["metadata"]["name"] for item in rights if item["kind"] == "ServiceAccount")
    token = shop.cluster.kubectl("-n", NAME, "create", "token", account).strip()
    config = yaml.safe_load(shop.cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def operator(shop: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("gateway")
    kubeconfig = with_rights_of_the_chart(shop, folder)
    with running(OperatorProcess(kubeconfig, NAME, folder / "operator.log")):
        yield


@pytest.fixture
def gateway_api(shop: Namespace, operator: None) -> Iterator[None]:
    install(shop)
    yield
    shop.cluster.kubectl("delete", "-f", str(ROUTE_CRDS), "--ignore-not-found")


def install(shop: Namespace) -> None:
    shop.cluster.kubectl("apply", "-f", str(ROUTE_CRDS))
    for route in (TLS_ROUTE, TCP_ROUTE):
        shop.cluster.kubectl("wait", "--for=condition=Established", f"crd/{route}")


def ask(shop: Namespace, name: str, gateway: dict[str, Any] | None) -> None:
    shop.apply(resource("BrokerCluster", name, replicas=1, gateway=gateway))


def route_reason(shop: Namespace, name: str) -> str:
    """What RouteAccepted says after one more pass."""
    body = shop.get("brokercluster", name)
    assert body is not None
    look = f"brokerd.io/reconcile-at={body['metadata']['resourceVersion']}"
    cluster = f"brokerclusters.brokerd.io/{name}"
    shop.cluster.kubectl("-n", NAME, "annotate", cluster, look, "--overwrite")
    return str(shop.condition("brokercluster", name, "RouteAccepted").get("reason", ""))


def wait_reason(shop: Namespace, name: str, reason: str) -> None:
    wait_for(f"RouteAccepted {reason}", lambda: route_reason(shop, name) == reason)


def verdict_of_the_gateway(shop: Namespace, name: str, status: str) -> None:
    condition = {"type": "Accepted", "status": status, "message": "no listener of that name"}
    parent = {"parentRef": {"name": "edge"}, "conditions": [condition]}
    patch = {"status": {"parents": [parent]}}
    where = ("-n", NAME, "patch", f"{TLS_ROUTE}/{name}", "--subresource=status", "--type=merge")
    shop.cluster.kubectl(*where, "-p", json.dumps(patch))


def test_without_the_gateway_api_the_rest_goes_on_and_the_route_comes_with_it(
    shop: Namespace, operator: None
) -> None:
    ask(shop, "late", PUBLIC)
    shop.wait_reason("brokercluster", "late", "WaitingForMembers")
    wait_reason(shop, "late", "GatewayApiMissing")
    assert shop.get("statefulset", "late") is not None
    install(shop)
    try:
        wait_reason(shop, "late", "Pending")
        assert shop.get(TLS_ROUTE, "late") is not None
    finally:
        shop.cluster.kubectl("delete", "-f", str(ROUTE_CRDS))


def test_a_route_is_made_changed_and_removed(shop: Namespace, gateway_api: None) -> None:
    ask(shop, "orders", PUBLIC)
    wait_reason(shop, "orders", "Pending")
    route = shop.get(TLS_ROUTE, "orders")
    assert route is not None
    assert route["spec"]["hostnames"] == ["orders.example"]
    verdict_of_the_gateway(shop, "orders", "False")
    wait_reason(shop, "orders", "NotAccepted")
    said = shop.condition("brokercluster", "orders", "RouteAccepted")["message"]
    assert "no listener of that name" in said
    verdict_of_the_gateway(shop, "orders", "True")
    wait_reason(shop, "orders", "Accepted")

    ask(shop, "orders", {**PUBLIC, "hostnames": ["amqp.example"]})
    wait_for(
        "the new name",
        lambda: (shop.get(TLS_ROUTE, "orders") or {})["spec"]["hostnames"] == ["amqp.example"],
    )
    ask(shop, "orders", {"parentRefs": [{"name": "edge"}], "route": "TCP"})
    wait_for("a TCPRoute", lambda: shop.get(TCP_ROUTE, "orders"))
    shop.wait_gone(TLS_ROUTE, "orders")
    ask(shop, "orders", None)
    shop.wait_gone(TCP_ROUTE, "orders")
    wait_for("no condition", lambda: route_reason(shop, "orders") == "")


def test_a_route_of_somebody_else_is_left_alone(shop: Namespace, gateway_api: None) -> None:
    mine = {
        "apiVersion": "gateway.networking.k8s.io/v1alpha2",
        "kind": "TLSRoute",
        "metadata": {"name": "plain"},
        "spec": {"rules": []},
    }
    shop.apply(mine)
    ask(shop, "plain", None)
    shop.wait_reason("brokercluster", "plain", "WaitingForMembers")
    assert shop.get(TLS_ROUTE, "plain") is not None
