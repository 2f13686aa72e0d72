"""A BrokerCluster's own life: by its chart, hibernated and woken, its operator away."""

from __future__ import annotations

import json

import pika
import pytest

from tests.cluster_fixtures import IMAGES
from tests.e2e.conftest import RELEASE, ROOT, forbidden_lines
from tests.e2e.namespace import Namespace, resource, small_cluster, until
from tests.e2e.reach import Reach
from tests.e2e.traffic import take

#: Three members that start, or restart, one after the other.
CHANGE_S = 400.0
#: Helm's own is five minutes.
HELM_TEST_S = 310.0

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_cluster_that_slept_has_its_messages(space: Namespace) -> None:
    """replicas 0 keeps the volumes; a member started from its disk has everything."""
    space.apply(small_cluster())
    space.apply(resource("Queue", "jobs", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("brokercluster/tiny", "queue/jobs")
    reach = Reach(space, "tiny")
    put(reach, "jobs", b"dreamt")
    before = space.get("pod", "tiny-0")["metadata"]["uid"]

    space.patch("brokercluster", "tiny", {"replicas": 0})
    space.wait_condition("brokercluster", "tiny", "Stopped")
    until(lambda: space.find("pod", "tiny-0") is None, "the member's pod is gone")
    space.patch("brokercluster", "tiny", {"replicas": 1})
    # The count alone may still be that of before.
    until(
        lambda: pods(space).get("tiny-0", before) != before and ready_members(space) == 1,
        "the member is back",
        CHANGE_S,
    )
    [(_, body)] = take(reach, "jobs", 1)
    assert body == b"dreamt"
    reach.close()


def test_message_outlives_every_change_of_members(space: Namespace) -> None:
    """G1: one member, three, each with a new template, one; the message was at all three."""
    space.apply(small_cluster())
    space.wait_ready("brokercluster/tiny")
    space.patch("brokercluster", "tiny", {"replicas": 3})
    until(lambda: ready_members(space) == 3, "three members are ready", CHANGE_S)
    space.apply(resource("Queue", "wide", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("queue/wide")
    reach = Reach(space, "tiny")
    put(reach, "wide", b"kept")

    before = pods(space)
    space.patch("brokercluster", "tiny", {"podTemplate": {"labels": {"roll": "1"}}})
    until(
        lambda: not set(pods(space).values()) & set(before.values()) and ready_members(space) == 3,
        "each member has been replaced, and all are back",
        CHANGE_S,
    )
    space.patch("brokercluster", "tiny", {"replicas": 1})
    until(lambda: set(pods(space)) == {"tiny-0"}, "two members have left", CHANGE_S)
    [(_, body)] = take(reach, "wide", 1)
    assert body == b"kept"
    reach.close()


def put(reach: Reach, queue: str, body: bytes) -> None:
    """Publish one message, and wait for its confirm."""
    connection = reach.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def ready_members(space: Namespace) -> int:
    """How many members the StatefulSet counts as ready."""
    return int(space.get("statefulset", "tiny")["status"].get("readyReplicas", 0))


def pods(space: Namespace) -> dict[str, str]:
    """The uids of the members' pods, by name."""
    metadata = [pod["metadata"] for pod in space.items("pods")]
    return {found["name"]: found["uid"] for found in metadata if found["name"].startswith("tiny-")}


def said_by_helm_test(space: Namespace, release: str) -> str:
    """What `helm test` says, with the log of its pod."""
    return space.kube.helm(
        *("test", release, "--logs", "--namespace", space.name), timeout_s=HELM_TEST_S
    )


def test_chart_of_a_cluster_brings_a_broker(space: Namespace) -> None:
    chart = str(ROOT / "charts" / "brokerd-cluster")
    values = ("replicas=1", "storage.size=1Gi", "storage.retention=Delete")
    flags = [part for value in values for part in ("--set", f"cluster.{value}")]
    flags += ["--set", f"test.image={IMAGES['broker']}"]
    queue = {"kind": "Queue", "name": "jobs", "spec": {"type": "quorum"}}
    flags += ["--set-json", f"resources={json.dumps([queue])}"]
    space.kube.helm("install", "prod", chart, "--namespace", space.name, *flags)
    [cluster] = space.items("brokerclusters")
    name = cluster["metadata"]["name"]
    space.wait_ready(f"brokercluster/{name}", "queue")
    reach = Reach(space, name)
    connection = reach.connect(is_tls=True)
    assert connection.channel().queue_declare("jobs", passive=True).method.queue == "jobs"
    connection.close()
    reach.close()
    # A message through and its dead letter back, from a pod, with the Secrets of the cluster.
    assert "round trip passed" in said_by_helm_test(space, "prod")
    space.kube.helm("uninstall", "prod", "--namespace", space.name, "--wait")
    # The test's is not Helm's to delete.
    left = [f"{name}-round-trip"]
    until(
        lambda: [pod["metadata"]["name"] for pod in space.items("pods")] == left,
        "the members' pods are gone",
    )


def test_helm_test_says_that_the_installation_is_whole(installed: Namespace) -> None:
    for _ in range(2):
        assert "selftest passed" in said_by_helm_test(installed, RELEASE)


def test_restarted_operator_writes_nothing_where_nothing_changed(
    shop: Namespace, installed: Namespace
) -> None:
    def versions() -> dict[str, str]:
        items = shop.items("queues,exchanges,policies")
        found = {
            f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for item in items
        }
        # Its status moves with the pods; its spec is the operator's.
        generation = shop.get("statefulset", "orders")["metadata"]["generation"]
        return found | {"StatefulSet/orders": str(generation)}

    assert not forbidden_lines(installed)
    before = versions()
    installed.kubectl("rollout", "restart", f"deployment/{RELEASE}")
    installed.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=100s")
    # The new operator works: it takes a new resource.
    shop.apply(resource("Queue", "after", brokerRef={"name": "orders"}, type="quorum"))
    shop.wait_applied("queue", "after")
    shop.delete("queue", "after")
    assert versions() == before
