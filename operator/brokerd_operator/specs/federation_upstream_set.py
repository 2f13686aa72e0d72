"""The FederationUpstreamSet kind: a federation-upstream-set parameter (R-FED-3). PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from brokerd_operator.specs import settings
from brokerd_operator.specs.model import (
    NO_INPUTS,
    Dependency,
    Desired,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    JsonObject,
    Meta,
    Part,
    TopologySpec,
    name_problem,
    parse_as,
    vhost_dependency,
)


class Member(Part):
    """An upstream with what differs from its own settings."""

    name: str
    exchange: str | None = None
    queue: str | None = None
    max_hops: int | None = None

    def to_json(self) -> JsonObject:
        return settings.present(
            {
                "upstream": self.name,
                "exchange": self.exchange,
                "queue": self.queue,
                "max-hops": self.max_hops,
            }
        )


class FederationUpstreamSetSpec(TopologySpec):
    """A named set of upstreams. Members may be missing (a soft dependency)."""

    KIND: ClassVar[str] = "FederationUpstreamSet"
    BROKER_KIND: ClassVar[str] = "parameter"

    upstreams: tuple[Member, ...]

    def problem(self, meta: Meta) -> Invalid | None:
        names = [
            pair
            for item in self.upstreams
            for pair in (("upstreams.name", item.name), ("upstreams.exchange", item.exchange))
        ]
        return super().problem(meta) or name_problem(*names)

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        members = (
            Identity("parameter", self.vhost, f"federation-upstream/{item.name}")
            for item in self.upstreams
        )
        soft = (Dependency(identity, "", is_hard=False) for identity in members)
        return (vhost_dependency(self.vhost), *soft)

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        name = f"federation-upstream-set/{self.resolved_name(meta)}"
        return (Identity("parameter", self.vhost, name),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        identity = self.identities(meta, inputs)[0]
        value = [item.to_json() for item in sorted(self.upstreams, key=lambda item: item.name)]
        return (DesiredObject("parameter", identity.vhost, identity.name, {"value": value}),)


def parse(body: Mapping[str, Any]) -> FederationUpstreamSetSpec | Invalid:
    return parse_as(FederationUpstreamSetSpec, body)
