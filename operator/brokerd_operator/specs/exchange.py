"""The Exchange kind. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from brokerd_operator.specs import arguments as x_arguments
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

#: The argument of AMQP clients that the field `delayedType` stands for.
DELAYED_TYPE = "x-delayed-type"


class Federation(Part):
    """Which upstreams the exchange is federated with."""

    upstream: str | None = None
    upstream_set: str | None = None
    all: bool | None = None


class ExchangeSpec(TopologySpec):
    """An exchange. The alternate exchange is an inline setting and so can change (R-AE-9)."""

    KIND: ClassVar[str] = "Exchange"
    BROKER_KIND: ClassVar[str] = "exchange"

    type: str = "direct"
    delayed_type: str | None = None
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate_exchange: str | None = None
    federation: Federation | None = None
    arguments: tuple[x_arguments.Argument, ...] = ()

    def problem(self, meta: Meta) -> Invalid | None:
        return super().problem(meta) or name_problem(("alternateExchange", self.alternate_exchange))

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        found = [vhost_dependency(self.vhost)]
        for kind, name in self._named():
            found.append(Dependency(Identity(kind, self.vhost, name), "", is_hard=False))
        return tuple(found)

    def _named(self) -> list[tuple[str, str]]:
        named = []
        if self.alternate_exchange:
            named.append(("exchange", self.alternate_exchange))
        if self.federation and self.federation.upstream:
            named.append(("parameter", f"federation-upstream/{self.federation.upstream}"))
        if self.federation and self.federation.upstream_set:
            named.append(("parameter", f"federation-upstream-set/{self.federation.upstream_set}"))
        return named

    def inline_settings(self) -> JsonObject:
        """Inline policy keys."""
        keys: JsonObject = {}
        if self.alternate_exchange:
            keys["alternate-exchange"] = self.alternate_exchange
        if self.federation and self.federation.upstream:
            keys["federation-upstream"] = self.federation.upstream
        elif self.federation and self.federation.upstream_set:
            keys["federation-upstream-set"] = self.federation.upstream_set
        elif self.federation and self.federation.all:
            # R-FED-3: the implicit set of every upstream of the vhost.
            keys["federation-upstream-set"] = "all"
        return keys

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        table = x_arguments.to_table(self.arguments)
        if isinstance(table, Invalid):
            return table
        if self.delayed_type is not None:
            table[DELAYED_TYPE] = self.delayed_type
        spec: JsonObject = {
            "type": self.type,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": table,
            "settings": self.inline_settings(),
        }
        return (DesiredObject("exchange", self.vhost, self.resolved_name(meta), spec),)


def parse(body: Mapping[str, Any]) -> ExchangeSpec | Invalid:
    return parse_as(ExchangeSpec, body)
