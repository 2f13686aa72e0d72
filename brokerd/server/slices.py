"""Walks over all queues, groups or connections of a member, which may be ten thousand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: So many are looked at before clients have their turn.
SLICE = 200


async def in_slices(uids: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield them, `size` at a time; what they name may be gone when its slice comes."""
    for begin in range(0, len(uids), size):
        if begin:
            await asyncio.sleep(0)
        yield uids[begin : begin + size]
