"""The life of a BrokerCluster against a real API server: refusals, volumes, restarts, rest.

Pods are made and never run here; the tests say in their statuses that they are ready. What a broker
has to do with it is shown end to end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_fixtures import CLUSTER, Kubernetes
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

NAMESPACE = "op-lifecycle"
IMAGES = ("localhost/brokerd:old", "localhost/brokerd:new")
#: Quick, since nobody replays a log here.
DEADLINE_S = 2


@pytest.fixture(scope="module")
def space(kube_api: Kubernetes) -> Iterator[Namespace]:
    kube_api.kubectl("apply", "-f", str(CLUSTER.parents[1] / "crds"))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    kube_api.kubectl("create", "namespace", NAMESPACE)
    for name, is_expandable in (("elastic", True), ("rigid", False)):
        kube_api.kubectl("apply", "-f", "-", input=json.dumps(storage_class(name, is_expandable)))
    yield Namespace(kube_api, NAMESPACE)
    kube_api.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def operator(
    space: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    process = OperatorProcess(
        space.cluster.kubeconfig, space.name, log, settings={"BROKER_IMAGE": IMAGES[0]}
    )
    with running(process):
        yield process


def storage_class(name: str, is_expandable: bool) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "allowVolumeExpansion": is_expandable,
    }


#: Ready's reason where nothing is wrong with the members: here no broker runs in their pods.
ALL_WELL = "WaitingForBroker"


class Members:
    """A BrokerCluster, and its pods and volumes as a node would tell of them."""

    def __init__(self, space: Namespace, name: str, **spec: Any) -> None:
        self.space = space
        self.name = name
        self.looks = 0
        body = {"apiVersion": "brokerd.io/v1alpha1", "kind": "BrokerCluster"}
        space.apply({**body, "metadata": {"name": name}, "spec": {"replicas": 3, **spec}})

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.space.cluster.kubectl("-n", self.space.name, *args, **options)

    def patch(self, **spec: Any) -> None:
        self._patch("brokercluster", self.name, {"spec": spec})

    def _patch(self, kind: str, name: str, body: Any, *args: str) -> None:
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(body), *args)

    @property
    def stateful_set(self) -> dict[str, Any]:
        return self._found("statefulset", self.name)

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = wait_for(f"{kind} {name}", lambda: self.space.get(kind, name))
        return found

    @property
    def volume_size(self) -> str:
        """Of the StatefulSet; "" while there is none."""
        found = self.space.get("statefulset", self.name)
        if found is None:
            return ""
        (claim,) = found["spec"]["volumeClaimTemplates"]
        return str(claim["spec"]["resources"]["requests"]["storage"])

    def pod(self, ordinal: int) -> dict[str, Any]:
        return self._found("pod", f"{self.name}-{ordinal}")

    def uids(self, count: int = 3) -> list[str]:
        return [self.pod(ordinal)["metadata"]["uid"] for ordinal in range(count)]

    def serve(self, *ordinals: int) -> None:
        """Members are ready from now on."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for ordinal in ordinals:
            status = {"status": {"phase": "Running", "conditions": [ready]}}
            name = self.pod(ordinal)["metadata"]["name"]
            self._patch("pod", name, status, "--subresource=status")
        self.look()

    def waits_for_image(self, ordinal: int, image: str) -> None:
        """A member's node cannot pull its image."""
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
        container = {"name": "broker", "image": image, "imageID": "", "ready": False}
        found = {**container, "restartCount": 0, "state": state}
        name = self.pod(ordinal)["metadata"]["name"]
        self._patch("pod", name, {"status": {"containerStatuses": [found]}}, "--subresource=status")
        self.look()

    def look(self) -> None:
        """Have the operator look again at once: it is told of no pod and no claim."""
        self.looks += 1
        at = f"brokerd.io/reconcile-at={self.looks}"
        self.kubectl("annotate", "--overwrite", "brokerclusters.brokerd.io", self.name, at)

    def bind(self, count: int, size: str) -> None:
        """Volumes for the claims, as large as the claims ask."""
        names = [f"data-{self.name}-{ordinal}" for ordinal in range(count)]
        for name in names:
            claim = self._found("pvc", name)
            self.space.cluster.kubectl(
                "apply", "-f", "-", input=json.dumps(self._volume(name, claim, size))
            )
        wait_for("volumes are bound", lambda: {self._phase(name) for name in names} == {"Bound"})

    def _phase(self, claim: str) -> str:
        return str((self.space.get("pvc", claim) or {}).get("status", {}).get("phase"))

    def _volume(self, name: str, claim: dict[str, Any], size: str) -> dict[str, Any]:
        reference = {"namespace": self.space.name, "name": name, "uid": claim["metadata"]["uid"]}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{self.space.name}-{name}"},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/nowhere"},
                "storageClassName": claim["spec"]["storageClassName"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": reference,
            },
        }

    def grown(self, ordinal: int, size: str, **more: Any) -> None:
        """What the driver of the volumes tells."""
        status = {"status": {"capacity": {"storage": size}, **more}}
        self._patch("pvc", f"data-{self.name}-{ordinal}", status, "--subresource=status")
        self.look()

    def wait(self, reason: str) -> dict[str, Any]:
        return self.space.wait_reason("brokercluster", self.name, reason)

    def condition(self, type_: str) -> dict[str, Any]:
        return self.space.condition("brokercluster", self.name, type_)

    def delete(self) -> None:
        self.space.delete("brokercluster", self.name)


