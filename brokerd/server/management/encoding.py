"""JSON of the management API's answers, in slices, so that clients have their turn between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson

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
    """Return what stands between the brackets of a list."""
    return dumps(rows)[1:-1]


async def encode(value: Any) -> bytes:
    """Return a value as JSON; long lists in slices."""
    if isinstance(value, list) and len(value) > ROWS:
        return b"[" + b",".join([part async for part in _parts(value)]) + b"]"
    if isinstance(value, Mapping) and isinstance(value.get("items"), list):
        # A page: its rows are as many as those of a list may be.
        rest = {key: item for key, item in value.items() if key != "items"}
        return b'{"items":' + await encode(value["items"]) + b"," + dumps(rest)[1:]
    return dumps(value)


async def _parts(rows: list[Any]) -> AsyncIterator[bytes]:
    for begin in range(0, len(rows), ROWS):
        if begin:
            await asyncio.sleep(0)
        yield items(rows[begin : begin + ROWS])
