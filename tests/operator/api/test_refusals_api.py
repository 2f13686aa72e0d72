"""What a real API server refuses shows in the status of the resource that it is about.

Quotas, limits, admission policies, names that are too long, a StorageClass and a pull Secret that
are missing, and a status that may not be written. Pods are made and never run here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster_fixtures import Kubernetes
from tests.operator.api.test_cluster_lifecycle_api import Members
from tests.operator.api_fixtures import api as api
from tests.operator.broker_thread import BrokerThread
from tests.operator.operator_process import (
    Namespace,
    OperatorProcess,
    full,
    of_connection,
    running,
    wait_for,
)
from tests.operator.resources import resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

#: One for each thing that holds for a whole namespace.
PLAIN, SCARCE, LIMITED = "op-refusals", "op-refusals-scarce", "op-refusals-limited"
UNWATCHED = "default"
ERRORS = "brokerd_operator_pass_errors_total"


@pytest.fixture(scope="module")
def operator(
    api: Kubernetes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    names = (PLAIN, SCARCE, LIMITED)
    for name in names:
        api.kubectl("create", "namespace", name)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    broker = BrokerThread()
    with running(OperatorProcess(api.kubeconfig, ",".join(names), log)) as process:
        for name in (PLAIN, SCARCE):
            space = Namespace(api, name)
            space.connect(broker.broker.address)
            space.wait_reason("brokerconnection", "prod", "Available")
        yield process
    broker.close()
    for name in names:
        api.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def space(api: Kubernetes, operator: OperatorProcess) -> Namespace:
    return Namespace(api, PLAIN)


def refusals(space: Namespace, kind: str, name: str) -> list[str]:
    """Messages of Events about a resource."""
    events: Any = space.list("events")
    return [
        item["message"]
        for item in events
        if item["reason"] == "ApiRefused"
        and item["involvedObject"]["kind"].lower() == kind
        and item["involvedObject"]["name"] == name
    ]


def look(space: Namespace, kind: str, name: str, at: str = "now") -> None:
    mark = f"brokerd.io/reconcile-at={at}"
    space.cluster.kubectl("-n", space.name, "annotate", "--overwrite", full(kind), name, mark)


def quota(name: str, **hard: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"hard": hard},
    }


def _used(space: Namespace, name: str) -> Any:
    return ((space.get("resourcequota", name) or {}).get("status") or {}).get("used")


class Deny:
    """A ValidatingAdmissionPolicy that denies one kind of request about one name."""

    def __init__(self, space: Namespace, resource: str, name: str) -> None:
        self.name = f"{space.name}-{name}"
        self.kubectl = space.cluster.kubectl
        group = "brokerd.io" if resource.startswith("queues") else ""
        rule: Any = {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [resource],
        }
        kind = "ValidatingAdmissionPolicy"
        version = {"apiVersion": "admissionregistration.k8s.io/v1"}
        self.objects: Any = [
            {
                **version,
                "kind": kind,
                "metadata": {"name": self.name},
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": {"resourceRules": [rule]},
                    "validations": [
                        {
                            "expression": f"object.metadata.name != '{name}'",
                            "message": "not in this house",
                        }
                    ],
                },
            },
            {
                **version,
                "kind": f"{kind}Binding",
                "metadata": {"name": self.name},
                "spec": {"policyName": self.name, "validationActions": ["Deny"]},
            },
        ]

    def __enter__(self) -> Deny:
        for item in self.objects:
            self.kubectl("apply", "-f", "-", input=json.dumps(item))
        return self

    def __exit__(self, *_: object) -> None:
        for item in self.objects:
            self.kubectl("delete", item["kind"], self.name)


def test_a_users_secret_that_a_quota_refuses_is_said(
    api: Kubernetes, operator: OperatorProcess
) -> None:
    space = Namespace(api, SCARCE)
    space.apply(quota("few", secrets="1"))
    wait_for("the quota counts", lambda: _used(space, "few"))
    space.apply(of_connection("User", "web"))
    message = space.wait_reason("user", "web", "ApiRefused")["message"]
    assert message.startswith("Secret web-credentials: ")
    assert "exceeded quota: few" in message
    assert space.condition("user", "web", "Stalled")["status"] == "True"
    wait_for("an Event", lambda: refusals(space, "user", "web") == [message])
    space.delete("resourcequota", "few")
    look(space, "user", "web")
    space.wait_reason("user", "web", "Applied")
    assert not space.condition("user", "web", "Stalled")


def test_a_name_over_a_limit_is_said(space: Namespace) -> None:
    name = "u" * 250
    space.apply(of_connection("User", name))
    message = space.wait_reason("user", name, "ApiRefused")["message"]
    assert f"Secret {name}-credentials" in message
    assert "253" in message
    space.delete("user", name)
    space.wait_gone("user", name)


def test_a_status_that_may_not_be_written_is_an_event_and_rests(
    space: Namespace, operator: OperatorProcess
) -> None:
    with Deny(space, "queues/status", "mute"):
        wait_for("the policy is in force", lambda: _is_denied(space))
        before = operator.metric(ERRORS)
        space.apply(of_connection("Queue", "mute", maxLength=5))
        told = wait_for("an Event", lambda: refusals(space, "queue", "mute"))
        assert told[0].startswith("status of Queue mute: ")
        assert "not in this house" in told[0]
        for number in range(20):
            look(space, "queue", "mute", str(number))
        space.apply(of_connection("Queue", "later"))
        space.wait_reason("queue", "later", "Applied")
        # Without a pause each look is a try.
        assert operator.metric(ERRORS) - before <= 6
        assert len(refusals(space, "queue", "mute")) == 1
    # The API server goes by a policy for a moment after it is deleted.
    wait_for("the policy is out of force", lambda: not _is_denied(space))
    # The next try may be a minute away; another generation is tried at once.
    space.apply(of_connection("Queue", "mute", maxLength=6))
    space.wait_reason("queue", "mute", "Applied")


def _is_denied(space: Namespace) -> bool:
    """Whether a status of this name cannot be written, asked where no operator looks."""
    kubectl = space.cluster.kubectl
    made = {**resource("Queue", "mute", brokerRef={"name": "prod"})}
    made["metadata"] = {"name": "mute", "namespace": UNWATCHED}
    kubectl("apply", "-f", "-", input=json.dumps(made))
    patch = ["patch", full("queue"), "mute", "--subresource=status", "--type=merge"]
    body = ["-p", '{"status":{"observedGeneration":0}}', "--dry-run=server"]
    return "not in this house" in kubectl("-n", UNWATCHED, *patch, *body, check=False)


def test_what_an_admission_policy_denies_is_said_and_goes(space: Namespace) -> None:
    with Deny(space, "services", "guarded-nodes"):
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "guarded-nodes", "namespace": space.name},
            "spec": {"ports": [{"port": 80}]},
        }
        made = json.dumps(service)
        dry = ["create", "--dry-run=server", "-f", "-"]
        wait_for(
            "the policy is in force",
            lambda: "not in this house" in space.cluster.kubectl(*dry, input=made, check=False),
        )
        cluster = Members(space, "guarded", replicas=1)
        message = cluster.wait("ApiRefused")["message"]
        assert message.startswith("Service guarded-nodes: ")
        told = wait_for("an Event", lambda: refusals(space, "brokercluster", "guarded"))
        assert len(told) == 1
        assert "not in this house" in told[0]
    cluster.look()
    cluster.wait("WaitingForMembers")
    cluster.delete()


def test_pods_that_a_limit_range_refuses_are_said(
    api: Kubernetes, operator: OperatorProcess
) -> None:
    """The StatefulSet's controller is refused, not the operator."""
    space = Namespace(api, LIMITED)
    limit = {"type": "Container", "max": {"memory": "1Mi"}}
    tight = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "tight"}}
    space.apply({**tight, "spec": {"limits": [limit]}})
    cluster = Members(space, "limited", replicas=1, resources={"limits": {"memory": "1Gi"}})
    message = cluster.wait("ApiRefused")["message"]
    assert 'Pod limited-0: pods "limited-0" is forbidden: ' in message
    assert "maximum memory usage per Container is 1Mi" in message
    told = wait_for("an Event", lambda: refusals(space, "brokercluster", "limited"))
    assert told[0].startswith("Pod limited-0: ")
    space.delete("limitrange", "tight")
    wait_for("the pod", lambda: space.get("pod", "limited-0"), deadline_s=120)
    cluster.look()
    cluster.wait("WaitingForMembers")
    cluster.delete()


def test_a_storage_class_that_is_missing_is_said(space: Namespace) -> None:
    cluster = Members(space, "classless", replicas=1, storage={"className": "no-such-class"})
    said = "classless-0: PersistentVolumeClaim data-classless-0 has no volume: storageclass"
    wait_for("the class", lambda: said in cluster.wait("WaitingForMembers")["message"])
    assert '"no-such-class" not found' in cluster.wait("WaitingForMembers")["message"]
    wait_for("an Event", lambda: space.events("MemberBlocked"))
    cluster.delete()


def test_a_pull_secret_that_is_missing_is_said(space: Namespace) -> None:
    pulled = Members(space, "pulled", replicas=1, imagePullSecrets=[{"name": "registry"}])
    pulled.waits_for_image(0, "b:1")
    said = "cannot pull the image b:1; Secret registry of spec.imagePullSecrets does not exist"
    wait_for("the Secret", lambda: said in pulled.wait("WaitingForMembers")["message"])
    pulled.delete()
