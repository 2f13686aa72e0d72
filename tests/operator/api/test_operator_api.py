"""The operator as a process against a real API server (design/operator.md §15).

The broker behind it is a fake one, so that it can be broken at will; what a real broker does is
shown by the tests of the embedded mode and end to end.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokerd_operator.specs.model import Identity

from tests.cluster_fixtures import Kubernetes
from tests.operator.api_fixtures import api as api
from tests.operator.api_fixtures import broker as broker
from tests.operator.broker_thread import BrokerThread
from tests.operator.operator_process import (
    Namespace,
    OperatorProcess,
    full,
    of_connection,
    running,
    wait_for,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

#: The garbage collector looks for new kinds every 30 s.
GARBAGE_S = 120.0


@pytest.fixture
def namespace(api: Kubernetes, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    name = f"op-{abs(hash(request.node.name)) % 10**8}"
    api.kubectl("create", "namespace", name)
    yield Namespace(api, name)
    api.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def operator(api: Kubernetes, namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    process = OperatorProcess(api.kubeconfig, namespace.name, tmp_path / "operator.log")
    with running(process):
        yield process


@pytest.fixture
def connected(namespace: Namespace, broker: BrokerThread, operator: OperatorProcess) -> Namespace:
    namespace.connect(broker.broker.address)
    namespace.wait_reason("brokerconnection", "prod", "Available")
    return namespace


def test_resources_are_made_changed_and_removed(connected: Namespace, broker: BrokerThread) -> None:
    fake = broker.broker
    connected.apply(
        of_connection("Binding", "b", source="in", destination={"name": "q"}),
        of_connection("Queue", "q", maxLength=5),
        of_connection("Exchange", "in", type="topic"),
        of_connection("Policy", "p"),
        of_connection("Vhost", "team"),
        of_connection("User", "web"),
        of_connection("Permission", "web", userRef={"name": "web"}, user=None, read=".*"),
    )
    for kind, name in (("binding", "b"), ("queue", "q"), ("permission", "web"), ("vhost", "team")):
        connected.wait_reason(kind, name, "Applied")
    assert fake.objects[Identity("queue", "/", "q")]["settings"] == {"max-length": 5}
    assert fake.named("binding") == ["in|queue|q||"]
    secret = connected.get("secret", "web-credentials")
    assert secret is not None, "a User without a Secret gets one"
    connected.apply(of_connection("Queue", "q", maxLength=9))
    wait_for(
        "the queue changed",
        lambda: fake.objects[Identity("queue", "/", "q")]["settings"] == {"max-length": 9},
    )
    for kind, name in (("queue", "q"), ("exchange", "in"), ("binding", "b"), ("user", "web")):
        connected.delete(kind, name)
    for kind, name in (("queue", "q"), ("exchange", "in"), ("binding", "b"), ("user", "web")):
        connected.wait_gone(kind, name)
    assert fake.named("queue") == fake.named("exchange") == fake.named("user") == []


def test_a_broken_resource_is_stalled_and_both_fixing_and_reverting_help(
    connected: Namespace, broker: BrokerThread
) -> None:
    good = of_connection("Policy", "p", pattern="^a")
    connected.apply(good)
    connected.wait_reason("policy", "p", "Applied")
    connected.apply(of_connection("Policy", "p", pattern="("))
    connected.wait_reason("policy", "p", "InvalidPattern")
    assert connected.condition("policy", "p", "Stalled")["status"] == "True"
    # The very spec of before: what handlers that compare with the last one handled never see.
    connected.apply(good)
    connected.wait_reason("policy", "p", "Applied")
    connected.apply(of_connection("Policy", "p", pattern="("))
    connected.wait_reason("policy", "p", "InvalidPattern")
    connected.apply(of_connection("Policy", "p", pattern="^b"))
    connected.wait_reason("policy", "p", "Applied")
    assert broker.broker.objects[Identity("policy", "/", "p")]["pattern"] == "^b"


def test_drift_is_repaired_at_once_with_an_event(
    connected: Namespace, broker: BrokerThread
) -> None:
    connected.apply(of_connection("Queue", "q"))
    connected.wait_reason("queue", "q", "Applied")
    broker.do(broker.broker.remove, Identity("queue", "/", "q"))
    wait_for("the queue came back", lambda: broker.broker.named("queue") == ["q"])
    wait_for("an event", lambda: connected.events("DriftRepaired"))


def test_deletion_does_not_hang_when_the_broker_is_gone(
    connected: Namespace, broker: BrokerThread
) -> None:
    connected.apply(
        of_connection("Queue", "kept", deletionPolicy="Retain"), of_connection("Exchange", "x")
    )
    connected.wait_reason("queue", "kept", "Applied")
    connected.wait_reason("exchange", "x", "Applied")
    broker.call(broker.broker.stop())
    connected.wait_reason("brokerconnection", "prod", "WaitingForBroker")
    connected.delete("queue", "kept")
    connected.wait_gone("queue", "kept")
    connected.delete("exchange", "x")
    wait_for(
        "the exchange waits and says so",
        lambda: connected.condition("exchange", "x").get("reason") == "WaitingForBroker",
    )
    connected.delete("brokerconnection", "prod")
    connected.wait_gone("exchange", "x")


def test_namespace_with_everything_in_it_can_be_deleted(
    connected: Namespace, broker: BrokerThread, api: Kubernetes
) -> None:
    connected.apply(of_connection("Queue", "q"), of_connection("Exchange", "x"))
    connected.wait_reason("queue", "q", "Applied")
    broker.call(broker.broker.stop())
    api.kubectl("delete", "namespace", connected.name, "--wait=false")
    wait_for(
        "the namespace is gone",
        lambda: not api.kubectl("get", "namespace", connected.name, "--ignore-not-found").strip(),
        GARBAGE_S,
    )


def test_deletion_leaves_a_queue_with_messages_behind(
    connected: Namespace, broker: BrokerThread
) -> None:
    fake = broker.broker
    connected.apply(of_connection("Queue", "q"))
    connected.wait_reason("queue", "q", "Applied")
    fake.messages["q"] = 3
    connected.delete("queue", "q")
    connected.wait_gone("queue", "q")
    assert fake.named("queue") == ["q"]
    assert Identity("queue", "/", "q") not in fake.owners
    wait_for("an event", lambda: connected.events("LeftBehind"))
    connected.apply(of_connection("Queue", "q"))
    connected.wait_reason("queue", "q", "Applied")
    assert fake.owners[Identity("queue", "/", "q")].resource == f"Queue/{connected.name}/q"


def test_a_shovel_that_has_done_its_work_says_so(
    connected: Namespace, broker: BrokerThread
) -> None:
    """A member deletes the definition with the cause auto-delete; the same spec again is no wish
    for another one.
    """
    done = Identity("parameter", "/", "shovel/mover")
    source = {"queue": "a", "deleteAfter": "queue-length"}
    shovel = of_connection("Shovel", "mover", source=source, destination={"queue": "b"})
    connected.apply(shovel)
    connected.wait_reason("shovel", "mover", "Applied")
    value = broker.broker.objects[done]["value"]
    assert (value["src-delete-after"], value["src-uri"]) == ("queue-length", "amqp:///%2F")
    broker.do(broker.broker.remove, done, "auto-delete")
    connected.wait_reason("shovel", "mover", "Expired")
    connected.apply(shovel)
    connected.wait_reason("shovel", "mover", "Expired")
    assert broker.broker.named("parameter") == []
    connected.delete("shovel", "mover")
    connected.wait_gone("shovel", "mover")


def test_two_resources_of_one_name_conflict_until_the_older_goes(
    connected: Namespace, broker: BrokerThread
) -> None:
    connected.apply(of_connection("Queue", "a", name="same"))
    connected.wait_reason("queue", "a", "Applied")
    connected.apply(of_connection("Queue", "b", name="same"))
    connected.wait_reason("queue", "b", "NameConflict")
    connected.delete("queue", "a")
    connected.wait_gone("queue", "a")
    connected.wait_reason("queue", "b", "Applied")
    assert broker.broker.named("queue") == ["same"]


def test_restart_after_a_kill_writes_nothing(
    connected: Namespace, broker: BrokerThread, operator: OperatorProcess
) -> None:
    names = [f"q{number}" for number in range(20)]
    connected.apply(*(of_connection("Queue", name) for name in names))
    for name in names:
        connected.wait_reason("queue", name, "Applied")
    versions = {item["metadata"]["name"]: item["metadata"] for item in connected.list("queue")}
    writes = broker.broker.writes
    operator.stop(9)
    operator.log.write_text("")
    operator.start()
    operator.wait_leading()
    wait_for("all were looked at", lambda: _passes(operator, "Queue") >= 20)
    wait_for("the broker is connected", lambda: _passes(operator, "BrokerConnection") >= 1)
    connected.wait_reason("brokerconnection", "prod", "Available")
    after = {item["metadata"]["name"]: item["metadata"] for item in connected.list("queue")}
    for name in names:
        assert after[name]["resourceVersion"] == versions[name]["resourceVersion"]
    assert broker.broker.writes == writes
    assert operator.metric("brokerd_operator_status_writes_total") == 0


def _passes(operator: OperatorProcess, kind: str) -> float:
    return operator.metric(f'brokerd_operator_passes_total{{kind="{kind}"}}')


def test_of_two_operators_one_works_and_the_other_takes_over(
    connected: Namespace, operator: OperatorProcess, tmp_path: Path
) -> None:
    second = OperatorProcess(
        operator.kubeconfig, connected.name, tmp_path / "second.log", identity="operator-b"
    )
    second.start()
    try:
        wait_for("the standby is ready", second.is_ready)
        assert "lease acquired" not in second.log.read_text()
        operator.stop(9)
        second.wait_leading()
        connected.apply(of_connection("Queue", "q"))
        connected.wait_reason("queue", "q", "Applied")
    finally:
        assert second.stop() == 0


def test_an_operator_whose_lease_was_taken_waits_for_it_in_the_same_process(
    connected: Namespace, operator: OperatorProcess
) -> None:
    """As after a time without processor time: no restart, and nothing written by two."""
    assert operator.process is not None
    pid = operator.process.pid
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    taken = {"spec": {"holderIdentity": "somebody", "renewTime": now}}
    lease = ("-n", connected.name, "patch", "lease", "brokerd-operator", "--type=merge")
    connected.cluster.kubectl(*lease, "-p", json.dumps(taken))
    wait_for("it says so", lambda: "waits for the Lease again" in operator.log.read_text())
    connected.apply(of_connection("Queue", "q"))
    # Nobody renews it: it expires 10 s after it was seen.
    wait_for("leads again", lambda: operator.log.read_text().count("lease acquired") == 2)
    connected.wait_reason("queue", "q", "Applied")
    assert operator.process.poll() is None
    assert operator.process.pid == pid
    wait_for("ready", operator.is_ready)
    assert operator.stop() == 0


def test_a_status_that_somebody_edited_or_took_away_is_written_again(
    connected: Namespace, operator: OperatorProcess
) -> None:
    connected.apply(of_connection("Queue", "q"))
    connected.wait_reason("queue", "q", "Applied")
    patch = ("-n", connected.name, "patch", full("queue"), "q", "--subresource=status")
    lie = {
        "type": "Ready",
        "status": "False",
        "reason": "Lie",
        "message": "",
        "observedGeneration": 1,
    }
    told = {"status": {"conditions": [{**lie, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    connected.cluster.kubectl(*patch, "--type=merge", "-p", json.dumps(told))
    connected.wait_reason("queue", "q", "Applied")
    connected.cluster.kubectl(*patch, "--type=merge", "-p", json.dumps({"status": None}))
    connected.wait_reason("queue", "q", "Applied")
    writes = operator.metric("brokerd_operator_status_writes")
    connected.apply(of_connection("Queue", "other"))
    connected.wait_reason("queue", "other", "Applied")
    assert operator.metric("brokerd_operator_status_writes") <= writes + 2, "its own are no news"


def test_kubectl_wait_and_the_printed_columns(connected: Namespace, api: Kubernetes) -> None:
    connected.apply(of_connection("Queue", "q"))
    api.kubectl(
        "-n",
        connected.name,
        "wait",
        "--for=condition=Ready",
        "queue.brokerd.io/q",
        "--timeout=100s",
    )
    line = api.kubectl("-n", connected.name, "get", "queues.brokerd.io", "q", "--no-headers")
    assert line.split()[:7] == [
        "q",
        f"{connected.name}/prod",
        "/",
        "q",
        "quorum",
        "True",
        "Applied",
    ]


def test_a_cluster_gets_its_objects_secrets_and_status(
    namespace: Namespace, operator: OperatorProcess, api: Kubernetes
) -> None:
    body = {
        "apiVersion": "brokerd.io/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "prod"},
        "spec": {"replicas": 3},
    }
    namespace.apply(body)
    namespace.wait_reason("brokercluster", "prod", "WaitingForMembers")
    assert namespace.get("statefulset", "prod")["spec"]["replicas"] == 3  # type: ignore[index]
    made = ("prod-admin", "prod-cluster", "prod-keys", "prod-ca", "prod-tls", "prod-peer-tls")
    for secret in made:
        assert namespace.get("secret", secret) is not None, secret
    before = namespace.get("statefulset", "prod")
    assert before is not None
    namespace.apply({**body, "spec": {"replicas": 0}})
    namespace.wait_reason("brokercluster", "prod", "Stopped")
    namespace.delete("brokercluster", "prod")
    namespace.wait_gone("brokercluster", "prod")
    namespace.wait_gone("statefulset", "prod", GARBAGE_S)
