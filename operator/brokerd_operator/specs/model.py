"""What all kinds share: metadata, the common fields, results, and what a spec needs from outside.

PURE; for the other modules of this room, the planner and the engine. A spec is parsed once per
change of a resource by `parse` and then asked for its objects in the broker by `desired`. A wrong
resource is a value (`Invalid`), not an exception, because it is an expected outcome that becomes a
condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import regex
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

#: AMQP short strings hold at most 255 bytes (R-NAM-1); `maxLength` of the CRDs counts characters.
NAME_BYTES_MAX = 255

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Meta:
    """The part of `metadata` that the planner looks at."""

    namespace: str
    name: str
    uid: str = ""
    generation: int = 0

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Meta:
        metadata = body.get("metadata") or {}
        return cls(
            namespace=metadata.get("namespace") or "default",
            name=metadata.get("name") or "",
            uid=metadata.get("uid") or "",
            generation=metadata.get("generation") or 0,
        )


@dataclass(frozen=True, slots=True)
class Invalid:
    """The resource cannot be applied until its spec changes; becomes Stalled with this reason."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that the resource needs is not there yet; becomes Reconciling with this reason."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """What an object is called in the broker: kind, vhost ("" for users and vhosts) and name."""

    kind: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """An object as the broker's Admin service takes it (docs/reference/topology.md)."""

    kind: str
    vhost: str
    name: str
    spec: JsonObject = field(repr=False)
    #: Keys of `spec` that listings leave out, so that they cannot be compared (SEC-20). A dot goes
    #: one level down.
    write_only: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(self.kind, self.vhost, self.name)


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A Kubernetes object that a resource reads: a Secret, a BrokerCluster or a User."""

    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object of the broker that must exist first (`is_hard`) or that is merely named."""

    identity: Identity
    #: Reason of the condition while a hard one is missing.
    reason: str
    is_hard: bool = True


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """How clients reach a BrokerCluster, and as whom; filled in by the shell that runs it."""

    #: host:port of AMQP listeners.
    endpoints: tuple[str, ...]
    username: str
    password: str = field(repr=False)
    is_tls: bool = False
    #: PEM of who may have signed its members' certificates; empty: somebody whom the system trusts.
    authorities: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Contents of what `references` named, by `namespace/name`. An absent key is not there yet."""

    secrets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
    clusters: Mapping[str, ClusterAddress] = field(default_factory=dict)
    #: Names in the broker of User resources.
    users: Mapping[str, str] = field(default_factory=dict)


Desired = tuple[DesiredObject, ...] | Invalid | Waiting

NO_INPUTS = Inputs()


class Part(BaseModel):
    """Base of every part of a spec: the CRD's camelCase names, immutable, unknown fields ignored.

    Unknown fields are ignored because the API server (or `validation.py`) has dealt with them, and
    because a newer CRD must not break an older operator.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )


class BrokerRef(Part):
    """The broker that a resource belongs to."""

    name: str
    namespace: str | None = None
    kind: Literal["BrokerCluster", "BrokerConnection"] = "BrokerCluster"

    def reference(self, meta: Meta) -> Reference:
        return Reference(self.kind, self.namespace or meta.namespace, self.name)


class SecretRef(Part):
    """A Secret of the resource's own namespace (SEC-20: never of another)."""

    name: str


class TopologySpec(Part):
    """Base of the kinds that live in a broker."""

    KIND: ClassVar[str]
    #: Kind of the object in the broker.
    BROKER_KIND: ClassVar[str]

    broker_ref: BrokerRef
    vhost: str = "/"
    name: str | None = None
    deletion_policy: str = "Delete"
    adoption_policy: Literal["IfIdentical", "Always", "Never"] = "IfIdentical"
    drift_policy: Literal["Enforce", "Report"] = "Enforce"
    protection: Literal["None", "Managed"] = "None"

    def resolved_name(self, meta: Meta) -> str:
        """Name in the broker. CRD defaults cannot copy metadata.name, so it is done here."""
        return self.name or meta.name

    def problem(self, meta: Meta) -> Invalid | None:
        """What neither the schema nor CEL can see."""
        return name_problem(("vhost", self.vhost), ("name", self.resolved_name(meta)))

    def subject(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> str | None:
        """The user whom it is about, for grants; empty while unknown, None for other kinds."""
        return None

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        """Kubernetes objects whose contents `desired` needs, the broker itself aside."""
        return ()

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        """Broker objects that must be there first, and those that are only named."""
        return (vhost_dependency(self.vhost),)

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        """What this resource owns in the broker; needed for deletion, so it asks for no Secret."""
        return (Identity(self.BROKER_KIND, self.vhost, self.resolved_name(meta)),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        """The objects that the broker shall hold."""
        raise TypeError(f"{type(self).__name__} has no objects")


SpecT = TypeVar("SpecT", bound=BaseModel)


def parse_as(model: type[SpecT], body: Mapping[str, Any]) -> SpecT | Invalid:
    """Parse `spec` of a body; a schema violation that slipped through becomes Invalid."""
    try:
        return model.model_validate(body.get("spec") or {})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(["spec", *(str(part) for part in first["loc"])])
        return Invalid("InvalidSpec", f"{where}: {first['msg']}")


def vhost_dependency(vhost: str) -> Dependency:
    return Dependency(Identity("vhost", "", vhost), "WaitingForVhost")


def name_problem(*names: tuple[str, str | None]) -> Invalid | None:
    """Invalid for the first name that does not fit into an AMQP short string."""
    for label, name in names:
        if name is None:
            continue
        try:
            size_bytes = len(name.encode())
        except UnicodeEncodeError:
            return Invalid("InvalidName", f"{label} is not valid Unicode")
        if size_bytes > NAME_BYTES_MAX:
            return Invalid(
                "InvalidName",
                f"{label} has {size_bytes} bytes of UTF-8, at most {NAME_BYTES_MAX} are possible",
            )
        if "\x00" in name:
            return Invalid("InvalidName", f"{label} holds a null character")
    return None


def pattern_problem(label: str, pattern: str | None) -> Invalid | None:
    """Invalid for a pattern that the `regex` module (the broker's too) does not compile."""
    if pattern is None:
        return None
    try:
        regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        return Invalid("InvalidPattern", f"{label} is not a regular expression: {error}")
    return None


class Limits(Part):
    """Numbers of most things; -1 is unlimited, absent is not set."""

    max_connections: int | None = Field(default=None)

    def to_json(self) -> JsonObject:
        """The limits under the broker's names."""
        values = self.model_dump(exclude_none=True)
        return {name.replace("_", "-"): value for name, value in values.items()}
