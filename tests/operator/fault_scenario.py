"""What the tests of faults do to resources, and what must be true at the end whatever broke.

A BrokerCluster with everything the operator makes for one, and topology of a BrokerConnection to a
fake broker: made, edited twice, deleted, made anew, changed behind the operator's back.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brokerd_operator.manifests import naming
from brokerd_operator.sources.api import path_of
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import Identity

from tests.operator.broker_thread import BrokerThread
from tests.operator.fault_proxy import Upstream
from tests.operator.operator_process import Namespace, of_connection, wait_for

#: Ready's reason when all is well: nobody runs the pods of the BrokerCluster.
WELL = {"BrokerConnection": "Available", "BrokerCluster": "WaitingForMembers"}
STRANGER = Identity("queue", "/", "strangers")
CLUSTER = "shop"
#: Without a change for so long, a scenario that nobody disturbed has come to its end: the operator
#: looks at its sessions each 5 s.
REST_S = 8.0
#: A look lists thirteen kinds or more: looking all the time keeps the API server from the rest.
POLL_S = 0.3
#: What a namespace is compared by. Events and what controllers keep for themselves tell of the way.
KINDS = {
    **dict.fromkeys(registry.KINDS, naming.API_VERSION),
    **dict.fromkeys(("Secret", "Service", "ServiceAccount", "ConfigMap"), "v1"),
    **dict.fromkeys(("PersistentVolumeClaim", "Pod"), "v1"),
    "StatefulSet": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "CronJob": "batch/v1",
    **dict.fromkeys(("Role", "RoleBinding"), "rbac.authorization.k8s.io/v1"),
}
VOLATILE = frozenset(
    (
        "uid",
        "podUID",
        "ownerToken",
        "resourceVersion",
        "generation",
        "observedGeneration",
        "creationTimestamp",
        "managedFields",
        "lastTransitionTime",
        "startedAt",
        "startTime",
        "clusterIP",
        "clusterIPs",
        "brokerd.io/applied-hash",
        "brokerd.io/authority-trusted-since",
        "appliedHash",
        "controller-revision-hash",
        "collisionCount",
        "currentRevision",
        "updateRevision",
    )
)
#: Made by controllers in every namespace.
OF_EVERY_NAMESPACE = ("ConfigMap/kube-root-ca.crt", "ServiceAccount/default")


def cluster(**spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": "brokerd.io/v1alpha1", "kind": "BrokerCluster"}
    return {**body, "metadata": {"name": CLUSTER}, "spec": {"replicas": 3, **spec}}


@dataclass
class QuickNamespace(Namespace):
    """Without kubectl, whose starts would be most of the time of hundreds of scenarios."""

    upstream: Upstream

    def apply(self, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            metadata = {**body["metadata"], "namespace": self.name}
            spec = {
                name: value for name, value in body.get("spec", {}).items() if value is not None
            }
            wanted = {**body, "metadata": metadata, **({"spec": spec} if spec else {})}
            path = f"{self._path(body['kind'], metadata['name'])}?fieldManager=tests&force=true"
            self.upstream.request("PATCH", path, wanted, "application/apply-patch+yaml")

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.upstream.request("GET", self._path(kind, name))

    def delete(self, kind: str, name: str) -> None:
        self.upstream.request("DELETE", self._path(kind, name))

    def _path(self, kind: str, name: str) -> str:
        named = {known.lower(): known for known in KINDS}[kind.lower()]
        return path_of(KINDS[named], named, self.name, name)


@dataclass
class Scenario:
    """Owns the namespace's resources and knows what they ask for."""

    space: Namespace
    broker: BrokerThread
    upstream: Upstream
    #: Names of resources that are wanted, and the queues' lengths.
    wanted: set[tuple[str, str]] = field(default_factory=set)
    lengths: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    has_telemetry: bool = True
    #: Reasons of those that are not to be well.
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    # ---- what is done -------------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        return (self.make, self.change, self.make_anew, self.change_again)

    def _apply(self, *bodies: dict[str, Any]) -> None:
        self.space.apply(*bodies)
        self.wanted |= {(body["kind"], body["metadata"]["name"]) for body in bodies}

    def _queues(self, **lengths: int) -> list[dict[str, Any]]:
        self.lengths |= lengths
        return [of_connection("Queue", name, maxLength=size) for name, size in lengths.items()]

    def _delete(self, *names: tuple[str, str]) -> None:
        for kind, name in names:
            self.space.delete(kind.lower(), name)
            self.wanted.discard((kind, name))
            self.lengths.pop(name, None)

    def make(self) -> None:
        self.space.connect(self.broker.broker.address)
        self.wanted.add(("BrokerConnection", "prod"))
        self._apply(
            of_connection("Binding", "b", source="in", destination={"name": "q0"}),
            *self._queues(q0=5, q1=5, q2=5, q3=5, q4=5),
            of_connection("Exchange", "in", type="topic"),
            of_connection("Policy", "p"),
            of_connection("Vhost", "team"),
            of_connection("User", "web"),
            of_connection("Permission", "web", userRef={"name": "web"}, user=None, read=".*"),
            cluster(telemetry={"enabled": True}),
        )

    def change(self) -> None:
        """Edits, a deletion, and somebody at the broker who deletes and makes as well."""
        self.labels = {"team": "shop"}
        self.has_telemetry = False
        self.reasons["Policy", "p"] = "InvalidPattern"
        self._apply(
            *self._queues(q0=9),
            of_connection("Policy", "p", pattern="("),
            cluster(podTemplate={"labels": self.labels}, telemetry={"enabled": False}),
        )
        self._delete(("Queue", "q1"), ("Queue", "q2"))
        self.broker.do(self.broker.broker.remove, Identity("queue", "/", "q3"))
        self.broker.do(self.broker.broker.put, STRANGER, {"type": "quorum"})

    def make_anew(self) -> None:
        """The names of before, other resources."""
        self.reasons.clear()
        self.space.wait_gone("queue", "q2")
        self._apply(*self._queues(q2=7), of_connection("Policy", "p", pattern="^b"))
        self.space.delete("exchange", "in")
        self.space.wait_gone("exchange", "in")
        self._apply(of_connection("Exchange", "in", type="direct"))

    def change_again(self) -> None:
        self.labels = {"team": "web"}
        self._apply(
            *self._queues(q0=11, q9=1),
            cluster(podTemplate={"labels": self.labels}, networkPolicy={"mode": "None"}),
        )
        self._delete(("Binding", "b"), ("Queue", "q4"), ("Permission", "web"), ("User", "web"))

    def end(self) -> None:
        """Everything goes, the broker's resource last: what it holds is to go with the others."""
        self._delete(*sorted(self.wanted - {("BrokerConnection", "prod")}))
        self.labels = {}

    # ---- what must be true --------------------------------------------------------------------

    def problem(self) -> str:
        """What is not as it has to be; "" if all is."""
        bodies = self.listed(*registry.KINDS)
        found = {(body["kind"], body["metadata"]["name"]): body for body in bodies}
        if set(found) != self.wanted:
            return f"resources: {sorted(set(found) ^ self.wanted)}"
        for body in bodies:
            if said := self._unready(body):
                return said
        return self._in_broker(found) or self._in_cluster()

    def _unready(self, body: dict[str, Any]) -> str:
        kind, name = body["kind"], body["metadata"]["name"]
        status = body.get("status") or {}
        if body["metadata"].get("deletionTimestamp"):
            return f"{kind} {name} is still being deleted"
        ready = [item for item in status.get("conditions") or () if item["type"] == "Ready"]
        reason = ready[0]["reason"] if ready else "nothing"
        seen = {status.get("observedGeneration"), ready[0]["observedGeneration"] if ready else 0}
        wanted = self.reasons.get((kind, name)) or WELL.get(kind, "Applied")
        if reason != wanted or seen != {body["metadata"]["generation"]}:
            return f"{kind} {name} says {reason} of generation {seen}"
        return f"{kind} {name} tells of drift" if status.get("drift") else ""

    def _in_broker(self, found: dict[tuple[str, str], dict[str, Any]]) -> str:
        """Exactly what the resources say, each object owned by its resource as it is now."""
        fake = self.broker.broker
        kept = {STRANGER, Identity("vhost", "", "/")}
        ours = {
            identity: fake.owners.get(identity) for identity in fake.objects if identity not in kept
        }
        owners = {identity: owner and owner.resource for identity, owner in ours.items()}
        wanted = {f"{kind}/{self.space.name}/{name}" for kind, name in found if kind not in WELL}
        if sorted(map(str, owners.values())) != sorted(wanted):
            return f"the broker holds {owners}, wanted {sorted(wanted)}"
        for identity, owner in ours.items():
            assert owner is not None
            kind, _, name = owner.resource.split("/")
            if owner.uid != found[kind, name]["metadata"]["uid"]:
                return f"{identity} belongs to an earlier {kind} {name}"
        sizes = {
            name: fake.objects[Identity("queue", "/", name)]["settings"].get("max-length")
            for name in self.lengths
        }
        if sizes != self.lengths:
            return f"queues are {sizes}, wanted {self.lengths}"
        return ""

    def _in_cluster(self) -> str:
        if ("BrokerCluster", CLUSTER) not in self.wanted:
            return ""
        made = {
            f"{body['kind']}/{body['metadata']['name']}": body
            for body in self.listed("StatefulSet", "CronJob")
        }
        template = made.get(f"StatefulSet/{CLUSTER}", {}).get("spec", {}).get("template", {})
        labels = template.get("metadata", {}).get("labels", {})
        if {name: labels.get(name) for name in self.labels} != self.labels:
            return f"the members' labels are {labels}, wanted {self.labels}"
        if (f"CronJob/{CLUSTER}-telemetry" in made) != self.has_telemetry:
            return f"telemetry is {self.has_telemetry} in the spec, and made is {sorted(made)}"
        return ""

    def listed(self, *kinds: str) -> list[dict[str, Any]]:
        found = []
        for kind in kinds:
            bodies = self.upstream.get(path_of(KINDS[kind], kind, self.space.name))["items"]
            found += [{**body, "kind": kind} for body in bodies]
        return found

    def settle(self, deadline_s: float) -> None:
        """Wait until all is as it has to be."""
        last = ""

        def is_well() -> bool:
            nonlocal last
            last = self.problem()
            return not last

        try:
            wait_for("all is well", is_well, deadline_s, POLL_S)
        except AssertionError as error:
            raise AssertionError(f"after {deadline_s} s: {last}") from error

    def statuses(self) -> dict[str, Any]:
        """What the resources say now."""
        found = self.listed(*registry.KINDS)
        return {f"{body['kind']}/{body['metadata']['name']}": body.get("status") for body in found}

    def let_go(self) -> None:
        """Take all finalizers off."""
        for body in self.listed(*registry.KINDS):
            if body["metadata"].get("finalizers"):
                path = path_of(KINDS[body["kind"]], body["kind"], self.space.name)
                self.upstream.request(
                    *("PATCH", f"{path}/{body['metadata']['name']}"),
                    {"metadata": {"finalizers": None}},
                    "application/merge-patch+json",
                )

    def end_state(
        self, deadline_s: float, wanted: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Everything in the namespace once it is as it was wanted, or has stayed as it is for
        REST_S, and which of it is orphaned: what belongs to something that is gone waits for the
        garbage collector.
        """
        found: dict[str, Any] = {}
        orphans: list[str] = []
        since_s = time.monotonic()

        def is_final() -> bool:
            nonlocal found, orphans, since_s
            # Both of one listing: an orphan that goes between two is in the first one's state.
            bodies = self.listed(*KINDS)
            last, found, orphans = found, self._snapshot(bodies), _orphans(bodies)
            if found != last:
                since_s = time.monotonic()
            is_at_rest = time.monotonic() - since_s > REST_S
            return not orphans and (is_at_rest if wanted is None else found == wanted)

        with contextlib.suppress(AssertionError):
            wait_for("the end", is_final, deadline_s, POLL_S)
        return found, orphans

    def _snapshot(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        """Without what differs from run to run by its nature."""
        found = {}
        for body in bodies:
            name = f"{body['kind']}/{body['metadata']['name']}"
            if name not in OF_EVERY_NAMESPACE:
                found[name] = self._plain(body)
        return found

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("kind") == "Secret":
                value = {**value, "data": sorted(value.get("data") or ())}
            return {key: self._plain(item) for key, item in value.items() if key not in VOLATILE}
        if isinstance(value, list):
            items = [self._plain(item) for item in value]
            # Conditions stand in the order in which they came up.
            return sorted(items, key=json.dumps) if items and isinstance(items[0], dict) else items
        if isinstance(value, str):
            named = value.replace(self.space.name, "SPACE")
            dated = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", named)
            return re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", dated)
        return value


def _orphans(bodies: list[dict[str, Any]]) -> list[str]:
    """Objects whose owner is gone."""
    uids = {body["metadata"]["uid"] for body in bodies}
    return [
        f"{body['kind']}/{body['metadata']['name']}"
        for body in bodies
        for owner in body["metadata"].get("ownerReferences") or ()
        if owner["uid"] not in uids
    ]