def test_what_the_api_server_refuses_is_said_and_stops_nothing_else(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "refused")
    made.wait("WaitingForMembers")
    made.patch(podTemplate={"labels": {"not a label": "x"}})
    found = made.wait("ApiRefused")
    assert "StatefulSet refused" in found["message"]
    assert "not a label" in found["message"], "the cause in the API server's words"
    assert made.condition("Stalled")["status"] == "True"
    wait_for("a warning", lambda: space.events("ApiRefused"))
    made.patch(networkPolicy={"mode": "None"})
    space.wait_gone("networkpolicies", "refused")
    made.wait("ApiRefused")
    # A merge patch that takes the label out again.
    made.patch(podTemplate={"labels": None}, replicas=5)
    made.wait("WaitingForMembers")
    made.delete()


def test_a_member_that_a_quota_refuses_is_said(space: Namespace, operator: OperatorProcess) -> None:
    # Of this test's own class, so that no other test meets the quota.
    hard = {"scarce.storageclass.storage.k8s.io/persistentvolumeclaims": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "scarce"}}
    space.apply({**quota, "spec": {"hard": hard}})
    made = Members(space, "scarce", replicas=1, storage={"className": "scarce"})
    message = made.wait("ApiRefused")["message"]
    assert "Pod scarce-0: " in message
    assert "exceeded quota: scarce" in message
    space.delete("resourcequota", "scarce")
    made.delete()


def test_an_image_that_cannot_be_pulled_is_said_at_once(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "imageless", replicas=1)
    made.waits_for_image(0, "b:1")
    said = "0 of 1 members are ready; imageless-0: its node cannot pull the image b:1"
    wait_for("the image", lambda: made.wait("WaitingForMembers")["message"] == said)
    made.delete()


def test_volumes_grow_without_a_restart(space: Namespace, operator: OperatorProcess) -> None:
    storage = {"size": "10Gi", "className": "elastic", "retention": "Delete"}
    made = Members(space, "growing", storage=storage)
    made.bind(3, "10Gi")
    made.serve(0, 1, 2)
    made.wait(ALL_WELL)
    pods, before = made.uids(), made.stateful_set
    made.kubectl("rollout", "restart", "statefulset", "growing")
    made.patch(storage={"size": "20Gi"})
    wait_for("a StatefulSet of the new size", lambda: made.volume_size == "20Gi")
    after = made.stateful_set
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["replicas"] == 3
    wait_for(
        "claims go with the new StatefulSet as asked",
        lambda: (
            made.stateful_set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"]
            == "Delete"
        ),
    )
    assert made.uids() == pods, "nobody restarts for it"
    for ordinal in range(3):
        claim = space.get("pvc", f"data-growing-{ordinal}")
        assert claim is not None
        assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
    told = "kubectl.kubernetes.io/restartedAt"
    assert told in after["spec"]["template"]["metadata"]["annotations"]
    made.delete()


def test_growing_volumes_are_told_of_until_they_have_grown(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "slow", replicas=1, storage={"className": "elastic"})
    made.bind(1, "10Gi")
    made.serve(0)
    made.wait(ALL_WELL)
    made.patch(storage={"size": "20Gi"})
    wait_for("a StatefulSet of the new size", lambda: made.volume_size == "20Gi")
    revision = wait_for("its revision", lambda: made.stateful_set["status"].get("updateRevision"))
    assert made.pod(0)["metadata"]["labels"]["controller-revision-hash"] == revision
    wait_for(
        "each volume is told of",
        lambda: "data-slow-0 grows from 10Gi to 20Gi" in made.wait("Resizing")["message"],
    )
    pending = {"type": "FileSystemResizePending", "status": "True"}
    made.grown(0, "10Gi", conditions=[pending])
    wait_for("its file system", lambda: "its file system" in made.wait("Resizing")["message"])
    made.grown(0, "20Gi", conditions=[])
    made.wait(ALL_WELL)
    volumes = (space.get("brokercluster", "slow") or {})["status"]["volumes"]
    assert {item["size"] for item in volumes} == {"20Gi"}
    made.delete()


