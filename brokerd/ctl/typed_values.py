"""NAME=VALUE of the command line, for headers, arguments and properties of the Messages service.

One rule for all: a value that reads as JSON is that, anything else is text.  `5` is a number,
`"5"` in quotes is text, `true` a truth, `{"a": 1}` a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from brokerd.ctl import errors
from brokerd.rpc.v1 import messages_pb2

#: Of sint64.
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Split NAME=VALUE; raises CtlError for what has no name."""
    found: dict[str, str] = {}
    for item in given:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise errors.CtlError(f"{option} takes NAME=VALUE, not '{item}'", errors.EXIT_USAGE)
        found[name] = value
    return found


def values(given: Iterable[str], option: str) -> dict[str, messages_pb2.Value]:
    """Return NAME=VALUE as the service has them."""
    return {
        name: _encoded(_read(text), f"{option} {name}")
        for name, text in pairs(given, option).items()
    }


def plain(value: messages_pb2.Value) -> Any:
    """Return a value of the service as JSON has it; bytes as text, what is not UTF-8 replaced."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind == "list":
        return [plain(item) for item in found.values]
    if kind == "table":
        return table(found.fields, found.raw_fields)
    return found.decode("utf-8", "replace") if kind == "binary" else found


def table(
    fields: Mapping[str, messages_pb2.Value], raw: Iterable[messages_pb2.RawField]
) -> dict[str, Any]:
    """Return a table of the service as JSON has it."""
    named = {name: plain(value) for name, value in fields.items()}
    return named | {field.name.decode("utf-8", "replace"): plain(field.value) for field in raw}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _encoded(value: Any, what: str) -> messages_pb2.Value:
    if isinstance(value, bool):
        return messages_pb2.Value(boolean=value)
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise errors.CtlError(f"{what}: {value} has more than 64 bits", errors.EXIT_USAGE)
        return messages_pb2.Value(integer=value)
    if isinstance(value, float):
        return messages_pb2.Value(number=value)
    if isinstance(value, str):
        return messages_pb2.Value(text=value)
    if isinstance(value, list):
        return messages_pb2.Value(
            list=messages_pb2.List(values=[_encoded(item, what) for item in value])
        )
    if isinstance(value, dict):
        fields = {name: _encoded(item, what) for name, item in value.items()}
        return messages_pb2.Value(table=messages_pb2.Table(fields=fields))
    # A void.
    return messages_pb2.Value()
