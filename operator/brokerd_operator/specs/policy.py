"""The Policy kind. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from brokerd_operator.specs import arguments as x_arguments
from brokerd_operator.specs import settings, units
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
    pattern_problem,
    vhost_dependency,
)


class PolicyFederation(Part):
    """Which upstreams matching objects are federated with; exactly one (R-POL-11)."""

    upstream: str | None = None
    upstream_set: str | None = None
    pattern: str | None = None


class Definition(settings.LengthAndAge):
    """The settings of a policy."""

    alternate_exchange: str | None = None
    dead_letter: settings.DeadLetter | None = None
    consumer_timeout: units.Milliseconds | None = None
    queue_leader_locator: Literal["client-local", "balanced"] | None = None
    target_group_size: int | None = None
    federation: PolicyFederation | None = None
    extra: tuple[x_arguments.Argument, ...] = ()

    def to_json(self) -> JsonObject | Invalid:
        """The definition under the broker's keys."""
        table = x_arguments.to_table(self.extra, "definition.extra")
        if isinstance(table, Invalid):
            return table
        federation = self.federation or PolicyFederation()
        typed = {
            **settings.length_and_age(self),
            **settings.dead_letter(self.dead_letter),
            **settings.present(
                {
                    "alternate-exchange": self.alternate_exchange,
                    "consumer-timeout": self.consumer_timeout,
                    "queue-leader-locator": self.queue_leader_locator,
                    "target-group-size": self.target_group_size,
                    "federation-upstream": federation.upstream,
                    "federation-upstream-set": federation.upstream_set,
                    "federation-upstream-pattern": federation.pattern,
                }
            ),
        }
        twice = sorted(set(typed) & set(table))
        if twice:
            return Invalid("InvalidSpec", f"definition.extra: {twice[0]} has a field of its own")
        return {**table, **typed}


class PolicySpec(TopologySpec):
    """A policy."""

    KIND: ClassVar[str] = "Policy"
    BROKER_KIND: ClassVar[str] = "policy"

    pattern: str
    apply_to: Literal["all", "queues", "classic_queues", "quorum_queues", "exchanges"] = "all"
    priority: int = 0
    definition: Definition

    def problem(self, meta: Meta) -> Invalid | None:
        federation = self.definition.federation or PolicyFederation()
        return (
            super().problem(meta)
            or name_problem(("definition.alternateExchange", self.definition.alternate_exchange))
            or settings.dead_letter_problem(self.definition.dead_letter)
            or pattern_problem("pattern", self.pattern)
            or pattern_problem("definition.federation.pattern", federation.pattern)
        )

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        named = []
        definition = self.definition
        if definition.alternate_exchange:
            named.append(("exchange", definition.alternate_exchange))
        if definition.dead_letter and definition.dead_letter.exchange:
            named.append(("exchange", definition.dead_letter.exchange))
        if definition.federation and definition.federation.upstream:
            named.append(("parameter", f"federation-upstream/{definition.federation.upstream}"))
        soft = (
            Dependency(Identity(kind, self.vhost, name), "", is_hard=False) for kind, name in named
        )
        return (vhost_dependency(self.vhost), *soft)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        definition = self.definition.to_json()
        if isinstance(definition, Invalid):
            return definition
        spec: JsonObject = {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "priority": self.priority,
            "definition": definition,
        }
        return (DesiredObject("policy", self.vhost, self.resolved_name(meta), spec),)


def parse(body: Mapping[str, Any]) -> PolicySpec | Invalid:
    return parse_as(PolicySpec, body)
