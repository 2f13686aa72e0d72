"""A node with two of three members is cut off for longer than Kubernetes waits, and comes back."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.conftest import RELEASE
from tests.e2e.namespace import Namespace, Resource, resource, until
from tests.e2e.reach import Reach
from tests.e2e.traffic import BOUND_S, load

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

MEMBERS = [f"orders-{ordinal}" for ordinal in range(3)]
QUEUE = "behind"


def witness(node: str) -> Resource:
    """A pod of the same node that tolerates no more than any."""
    container = {
        "name": "sleep",
        "image": "localhost/brokerd:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "witness"},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


@contextmanager
def cut_off(node: str) -> Iterator[None]:
    """Take the node's cable away; it is back whatever happens."""
    cable = f"brokerdk-v{node.removeprefix('node')}"
    subprocess.run(["ip", "link", "set", cable, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", cable, "up"], check=True)


def test_members_behind_a_cut_are_there_when_it_ends(
    shop: Namespace,
    orders: Reach,
    installed: Namespace,
    record_property: Callable[[str, object], None],
) -> None:
    """G9: Kubernetes would evict both at once, without asking the disruption budget."""
    if not shop.kube.is_ours:
        pytest.skip("only the nodes of tools/cluster have a cable that a test may pull")
    shop.apply(resource("Queue", QUEUE, brokerRef={"name": "orders"}, type="quorum"))
    shop.wait_ready("brokercluster/orders", f"queue/{QUEUE}")
    before = {name: shop.get("pod", name) for name in MEMBERS}
    nodes = Counter(pod["spec"]["nodeName"] for pod in before.values())
    [(node, count)] = nodes.most_common(1)
    assert count >= 2, nodes
    shop.apply(witness(node))
    shop.kubectl("wait", "--for=condition=Ready", "pod/witness", "--timeout=100s")
    with load(orders, "", QUEUE, QUEUE, len(MEMBERS)) as running:
        running.wait_confirmed(50)
        with cut_off(node):
            until(
                lambda: "deletionTimestamp" in shop.get("pod", "witness")["metadata"],
                "Kubernetes evicts the node's pods",
            )
        healed_at = time.monotonic()
        running.wait_confirmed(50)
        shop.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=100s")
        until(lambda: shop.find("pod", "witness") is None, "the evicted pod is ended")
        running.wait_confirmed(50)
        notes = running.stop()
    for name, value in notes.figures().items():
        record_property(name, value)
    silence_s = notes.longest_silence_s(healed_at)
    record_property("longest silence after the heal, s", round(silence_s, 2))
    assert not notes.lost
    # It came back once, and stopped again for 11.6 s.
    assert silence_s <= BOUND_S
    for name, pod in before.items():
        after = shop.get("pod", name)
        assert after["metadata"]["uid"] == pod["metadata"]["uid"]
        assert "deletionTimestamp" not in after["metadata"]
    shop.delete("queue", QUEUE)
    # It may have been on that node.
    installed.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=100s")
    shop.wait_ready("brokercluster/orders")
