"""A namespace that is deleted with resources in it goes, while the operator starts anew, and
everything else goes on: for an operator of all namespaces and for one of two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import RELEASE, nightly
from tests.e2e.namespace import Namespace, resource, small_cluster, until
from tests.e2e.operators import in_place_of

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

WATCHED = ("e2e-left", "e2e-right")
#: A member has 60 s to end, and the operator's Lease 15 s to run out when it was killed.
GONE_S = 120.0


def fill(space: Namespace) -> None:
    """A broker, and resources of several kinds with finalizers."""
    broker = {"name": "tiny"}
    space.apply(small_cluster())
    space.apply(resource("Queue", "jobs", brokerRef=broker, type="quorum"))
    space.apply(resource("Exchange", "in", brokerRef=broker, type="topic"))
    space.apply(resource("User", "clerk", brokerRef=broker))
    rights = {"user": "clerk", "configure": "", "write": ".*", "read": ".*"}
    space.apply(resource("Permission", "clerk", brokerRef=broker, vhost="/", **rights))


def wait_filled(space: Namespace) -> None:
    space.wait_ready("brokercluster/tiny", "queue", "exchange", "user", "permission")


def kill_operator(system: Namespace) -> None:
    """As its node would if it failed: no Lease is given back."""
    selector = ("-l", f"app.kubernetes.io/name={RELEASE}")
    system.kubectl("delete", "pods", *selector, "--grace-period=0", "--force")


def assert_goes_while_the_operator_starts(space: Namespace, system: Namespace) -> None:
    space.kube.kubectl("delete", "namespace", space.name, "--wait=false")
    kill_operator(system)
    until(
        lambda: (
            not space.kube.kubectl(
                "get", "namespace", space.name, "-o", "name", "--ignore-not-found"
            )
        ),
        f"the namespace {space.name} is gone",
        GONE_S,
    )


def assert_works(space: Namespace, name: str) -> None:
    space.apply(resource("Queue", name, brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready(f"queue/{name}", timeout_s=60)


@pytest.fixture
def ops(installed: Namespace) -> Iterator[Namespace]:
    """An operator of two namespaces."""
    with in_place_of(installed, WATCHED) as found:
        yield found


@nightly
def test_one_of_two_watched_namespaces_is_deleted(ops: Namespace) -> None:
    left, right = (Namespace(ops.kube, name) for name in WATCHED)
    fill(left)
    fill(right)
    wait_filled(left)
    wait_filled(right)
    assert_goes_while_the_operator_starts(left, ops)
    assert_works(right, "after")
    ops.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=100s")


def test_a_namespace_of_all_is_deleted(
    space: Namespace, shop: Namespace, installed: Namespace
) -> None:
    fill(space)
    wait_filled(space)
    assert_goes_while_the_operator_starts(space, installed)
    installed.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=100s")
    shop.apply(resource("Queue", "beside", brokerRef={"name": "orders"}, type="quorum"))
    shop.wait_ready("queue/beside", timeout_s=60)
    shop.delete("queue", "beside")
