"""Queue settings that a Queue (inline) and a policy share, under the broker's keys.

PURE; for `queue.py`, `policy.py` and `operator_policy.py`. The keys are RabbitMQ's policy keys
(R-POL-1), so that an inline setting and a policy speak of the same thing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from brokerd_operator.specs import units
from brokerd_operator.specs.model import Invalid, JsonObject, Part, name_problem

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]


class DeadLetter(Part):
    """Where dead letters go. An absent field is left to the policy (R-DLX-1)."""

    exchange: str | None = None
    routing_key: str | None = None
    strategy: Literal["at-most-once", "at-least-once"] | None = None


class LengthAndAge(Part):
    """The bounds that an operator policy may set as well (R-POL-7)."""

    delivery_limit: int | None = None
    message_ttl: units.Milliseconds | None = Field(default=None, alias="messageTTL")
    expires: units.Milliseconds | None = None
    max_length: int | None = None
    max_length_bytes: units.Bytes | None = None
    overflow: Overflow | None = None


def length_and_age(source: LengthAndAge) -> JsonObject:
    """The keys that are set; absent means: leave it to policy, then to the broker's default."""
    return present(
        {
            "delivery-limit": source.delivery_limit,
            "message-ttl": source.message_ttl,
            "expires": source.expires,
            "max-length": source.max_length,
            "max-length-bytes": source.max_length_bytes,
            "overflow": source.overflow,
        }
    )


def dead_letter(source: DeadLetter | None) -> JsonObject:
    if source is None:
        return {}
    return present(
        {
            "dead-letter-exchange": source.exchange,
            "dead-letter-routing-key": source.routing_key,
            "dead-letter-strategy": source.strategy,
        }
    )


def dead_letter_problem(source: DeadLetter | None) -> Invalid | None:
    if source is None:
        return None
    return name_problem(
        ("deadLetter.exchange", source.exchange), ("deadLetter.routingKey", source.routing_key)
    )


def present(values: JsonObject) -> JsonObject:
    return {key: value for key, value in values.items() if value is not None}
