"""A message as filters see one, made by hand; it counts what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Table
from brokerd.core.annotations import Death


@dataclass(slots=True)
class View:
    """A `MessageView`."""

    number: int = 1
    state: str = "ready"
    delivery_count: int = 0
    redelivered: bool = False
    age_ms: int | None = None
    exchange: str = ""
    routing_key: str = "orders"
    size: int = 3
    properties: BasicProperties = field(default_factory=BasicProperties)
    deaths: Sequence[Death] = ()
    first_death: tuple[str, str, str] | None = None
    body: str | None = "abc"


def with_headers(**headers: object) -> View:
    return View(properties=BasicProperties(headers=table(headers)))


def table(values: dict[str, object]) -> Table:
    """Tables have more in them than the type of tables says, and filters trust none of it."""
    return values  # type: ignore[return-value]


def death(queue: str, reason: str, count: int = 1, time_s: int = 100) -> Death:
    return Death(queue, reason, count, time_s, "ex", ["key", "copy"])
