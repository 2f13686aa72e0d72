"""The Queue kind, with its inline bindings. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from brokerd_operator.specs import arguments as x_arguments
from brokerd_operator.specs import binding, settings, units
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


class QueueBinding(Part):
    """Bindings from one exchange, kept together with the queue."""

    source: str
    routing_keys: tuple[str, ...] = ("",)


class QueueSpec(settings.LengthAndAge, TopologySpec):
    """A queue. Its settings are an inline policy and can change; its arguments cannot."""

    KIND: ClassVar[str] = "Queue"
    BROKER_KIND: ClassVar[str] = "queue"

    type: Literal["classic", "quorum"] = "quorum"
    durable: bool = True
    auto_delete: bool = False
    max_priority: int | None = None
    single_active_consumer: bool | None = None
    replicas: int | None = None
    leader_locator: Literal["client-local", "balanced"] | None = None
    dead_letter: settings.DeadLetter | None = None
    consumer_timeout: units.Milliseconds | None = None
    arguments: tuple[x_arguments.Argument, ...] = ()
    bindings: tuple[QueueBinding, ...] = ()
    on_immutable_change: Literal["Reject", "RecreateIfEmpty"] = "Reject"
    deletion_policy: str = "DeleteIfEmpty"

    def problem(self, meta: Meta) -> Invalid | None:
        names = [("bindings.source", item.source) for item in self.bindings]
        names += [("bindings.routingKeys", key) for b in self.bindings for key in b.routing_keys]
        return (
            super().problem(meta)
            or settings.dead_letter_problem(self.dead_letter)
            or name_problem(*names)
        )

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        found = [vhost_dependency(self.vhost)]
        if self.dead_letter and self.dead_letter.exchange:
            target = Identity("exchange", self.vhost, self.dead_letter.exchange)
            found.append(Dependency(target, "", is_hard=False))
        for item in self.bindings:
            source = Identity("exchange", self.vhost, item.source)
            found.append(Dependency(source, "WaitingForSource"))
        return tuple(found)

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        name = self.resolved_name(meta)
        bound = [item.identity for item in self._bindings(name)]
        return (Identity("queue", self.vhost, name), *bound)

    def inline_settings(self) -> JsonObject:
        """Inline policy keys."""
        return {
            **settings.length_and_age(self),
            **settings.dead_letter(self.dead_letter),
            **settings.present(
                {
                    "consumer-timeout": self.consumer_timeout,
                    "queue-leader-locator": self.leader_locator,
                }
            ),
        }

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        table = x_arguments.to_table(self.arguments)
        if isinstance(table, Invalid):
            return table
        # Only by argument, no policy has them (R-PRI-1, R-POL-6).
        if self.max_priority is not None:
            table["x-max-priority"] = self.max_priority
        if self.single_active_consumer is not None:
            table["x-single-active-consumer"] = self.single_active_consumer
        spec: JsonObject = {
            "type": self.type,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "arguments": table,
            "settings": self.inline_settings(),
        }
        if self.replicas is not None:
            spec["replicas"] = self.replicas
        name = self.resolved_name(meta)
        return (DesiredObject("queue", self.vhost, name, spec), *self._bindings(name))

    def _bindings(self, name: str) -> list[DesiredObject]:
        return [
            found
            for item in self.bindings
            for found in binding.binding_objects(
                self.vhost, item.source, "queue", name, item.routing_keys, {}
            )
        ]


def parse(body: Mapping[str, Any]) -> QueueSpec | Invalid:
    return parse_as(QueueSpec, body)
