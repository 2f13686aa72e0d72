"""Walks over all queues, groups or connections of a member, which may be ten thousand.

A slice takes TURN_S of processor time, whatever is done with it: what a publish waits for is a few
slices, since it passes the loop a few times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

#: So many at most are looked at before clients have their turn.
SLICE = 200
#: So many at least: a turn of the loop costs about 20 microseconds itself.
SLICE_MIN = 8
#: Of the first, of which nobody knows what they cost.
_FIRST = 32
TURN_S = 0.0005


async def in_slices(uids: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield them, `size` at a time at most; what they name may be gone when its slice comes."""
    begin, count = 0, min(_FIRST, size)
    while begin < len(uids):
        if begin:
            await asyncio.sleep(0)
        # Of this thread: a member that has to wait for a core is not to make smaller slices.
        began = time.thread_time()
        yield uids[begin : begin + count]
        begin += count
        took = time.thread_time() - began
        if took > TURN_S:
            count = max(min(SLICE_MIN, size), int(count * TURN_S / took))
        elif took < TURN_S / 2:
            count = min(size, 2 * count)


async def in_turns(made: Iterable[T]) -> AsyncIterator[T]:
    """Yield what is made one by one, with turns of the loop between: parts of a page, families of
    metrics.  A list that may change meanwhile is not to be walked by it.
    """
    began = time.thread_time()
    for each in made:
        yield each
        if time.thread_time() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.thread_time()
