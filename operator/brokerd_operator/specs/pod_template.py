"""What a BrokerCluster adds to its members' pods, and what of a pod is not the user's. PURE.

`manifests/members.py` makes the pod and merges this into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from brokerd_operator.specs.model import JsonObject, Part

#: Name of the container that the operator makes.
BROKER = "broker"
#: What an entry of that name may add to it.
BROKER_FIELDS = frozenset(("name", "env", "volumeMounts"))
#: Volumes that the operator makes; `data` is each member's own.
OWN_VOLUMES = frozenset(("data", "tmp", "admin", "tls", "tls-ca", "peer-tls", "keys", "api"))
#: Where the broker's container has them.
OWN_PATHS = ("/var/lib/brokerd", "/etc/brokerd", "/tmp")
#: Of the members; containers of a pod share its address.
OWN_PORTS = frozenset((5672, 5671, 5680, 5690, 15692, 15672, 15671))


class EnvVar(Part):
    """One environment variable."""

    name: str
    value: str = ""
    value_from: JsonObject | None = None


class PodSpec(Part):
    """Fields of a Pod's spec, as Kubernetes has them."""

    containers: tuple[JsonObject, ...] = ()
    init_containers: tuple[JsonObject, ...] = ()
    volumes: tuple[JsonObject, ...] = ()
    host_aliases: tuple[JsonObject, ...] = ()
    dns_policy: str | None = None
    dns_config: JsonObject | None = None
    runtime_class_name: str | None = None

    def merged(self, pod: JsonObject) -> JsonObject:
        """The operator's pod with these fields; lists are merged by name, as Kubernetes does it.

        The broker's container stays the first one.
        """
        ours = {item["name"]: item for item in pod["containers"]}
        theirs = {str(item["name"]): item for item in self.containers}
        added = theirs.get(BROKER, {})
        broker = dict(ours[BROKER])
        for field in ("env", "volumeMounts"):
            if added.get(field):
                broker[field] = [*broker[field], *added[field]]
        found = {
            **pod,
            "containers": [broker, *(item for name, item in theirs.items() if name != BROKER)],
            "volumes": [*pod["volumes"], *self.volumes],
        }
        more = {
            "initContainers": list(self.init_containers),
            "hostAliases": list(self.host_aliases),
            "dnsPolicy": self.dns_policy,
            "dnsConfig": self.dns_config,
            "runtimeClassName": self.runtime_class_name,
        }
        return {**found, **{name: value for name, value in more.items() if value}}

    def problem(self) -> str:
        """What of it belongs to the operator; "" for nothing."""
        return next(self._problems(), "")

    def _problems(self) -> Iterator[str]:
        for item in self.volumes:
            if item.get("name") in OWN_VOLUMES:
                yield f"volumes: {item['name']} is a volume of the operator's; choose another name"
        for item in self.init_containers:
            if item.get("name") == BROKER:
                yield f"initContainers: {BROKER} is the operator's container; choose another name"
            yield from _problems_of_other(item, "initContainers")
        for item in self.containers:
            if item.get("name") == BROKER:
                yield from _problems_of_broker(item)
            else:
                yield from _problems_of_other(item, "containers")


class PodTemplate(Part):
    """Additions to the pods."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    env: tuple[EnvVar, ...] = ()
    spec: PodSpec = PodSpec()

    def problem(self) -> str:
        """What of it belongs to the operator, with its path; "" for nothing."""
        found = self.spec.problem()
        return f"spec.podTemplate.spec.{found}" if found else ""


def _problems_of_broker(item: Mapping[str, Any]) -> Iterator[str]:
    where = f"containers: {BROKER}"
    for field in sorted(item.keys() - BROKER_FIELDS):
        yield f"{where}: {field} belongs to the operator; env and volumeMounts may be added"
    for variable in _listed(item, "env"):
        name = str(variable.get("name"))
        is_setting = name.removeprefix("OPTIONAL_").startswith("BROKERD_")
        if name == "POD_NAME" or (is_setting and not name.startswith("BROKERD_LOG_")):
            yield f"{where}: the variable {name} belongs to the operator"
    for mount in _listed(item, "volumeMounts"):
        path = str(mount.get("mountPath")).rstrip("/") or "/"
        if mount.get("name") in OWN_VOLUMES or any(_overlap(path, own) for own in OWN_PATHS):
            yield f"{where}: the mount {path} of {mount.get('name')} is in the operator's way"


def _problems_of_other(item: Mapping[str, Any], field: str) -> Iterator[str]:
    where = f"{field}: {item.get('name')}"
    for port in _listed(item, "ports"):
        if port.get("containerPort") in OWN_PORTS:
            yield f"{where}: port {port['containerPort']} is the broker's; choose another one"
    for mount in _listed(item, "volumeMounts"):
        if mount.get("name") in OWN_VOLUMES and mount.get("readOnly") is not True:
            yield f"{where}: {mount['name']} is the operator's volume: mount it with readOnly: true"


def _listed(item: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """A list of objects; whatever else stands there is for the API server to refuse."""
    found = item.get(field)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _overlap(path: str, own: str) -> bool:
    """Whether one of two paths lies in the other."""
    return f"{path.rstrip('/')}/".startswith(f"{own}/") or f"{own}/".startswith(
        f"{path.rstrip('/')}/"
    )
