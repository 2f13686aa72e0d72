"""JSON of the management API's answers, in slices, so that clients have their turn between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from brokerd.server.loop.chunks import in_chunks

#: Rows that are encoded before clients have their turn: about a millisecond of queues.
ROWS = 100
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def dumps(value: Any) -> bytes:
    """Return a value as JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Names of AMQP need not be UTF-8, and integers of tables may be wider than 64 bits.
        return _ENCODER.encode(value).encode()


def items(rows: Sequence[Any]) -> bytes:
    """Return what stands in a list, each with a comma before it."""
    return b"," + dumps(rows)[1:-1]


def bracketed(parts: list[bytes]) -> list[bytes]:
    """Return a list as JSON, in parts; parts: `items` of some rows each.

    None of them is copied but the first: together they may have 13 MB.
    """
    first = parts[0][1:] if parts else b""
    return [b"[" + first, *parts[1:], b"]"]


async def parts(value: Any) -> list[bytes]:
    """Return a value as JSON, long lists made in slices: parts, to be sent one after another."""
    if isinstance(value, list) and len(value) > ROWS:
        return bracketed([items(rows) async for rows in in_chunks(value, ROWS)])
    if isinstance(value, Mapping) and isinstance(value.get("items"), list):
        # A page: its rows are as many as those of a list may be.
        rest = {key: item for key, item in value.items() if key != "items"}
        return [b'{"items":', *await parts(value["items"]), b"," + dumps(rest)[1:]]
    return [dumps(value)]


async def encode(value: Any) -> bytes:
    """Return a value as JSON; long lists in slices."""
    return b"".join(await parts(value))
