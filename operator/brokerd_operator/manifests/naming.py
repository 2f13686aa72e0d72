"""Names, labels, ports and ownership of everything that a BrokerCluster has on Kubernetes. PURE.

The fixed contract with the members and with the programs that find them: names of objects and of
members, DNS names, ports. For the other modules of this room, the engine and the broker resolver.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import Meta

Manifest = dict[str, Any]

API_VERSION = "brokerd.io/v1alpha1"
MANAGED_BY = "brokerd-operator"

PORT_AMQP = 5672
PORT_AMQPS = 5671
PORT_GRPC = 5680
PORT_PEER = 5690
PORT_HTTP = 15692
PORT_MANAGEMENT = 15672
PORT_MANAGEMENT_TLS = 15671

#: Of the images; every pod runs as this user and group (SEC-29).
UID = 10001

#: The CRD's maximum of spec.replicas: certificates name all of these members from the start.
MEMBERS_MAX = 31

#: The headless Service is called so, after the BrokerCluster's name.
NODES_SUFFIX = "-nodes"

#: Kept on the StatefulSet: members that formed the cluster when it started for the first time.
INITIAL_REPLICAS = "brokerd.io/initial-replicas"

#: Kept on the StatefulSet: members that there were before the cluster was stopped (replicas 0).
MEMBERS = "brokerd.io/members"

#: On the pods: the annotation of the BrokerCluster (engine/keys.py) that they were made for.
RESTART_AT = "brokerd.io/restart-at"

#: Of a member's pod: the certificate for clients, and who has signed it.
CERTIFICATE_VOLUMES = ("tls", "tls-ca")

#: On an object that somebody else made: the BrokerCluster that may take it over.
ADOPT = "brokerd.io/adopt"

_READ_BY_OWNER_AND_GROUP = 0o440


@dataclass(frozen=True, slots=True)
class Images:
    """Images that are used where the spec names none; never written into the spec."""

    broker: str
    telemetry: str


@dataclass(frozen=True, slots=True)
class Context:
    """One BrokerCluster, and what its manifests need to know besides."""

    meta: Meta
    spec: BrokerClusterSpec
    images: Images
    #: Namespace of the operator's own pods, which must reach the members.
    operator_namespace: str
    #: Members at the very first start; None while there is no StatefulSet yet.
    initial_replicas: int | None = None
    #: Members that ran last; None while there were none yet.
    members: int | None = None
    #: The image that was decided on; None for the spec's, or the operator's own.
    image: str | None = None
    #: Size of the volumes while it is not the spec's; None: it is.
    volume_size: str | None = None
    #: Annotation brokerd.io/restart-at of the BrokerCluster: another value restarts the members.
    restart_at: str = ""
    #: The same of `kubectl rollout restart`, which writes it into the StatefulSet.
    restarted_at: str = ""

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def namespace(self) -> str:
        return self.meta.namespace

    @property
    def broker_image(self) -> str:
        return self.image or self.spec.image or self.images.broker

    @property
    def telemetry_image(self) -> str:
        return self.spec.telemetry.image or self.images.telemetry

    @property
    def nodes_service(self) -> str:
        return f"{self.name}{NODES_SUFFIX}"

    @property
    def cluster_secret(self) -> str:
        return f"{self.name}-cluster"

    @property
    def keys_secret(self) -> str:
        return f"{self.name}-keys"

    @property
    def has_own_certificate(self) -> bool:
        """Whether the certificate for clients is the operator's to make and renew."""
        return self.spec.tls.secret_name is None and self.spec.tls.issuer_ref is None

    @property
    def tls_secret(self) -> str:
        tls = self.spec.tls
        # Another Secret than the operator's own: two writers of one would undo each other's work.
        ours = f"{self.name}-tls" if tls.issuer_ref is None else f"{self.name}-issued-tls"
        return tls.secret_name or ours

    @property
    def ca_secret(self) -> str | None:
        """Secret whose ca.crt clients of AMQPS and gRPC trust; None for the system's authorities.

        A certificate of the user's own may come without a CA; ours has one.
        """
        return self.tls_secret if self.has_own_certificate else self.spec.tls.ca_secret_name

    @property
    def peer_tls_secret(self) -> str:
        return f"{self.name}-peer-tls"

    @property
    def admin_secret(self) -> str:
        return self.spec.admin_secret_name(self.meta)

    @property
    def telemetry_name(self) -> str:
        return f"{self.name}-telemetry"

    def is_member(self, name: str) -> bool:
        """Whether a name is that of one of the first members."""
        ordinal = name.removeprefix(f"{self.name}-")
        return ordinal.isdecimal() and int(ordinal) < self.spec.replicas

    def member_host(self, member: str) -> str:
        """DNS name of a member; it resolves before the member is ready."""
        return f"{member}.{self.nodes_service}.{self.namespace}.svc"

    @property
    def client_host(self) -> str:
        return f"{self.name}.{self.namespace}.svc"

    @property
    def management_ports(self) -> list[tuple[str, int]]:
        """Names and numbers of the HTTP API's ports; the plain one goes where plain AMQP goes."""
        ports = [("management-tls", PORT_MANAGEMENT_TLS)]
        if not self.spec.tls.disable_plain:
            ports.insert(0, ("management", PORT_MANAGEMENT))
        return ports

    def initial_members(self) -> str:
        """`name=host:port,…` of the members that form the cluster at its first start."""
        count = self.initial_replicas or self.spec.replicas or 1
        members = (f"{self.name}-{ordinal}" for ordinal in range(count))
        return ",".join(f"{name}={self.peer_address(name)}" for name in members)

    def peer_address(self, member: str) -> str:
        """Where the other members reach a member."""
        return f"{self.member_host(member)}:{PORT_PEER}"

    def grpc_addresses(self) -> tuple[str, ...]:
        """host:port of the administration of every member."""
        names = self.spec.member_names(self.meta)
        return tuple(f"{self.member_host(name)}:{PORT_GRPC}" for name in names)


