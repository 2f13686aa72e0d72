"""The Binding kind: one resource, one object per routing key. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

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


class Destination(Part):
    """Where messages go to."""

    name: str
    kind: Literal["Queue", "Exchange"] = "Queue"

    @property
    def broker_kind(self) -> str:
        return self.kind.lower()


class BindingSpec(TopologySpec):
    """Bindings between one source and one destination. Always unbound on deletion."""

    KIND: ClassVar[str] = "Binding"
    BROKER_KIND: ClassVar[str] = "binding"

    source: str
    destination: Destination
    routing_keys: tuple[str, ...] = ("",)
    arguments: tuple[x_arguments.Argument, ...] = ()

    def problem(self, meta: Meta) -> Invalid | None:
        keys = (("routingKeys", key) for key in self.routing_keys)
        return name_problem(
            ("vhost", self.vhost),
            ("source", self.source),
            ("destination.name", self.destination.name),
            *keys,
        )

    def resolved_name(self, meta: Meta) -> str:
        """A binding has no name in the broker; its ends identify it (design/operator.md §5.3)."""
        return f"{self.source} -> {self.destination.broker_kind} {self.destination.name}"

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        target = Identity(self.destination.broker_kind, self.vhost, self.destination.name)
        return (
            vhost_dependency(self.vhost),
            Dependency(Identity("exchange", self.vhost, self.source), "WaitingForSource"),
            Dependency(target, "WaitingForDestination"),
        )

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        objects = self.desired(meta, inputs)
        if not isinstance(objects, tuple):
            return ()
        return tuple(item.identity for item in objects)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        table = x_arguments.to_table(self.arguments)
        if isinstance(table, Invalid):
            return table
        return tuple(
            binding_objects(
                self.vhost,
                self.source,
                self.destination.broker_kind,
                self.destination.name,
                self.routing_keys,
                table,
            )
        )


def binding_objects(
    vhost: str,
    source: str,
    destination_kind: str,
    destination: str,
    routing_keys: Iterable[str],
    table: JsonObject,
) -> Iterable[DesiredObject]:
    """One binding object per key."""
    for key in routing_keys:
        name = x_arguments.binding_name(source, destination_kind, destination, key, table)
        spec: JsonObject = {
            "source": source,
            "destination": destination,
            "destination_kind": destination_kind,
            "routing_key": key,
            "arguments": dict(table),
        }
        yield DesiredObject("binding", vhost, name, spec)


def parse(body: Mapping[str, Any]) -> BindingSpec | Invalid:
    return parse_as(BindingSpec, body)
