"""`kubectl apply -f examples/orders` makes brokers and everything in them, and shows it."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import ORDERS, RELEASE
from tests.e2e.namespace import Namespace
from tests.e2e.reach import Reach

# The first test pays for loading the images, installing and starting.
pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_kubectl_get_broker_shows_all_resources_with_their_columns(shop: Namespace) -> None:
    tables = shop.kubectl("get", "broker").strip().split("\n\n")
    heads = {table.split("/")[0].split("\n")[-1].split(".")[0]: table for table in tables}
    queue_head, *queues = heads["queue"].splitlines()
    assert queue_head.split() == [
        "NAME",
        "BROKER",
        "VHOST",
        "NAME",
        "TYPE",
        "READY",
        "REASON",
        "AGE",
    ]
    rows = {row.split()[0].split("/")[1]: row.split()[1:7] for row in queues}
    broker = f"{shop.name}/orders"
    assert rows["orders"] == [broker, "/", "orders", "quorum", "True", "Applied"]
    assert set(rows) == {"orders", "orders.dead", "unrouted", "stock"}
    _, *clusters = heads["brokercluster"].splitlines()
    found = {row.split()[0].split("/")[1]: row.split() for row in clusters}
    assert found["orders"][1:3] == ["3", "3"]
    assert found["warehouse"][1:3] == ["1", "1"]
    kinds = {"brokercluster", "exchange", "queue", "binding", "policy", "federationupstream"}
    assert set(heads) == kinds


def test_members_are_pods_of_a_stateful_set_with_a_volume_each(shop: Namespace) -> None:
    stateful_set = shop.get("statefulset", "orders")
    assert stateful_set["status"]["readyReplicas"] == 3
    pods = shop.items(
        "pods", "app.kubernetes.io/instance=orders,app.kubernetes.io/component=broker"
    )
    assert {pod["metadata"]["name"] for pod in pods} == {f"orders-{n}" for n in range(3)}
    assert len({pod["spec"]["nodeName"] for pod in pods}) > 1
    claims = {claim["metadata"]["name"]: claim for claim in shop.items("pvc")}
    for ordinal in range(3):
        assert claims[f"data-orders-{ordinal}"]["status"]["phase"] == "Bound"


def test_status_of_the_cluster_names_its_members(shop: Namespace) -> None:
    status = shop.get("brokercluster", "orders")["status"]
    assert {member["name"] for member in status["members"]} == {f"orders-{n}" for n in range(3)}
    assert status["readyReplicas"] == 3
    assert status["image"] == "localhost/brokerd:dev"
    assert shop.condition("brokercluster", "orders", "Available")["status"] == "True"


def test_broker_has_what_the_resources_say(shop: Namespace, orders: Reach) -> None:
    queues = orders.topology("queue")
    assert queues["orders"]["type"] == "quorum"
    settings = queues["orders"]["settings"]
    assert settings["delivery-limit"] == 3
    assert settings["dead-letter-strategy"] == "at-least-once"
    assert {"orders.in", "orders.unrouted", "orders.dead", "stock"} <= set(
        orders.topology("exchange")
    )
    policy = orders.topology("policy")["unrouted"]
    assert policy["definition"] == {"alternate-exchange": "orders.unrouted"}


def test_second_apply_changes_nothing(shop: Namespace) -> None:
    before = {
        item["metadata"]["name"]: item["metadata"]["generation"] for item in shop.items("queues")
    }

    said = shop.apply(ORDERS)
    assert all(line.endswith("unchanged") for line in said.splitlines()), said
    after = {
        item["metadata"]["name"]: item["metadata"]["generation"] for item in shop.items("queues")
    }
    assert after == before


def test_operator_has_only_the_rights_of_its_chart(installed: Namespace) -> None:
    """SEC-24, SEC-26: no list of secrets, no exec, no wildcard."""
    account = f"system:serviceaccount:{installed.name}:{RELEASE}"
    for question in (
        ("list", "secrets"),
        ("delete", "secrets"),
        ("create", "pods", "--subresource=exec"),
        ("create", "clusterroles"),
        ("*", "*"),
    ):
        ask = ("auth", "can-i", *question, "--all-namespaces", f"--as={account}")
        assert installed.kubectl(*ask, check=False).split()[0] == "no", question
    pod = installed.items("pods", f"app.kubernetes.io/name={RELEASE}")[0]
    assert pod["spec"]["serviceAccountName"] == RELEASE
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0, json.dumps(pod["status"])
