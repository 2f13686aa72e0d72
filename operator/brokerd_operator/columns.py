"""Printer columns: what `kubectl get` shows, for those who print resources without an API server.

For `brokerctl up` and `plan`; no I/O. It reads the columns of the CRDs, so both print the same.
Only the JSON paths that our CRDs use are understood: names, `[n]`, and `[?(@.type=="X")]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import regex

from brokerd_operator.validation import Column, ResourceKind

_STEP = regex.compile(r'\.([A-Za-z0-9_-]+)|\[(\d+)\]|\[\?\(@\.([A-Za-z]+)==["\']([^"\']+)["\']\)\]')

_AGES = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def columns_of(kind: ResourceKind, is_wide: bool = False) -> list[Column]:
    return [column for column in kind.columns if is_wide or column.priority == 0]


def header(kind: ResourceKind, is_wide: bool = False) -> list[str]:
    """Titles, the name's first."""
    return ["NAME", *(column.name.upper() for column in columns_of(kind, is_wide))]


def cells(
    kind: ResourceKind, body: Mapping[str, Any], now: datetime, is_wide: bool = False
) -> list[str]:
    """The texts of one row. What is not there is empty, as in kubectl."""
    name = str((body.get("metadata") or {}).get("name", ""))
    row = [name]
    for column in columns_of(kind, is_wide):
        value = look_up(body, column.json_path)
        row.append(age(str(value), now) if column.type == "date" and value else shown(value))
    return row


def look_up(body: Any, json_path: str) -> Any:
    """The value at a path, None when there is none."""
    value = body
    position = 0
    while position < len(json_path):
        step = _STEP.match(json_path, position)
        if step is None:
            raise ValueError(f"cannot read the JSON path {json_path}")
        position = step.end()
        value = _one_step(value, step)
        if value is None:
            return None
    return value


def _one_step(value: Any, step: regex.Match[str]) -> Any:
    name, index, key, wanted = step.groups()
    if name is not None:
        return value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    if index is not None:
        return value[int(index)] if int(index) < len(value) else None
    matching = (item for item in value if isinstance(item, Mapping) and item.get(key) == wanted)
    return next(matching, None)


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(shown(item) for item in value)
    return str(value)


def age(timestamp: str, now: datetime) -> str:
    """`3m` as kubectl writes ages, in one unit."""
    try:
        seconds = int((now - datetime.fromisoformat(timestamp)).total_seconds())
    except (ValueError, TypeError):
        return ""
    for size, unit in _AGES:
        if seconds >= 2 * size or unit == "s":
            return f"{max(seconds, 0) // size}{unit}"
    return ""
