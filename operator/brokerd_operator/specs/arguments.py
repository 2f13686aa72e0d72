"""The typed list of x-arguments (design/operator.md §4.5), and the one JSON text of a value.

PURE; for the specs. Canonical JSON, hashes and binding names are the broker's own definitions
(docs/reference/topology.md); both sides compute them, so both must give the same text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import Field

from brokerd_operator.specs.model import Invalid, JsonObject, Part

#: SEC-42: tables nest at most 16 deep.
NESTING_MAX = 16
INT64 = range(-(2**63), 2**63)


class Argument(Part):
    """One argument; the CRD demands exactly one value."""

    name: str
    string: str | None = None
    integer: int | None = None
    boolean: bool | None = None
    number: float | None = None
    #: Called json in the CRD, which is the name of a method of every pydantic model.
    json_text: str | None = Field(default=None, alias="json")

    def value(self) -> Any:
        """The value with its type; raises ValueError for JSON that AMQP cannot carry."""
        if self.json_text is not None:
            return parse_json(self.json_text)
        for value in (self.string, self.integer, self.boolean, self.number):
            if value is not None:
                return value
        raise ValueError("has no value")


def to_table(arguments: Iterable[Argument], label: str = "arguments") -> JsonObject | Invalid:
    """All arguments as one JSON object."""
    table: JsonObject = {}
    for argument in arguments:
        try:
            table[argument.name] = argument.value()
        except ValueError as error:
            return Invalid("InvalidSpec", f"{label}: {argument.name} {error}")
    return table


def parse_json(text: str) -> Any:
    """JSON that an AMQP table can hold; raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    _check_value(value, 1)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"holds {name}, which is not JSON")


def _check_value(value: Any, depth: int) -> None:
    if depth > NESTING_MAX:
        raise ValueError(f"is nested deeper than {NESTING_MAX}")
    if isinstance(value, int) and not isinstance(value, bool) and value not in INT64:
        raise ValueError("holds an integer of more than 64 bits")
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list):
        items = value
    for item in items:
        _check_value(item, depth + 1)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any, characters: int = 16) -> str:
    """The first hex characters of the sha256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:characters]


def binding_name(
    source: str, destination_kind: str, destination: str, routing_key: str, table: JsonObject
) -> str:
    """Name of a binding within its vhost: its identity (R-BND-1) as one text.

    The last part is the hash of the arguments, nothing for none; where a part contains the
    separator itself, it is a longer hash of the whole identity, so that two bindings never share a
    name.
    """
    if "|" in source or "|" in destination or "|" in routing_key:
        last = digest([source, destination_kind, destination, routing_key, table])
    else:
        last = digest(table, 8) if table else ""
    return f"{source}|{destination_kind}|{destination}|{routing_key}|{last}"
