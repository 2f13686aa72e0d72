"""A team's single change goes on while another team's many deletions are worked on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from brokerd_operator.sources.api import GROUP_PATH
from brokerd_operator.specs.model import Identity

from tests.cluster_fixtures import Kubernetes
from tests.operator.api_fixtures import api as api
from tests.operator.api_fixtures import broker as broker
from tests.operator.broker_thread import BrokerThread
from tests.operator.fault_proxy import Upstream
from tests.operator.operator_process import (
    Namespace,
    OperatorProcess,
    of_connection,
    running,
    wait_for,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

MANY = 300
#: So many of them are deleted before the other team's change: then the operator is at work.
BEGUN = 20


@pytest.fixture
def namespaces(api: Kubernetes) -> Iterator[tuple[Namespace, Namespace]]:
    names = ("fair-many", "fair-single")
    for name in names:
        api.kubectl("create", "namespace", name)
    yield Namespace(api, names[0]), Namespace(api, names[1])
    for name in names:
        api.kubectl("delete", "namespace", name, "--wait=false")


def test_one_change_does_not_wait_for_the_deletions_of_another_namespace(
    api: Kubernetes,
    namespaces: tuple[Namespace, Namespace],
    broker: BrokerThread,
    tmp_path: Path,
) -> None:
    """Counted, not timed: how many of the others' queues are left when the change is done."""
    with contextlib.closing(Upstream.of(api.kubeconfig, tmp_path)) as upstream:
        measure(upstream, namespaces, broker, tmp_path)


def measure(
    upstream: Upstream,
    namespaces: tuple[Namespace, Namespace],
    broker: BrokerThread,
    folder: Path,
) -> None:
    many, single = namespaces
    objects = broker.broker.objects
    queues = f"{GROUP_PATH}/namespaces/{many.name}/queues"

    def others() -> int:
        return sum(key.kind == "queue" and key.name != "own" for key in tuple(objects))

    def make(number: int) -> None:
        body = of_connection("Queue", f"q{number}")
        body["metadata"]["namespace"] = many.name
        upstream.request("POST", queues, body)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(MANY)))
    for space in namespaces:
        space.connect(broker.broker.address)
    single.apply(of_connection("Queue", "own", maxLength=1))
    process = OperatorProcess(many.cluster.kubeconfig, f"{many.name},{single.name}", folder / "log")
    # It is stopped for as long as the API server takes to mark so many.
    process.settings["LEASE_SECONDS"] = "120"
    with running(process):
        own = Identity("queue", "/", "own")
        wait_for("all are made", lambda: others() == MANY and own in objects, 200)
        wait_for("it rests", lambda: process.metric("brokerd_operator_status_writes") > MANY)
        # All of them are known to the operator before the change comes.
        assert process.process is not None
        process.process.send_signal(signal.SIGSTOP)
        upstream.request("DELETE", queues)
        process.process.send_signal(signal.SIGCONT)
        wait_for("some are gone", lambda: others() < MANY - BEGUN, poll_s=0.001)
        # How long the API server takes for the change is not the operator's.
        process.process.send_signal(signal.SIGSTOP)
        path = f"{GROUP_PATH}/namespaces/{single.name}/queues/own"
        patch = {"spec": {"maxLength": 2}}
        upstream.request("PATCH", path, patch, "application/merge-patch+json")
        process.process.send_signal(signal.SIGCONT)
        wait_for("own", lambda: objects[own]["settings"].get("max-length") == 2, poll_s=0.001)
        left = others()
        assert left > MANY / 2, f"the change waited: {left} of {MANY} others are left"
        wait_for("all others are gone", lambda: others() == 0, 200)