def test_a_class_that_cannot_expand_and_a_shrink_are_said_and_stop_nothing_else(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "rigid", storage={"size": "10Gi", "className": "rigid"})
    made.bind(3, "10Gi")
    uid = made.stateful_set["metadata"]["uid"]
    made.patch(storage={"size": "20Gi"}, podTemplate={"labels": {"team": "shop"}})
    found = made.wait("VolumeExpansionNotSupported")
    assert "allowVolumeExpansion" in found["message"]
    labels = made.stateful_set["spec"]["template"]["metadata"]["labels"]
    assert labels.get("team") == "shop", "the other change is in force"
    assert made.volume_size == "10Gi"
    made.patch(storage={"size": "5Gi"}, podTemplate={"labels": {"team": "web"}})
    made.wait("ShrinkNotSupported")
    labels = made.stateful_set["spec"]["template"]["metadata"]["labels"]
    assert labels.get("team") == "web"
    made.patch(storage={"size": "10240Mi"})
    made.wait("WaitingForMembers")
    assert made.stateful_set["metadata"]["uid"] == uid
    made.delete()


def test_hibernation_keeps_volumes_and_wakes_as_many_as_there_were(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "sleeper", storage={"className": "elastic"})
    made.pod(2)
    made.patch(hibernated=True)
    made.wait("Stopped")
    wait_for("nobody runs", lambda: made.condition("Hibernated").get("status") == "True")
    assert made.stateful_set["spec"]["replicas"] == 0
    for ordinal in range(3):
        assert space.get("pvc", f"data-sleeper-{ordinal}") is not None
    # Sizes change while nobody runs, too.
    made.bind(3, "10Gi")
    made.patch(storage={"size": "20Gi"})
    wait_for("a StatefulSet of the new size", lambda: made.volume_size == "20Gi")
    assert made.stateful_set["spec"]["replicas"] == 0
    made.patch(hibernated=False, replicas=1)
    wait_for("three members", lambda: made.stateful_set["spec"]["replicas"] == 3)
    assert not made.condition("Hibernated")
    made.delete()


def test_other_resources_reach_running_members_without_a_restart(
    space: Namespace, operator: OperatorProcess
) -> None:
    amounts = {"requests": {"memory": "256Mi", "cpu": "100m"}, "limits": {"memory": "256Mi"}}
    made = Members(space, "wider", replicas=1, resources=amounts)
    made.serve(0)
    made.wait(ALL_WELL)
    uids = made.uids(1)
    larger = {"requests": {"memory": "512Mi", "cpu": "200m"}, "limits": {"memory": "512Mi"}}
    made.patch(resources=larger)

    def resources() -> Any:
        return made.pod(0)["spec"]["containers"][0]["resources"]

    wait_for("the running pod has them", lambda: resources() == larger)
    assert made.uids(1) == uids
    wait_for("up to date", lambda: made.condition("UpgradePending").get("reason") == "UpToDate")
    made.delete()


def test_a_member_that_does_not_come_back_stops_the_roll(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "stuck", progressDeadlineSeconds=DEADLINE_S)
    made.serve(0, 1)
    made.wait(ALL_WELL)
    first, second, third = made.uids()
    made.patch(podTemplate={"labels": {"roll": "1"}})
    # Down with the old template: it gets the new one at once.
    wait_for("the one that is down is made anew", lambda: made.uids()[2] != third)
    found = made.wait("MemberNotReady")
    assert "stuck-2" in found["message"]
    assert made.condition("Stalled")["status"] == "True"
    wait_for("a warning", lambda: space.events("MemberNotReady"))
    assert made.uids()[:2] == [first, second]
    made.serve(2)
    made.wait("Progressing")
    made.delete()


