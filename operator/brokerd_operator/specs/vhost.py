"""The Vhost kind. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from brokerd_operator.specs.model import (
    NO_INPUTS,
    Dependency,
    Desired,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    JsonObject,
    Limits,
    Meta,
    TopologySpec,
    name_problem,
    parse_as,
)


class VhostLimits(Limits):
    """Most objects in the virtual host."""

    max_queues: int | None = None
    max_exchanges: int | None = None


class VhostSpec(TopologySpec):
    """A virtual host. Retained by default: it holds everybody's messages."""

    KIND: ClassVar[str] = "Vhost"
    BROKER_KIND: ClassVar[str] = "vhost"

    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: Literal["classic", "quorum"] | None = None
    limits: VhostLimits = VhostLimits()
    deletion_policy: str = "Retain"

    def problem(self, meta: Meta) -> Invalid | None:
        return name_problem(("name", self.resolved_name(meta)))

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        return ()

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        return (Identity("vhost", "", self.resolved_name(meta)),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        spec: JsonObject = {
            "description": self.description,
            "tags": sorted(self.tags),
            # Empty leaves it to the member's own default.
            "default_queue_type": self.default_queue_type or "",
            "limits": self.limits.to_json(),
        }
        return (DesiredObject("vhost", "", self.resolved_name(meta), spec),)


def parse(body: Mapping[str, Any]) -> VhostSpec | Invalid:
    return parse_as(VhostSpec, body)
