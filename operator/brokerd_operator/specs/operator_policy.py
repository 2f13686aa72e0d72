"""The OperatorPolicy kind: a policy of the administration, for queues only (R-POL-7). PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from brokerd_operator.specs import settings
from brokerd_operator.specs.model import (
    NO_INPUTS,
    Desired,
    DesiredObject,
    Inputs,
    Invalid,
    JsonObject,
    Meta,
    TopologySpec,
    parse_as,
    pattern_problem,
)


class OperatorDefinition(settings.LengthAndAge):
    """The settings that an operator policy may hold."""

    target_group_size: int | None = None

    def to_json(self) -> JsonObject:
        size = settings.present({"target-group-size": self.target_group_size})
        return {**settings.length_and_age(self), **size}


class OperatorPolicySpec(TopologySpec):
    """An operator policy."""

    KIND: ClassVar[str] = "OperatorPolicy"
    BROKER_KIND: ClassVar[str] = "operator_policy"

    pattern: str
    apply_to: Literal["queues", "classic_queues", "quorum_queues"] = "queues"
    priority: int = 0
    definition: OperatorDefinition

    def problem(self, meta: Meta) -> Invalid | None:
        return super().problem(meta) or pattern_problem("pattern", self.pattern)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        spec: JsonObject = {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "priority": self.priority,
            "definition": self.definition.to_json(),
        }
        return (DesiredObject("operator_policy", self.vhost, self.resolved_name(meta), spec),)


def parse(body: Mapping[str, Any]) -> OperatorPolicySpec | Invalid:
    return parse_as(OperatorPolicySpec, body)