def test_additions_to_the_pods_roll_and_what_is_the_operators_is_refused(
    space: Namespace, operator: OperatorProcess
) -> None:
    """The API server's own rules and defaults are the judges here."""
    made = Members(space, "added", replicas=1)
    made.wait("WaitingForMembers")
    (before,) = made.uids(1)
    sidecar = {"name": "side", "image": "side:1", "ports": [{"containerPort": 9000}]}
    source = {"configMapKeyRef": {"name": "corp", "key": "team", "optional": True}}
    spec = {
        "containers": [sidecar, {"name": "broker", "env": [{"name": "A", "value": "1"}]}],
        "initContainers": [{"name": "first", "image": "first:1"}],
        "volumes": [{"name": "corp", "configMap": {"name": "corp"}}],
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["ldap.corp"]}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
    }
    made.patch(podTemplate={"env": [{"name": "TEAM", "valueFrom": source}], "spec": spec})
    wait_for("the pod is made anew", lambda: made.uids(1) != [before])
    pod = made.pod(0)
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "broker"
    assert [item["name"] for item in pod["spec"]["containers"]] == ["broker", "side"]
    assert [item["name"] for item in pod["spec"]["initContainers"]] == ["first"]
    env = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
    assert env["TEAM"]["valueFrom"] == source
    assert env["A"]["value"] == "1"
    assert pod["spec"]["hostAliases"] == spec["hostAliases"]
    assert pod["spec"]["dnsConfig"] == spec["dnsConfig"]
    # At rest: what the API server added as defaults is no difference to be written away.
    version = made.stateful_set["metadata"]["generation"]
    made.look()
    made.wait("WaitingForMembers")
    made.patch(podTemplate={"spec": {"containers": [{"name": "broker", "command": ["sh"]}]}})
    assert "command belongs to the operator" in made.wait("InvalidSpec")["message"]
    assert made.stateful_set["metadata"]["generation"] == version
    (last,) = made.uids(1)
    made.patch(podTemplate=None)
    wait_for("the pod is plain again", lambda: made.uids(1) != [last])
    plain = made.pod(0)["spec"]
    assert [item["name"] for item in plain["containers"]] == ["broker"]
    assert "initContainers" not in plain
    assert "dnsConfig" not in plain
    made.delete()


def test_newer_default_image_waits_for_approval(
    space: Namespace, operator: OperatorProcess
) -> None:
    made = Members(space, "careful", upgradePolicy="OnApproval")

    def image() -> str:
        return str(made.stateful_set["spec"]["template"]["spec"]["containers"][0]["image"])

    made.wait("WaitingForMembers")
    assert image() == IMAGES[0]
    operator.stop()
    operator.settings = {"BROKER_IMAGE": IMAGES[1]}
    operator.log.write_text("")
    operator.start()
    operator.wait_leading()
    wait_for(
        "it waits",
        lambda: made.condition("UpgradePending").get("reason") == "WaitingForApproval",
    )
    assert IMAGES[1] in made.condition("UpgradePending")["message"]
    assert image() == IMAGES[0]
    note = f"brokerd.io/approved-image={IMAGES[1]}"
    made.kubectl("annotate", "brokerclusters.brokerd.io", "careful", note)
    wait_for("the new image", lambda: image() == IMAGES[1])
    made.kubectl("annotate", "brokerclusters.brokerd.io", "careful", "brokerd.io/restart-at=now")
    wait_for(
        "a restart that was asked for",
        lambda: (
            made.stateful_set["spec"]["template"]["metadata"]
            .get("annotations", {})
            .get("brokerd.io/restart-at")
            == "now"
        ),
    )
    made.patch(image="localhost/brokerd@sha256:" + "0" * 64)
    wait_for("an image by its digest", lambda: image().endswith("@sha256:" + "0" * 64))
    made.delete()


def test_a_killed_operator_recreates_the_stateful_set_that_it_had_let_go(
    space: Namespace, operator: OperatorProcess, tmp_path: Path
) -> None:
    made = Members(space, "halfway", storage={"size": "10Gi", "className": "elastic"})
    made.serve(0, 1, 2)
    made.wait(ALL_WELL)
    wait_for(
        "what has to be known is on the Service",
        lambda: (
            (space.get("service", "halfway-nodes") or {})["metadata"]["annotations"].get(
                "brokerd.io/members"
            )
            == "3"
        ),
    )
    pods, environment = made.uids(), made.stateful_set["spec"]["template"]
    operator.stop(9)
    made.kubectl("delete", "statefulset", "halfway", "--cascade=orphan")
    made.patch(replicas=5)
    operator.log.write_text("")
    operator.start()
    operator.wait_leading()
    wait_for("a StatefulSet of three", lambda: made.stateful_set["spec"]["replicas"] == 3)
    assert made.stateful_set["spec"]["template"] == environment, "the same founders"
    assert made.uids() == pods
    made.delete()