def selector(context: Context, component: str = "broker") -> dict[str, str]:
    """Labels that identify the pods; they can never change."""
    return {
        "app.kubernetes.io/name": "brokerd",
        "app.kubernetes.io/instance": context.name,
        "app.kubernetes.io/component": component,
    }


def labels(context: Context, component: str = "broker") -> dict[str, str]:
    return {
        **selector(context, component),
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "app.kubernetes.io/part-of": "brokerd",
    }


def owner_reference(meta: Meta, kind: str) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(context: Context, name: str, component: str = "broker") -> Manifest:
    """Metadata of an object that goes when the BrokerCluster goes."""
    return {
        "name": name,
        "namespace": context.namespace,
        "labels": labels(context, component),
        "ownerReferences": [owner_reference(context.meta, "BrokerCluster")],
    }


def is_foreign(context: Context, live: Manifest) -> bool:
    """Whether an object of a name of ours was made by somebody else, and is not given to us.

    Ours are labelled as such, or owned by a BrokerCluster of this name.
    """
    metadata = live["metadata"]
    found = metadata.get("labels") or {}
    own = labels(context)
    marks = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance")
    is_marked = all(found.get(name) == own[name] for name in marks)
    owners = metadata.get("ownerReferences") or ()
    is_owned = any(
        item.get("kind") == "BrokerCluster" and item.get("name") == context.name for item in owners
    )
    # A Secret is used as it is, or not at all: taken over it would be of no more use than before.
    can_be_given = live.get("kind") != "Secret"
    is_given = can_be_given and (metadata.get("annotations") or {}).get(ADOPT) == context.name
    return not (is_marked or is_owned or is_given)


def conflict(context: Context, kind: str, name: str) -> str:
    """What to do about an object that is foreign."""
    if kind == "Secret":
        return (
            f"Secret {name} was not made by the operator, lacks what belongs into it and is left "
            "as it is; give the BrokerCluster another name, or delete the Secret: it is made anew"
        )
    return (
        f"{kind} {name} was not made by the operator and is left as it is; give the BrokerCluster "
        f"another name, delete the {kind}, or have the operator take it over: kubectl annotate -n "
        f"{context.namespace} {kind.lower()} {name} {ADOPT}={context.name}"
    )


def controller(context: Context, live: Manifest) -> str:
    """Whose controller reference an object has that is not a BrokerCluster's of this name, in
    words; "" where there is none.

    The API server lets an object have one only, so that such an object cannot be taken over.
    """
    for item in live["metadata"].get("ownerReferences") or ():
        is_ours = item.get("kind") == "BrokerCluster" and item.get("name") == context.name
        if item.get("controller") and not is_ours:
            return f"{item.get('kind')} {item.get('name')}"
    return ""


def controlled(context: Context, kind: str, name: str, owner: str) -> str:
    """What to do about an object that somebody else controls, whatever its annotations say."""
    return (
        f"{kind} {name} belongs to {owner} (its controller) and is left as it is; give the "
        f"BrokerCluster another name, or delete the {kind} where {owner} does not make it again"
    )


def pod_security() -> Manifest:
    """The restricted profile (SEC-29)."""
    return {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def secret_volume(name: str, secret: str, items: Mapping[str, str] | None = None) -> Manifest:
    """A Secret as files that only the pod's user can read.

    SEC-21 asks for 0400; the kubelet makes the files root's and gives them to the group, so the bit
    for the group is what lets uid 10001 read them.
    """
    source: Manifest = {"secretName": secret, "defaultMode": _READ_BY_OWNER_AND_GROUP}
    if items:
        source["items"] = [{"key": key, "path": path} for key, path in items.items()]
    return {"name": name, "secret": source}


def field_env(name: str, path: str) -> Manifest:
    return env_from(name, {"fieldRef": {"apiVersion": "v1", "fieldPath": path}})


def secret_env(name: str, secret: str, key: str) -> Manifest:
    return env_from(name, {"secretKeyRef": {"name": secret, "key": key}})


def env_from(name: str, source: Mapping[str, Any]) -> Manifest:
    """A variable with `valueFrom`, and a value that is said to be none: one that somebody else set
    (`kubectl set env`) would stay beside the source, and the API server refuses both together."""
    return {"name": name, "value": "", "valueFrom": source}


def encoded(values: Mapping[str, str | bytes]) -> dict[str, str]:
    """Values as the `data` of a Secret."""
    texts = {key: item.encode() if isinstance(item, str) else item for key, item in values.items()}
    return {key: base64.b64encode(item).decode() for key, item in texts.items()}
