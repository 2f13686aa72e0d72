"""The ownership token: who manages an object of a broker (design/operator.md §8). PURE.

The token lies in the broker beside the object, so that nothing is forgotten when the operator or
the Kubernetes cluster is made anew. For the planner and the orphan sweep.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from brokerd_operator.specs.model import Meta, TopologySpec

#: Deletion policy of a token that the orphan sweep must not act on (design/operator.md §10).
LEAVE = "Leave"


@dataclass(frozen=True, slots=True)
class Token:
    """What is stored in the broker. `resource` is Kind/namespace/name."""

    managed_by: str
    resource: str
    uid: str
    deletion_policy: str = ""
    is_protected: bool = False

    @property
    def kind(self) -> str:
        return self.resource.partition("/")[0]

    @property
    def namespace(self) -> str:
        parts = self.resource.split("/", 2)
        return parts[1] if len(parts) == 3 else ""


class Relation(enum.Enum):
    """How an object's token stands to a resource."""

    NOBODYS = "nobody's"
    OURS = "ours"
    #: The same resource, deleted and made again: taken over silently.
    PREDECESSORS = "predecessor's"
    OTHERS = "other's"


def resource_name(kind: str, meta: Meta) -> str:
    return f"{kind}/{meta.namespace}/{meta.name}"


def token_of(kind: str, meta: Meta, spec: TopologySpec, instance: str, is_paused: bool) -> Token:
    """The token that this resource's objects shall carry. A paused resource leaves them alone."""
    return Token(
        managed_by=instance,
        resource=resource_name(kind, meta),
        uid=meta.uid,
        deletion_policy=LEAVE if is_paused else spec.deletion_policy,
        is_protected=spec.protection == "Managed",
    )


def relation(present: Token | None, mine: Token) -> Relation:
    if present is None or not present.managed_by:
        return Relation.NOBODYS
    if present.managed_by != mine.managed_by or present.resource != mine.resource:
        return Relation.OTHERS
    return Relation.OURS if present.uid == mine.uid else Relation.PREDECESSORS
