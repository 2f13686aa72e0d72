"""Walks over all queues, groups or connections of a member, which may be ten thousand.

A walk works for TURN_S of processor time, whatever is done with it, and rests then: what a publish
waits for is a few turns, since it passes the loop a few times.  A turn of the loop in between would
not do: while the loop never waits for anything the log's thread, whose sync is over, does not get
the interpreter's lock, for the loop lets go of it for some microseconds only (ADR 53).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

#: So many at most are looked at before others have a turn of the loop.
SLICE = 200
#: So many at least: a turn of the loop costs about 20 microseconds itself.
SLICE_MIN = 8
#: Of the first, of which nobody knows what they cost.
_FIRST = 32
TURN_S = 0.0004
#: The shortest that the loop's clock knows.
REST_S = 0.001


class _Walk:
    """State: processor time of this thread when the walk went on, and what it used since its last
    rest.

    Of the thread, since a member that has to wait for a core is not to make smaller slices.
    """

    __slots__ = ("_began_s", "_worked_s")

    def __init__(self) -> None:
        self._began_s = time.thread_time()
        self._worked_s = 0.0

    def took(self) -> float:
        """Return the seconds that the walk has used since this was asked last."""
        now = time.thread_time()
        took, self._began_s = now - self._began_s, now
        self._worked_s += took
        return took

    @property
    def is_due(self) -> bool:
        """Tell whether this has worked for a turn since its last rest."""
        return self._worked_s >= TURN_S

    async def rest(self) -> None:
        """Leave the loop to others; what they use is not the walk's."""
        await asyncio.sleep(REST_S)
        self._worked_s, self._began_s = 0.0, time.thread_time()

    async def give_way(self) -> None:
        """Let others have a turn of the loop: what a slice has begun, tasks say, is not in its
        time.
        """
        await asyncio.sleep(0)
        self._began_s = time.thread_time()


async def in_slices(uids: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield them, `size` at a time at most; what they name may be gone when its slice comes."""
    begin, count = 0, min(_FIRST, size)
    walk = _Walk()
    while begin < len(uids):
        yield uids[begin : begin + count]
        begin += count
        took = walk.took()
        if took > TURN_S:
            count = max(min(SLICE_MIN, size), int(count * TURN_S / took))
        elif took < TURN_S / 2:
            count = min(size, 2 * count)
        if begin < len(uids):
            if walk.is_due:
                await walk.rest()
            else:
                await walk.give_way()


async def in_turns(made: Iterable[T]) -> AsyncIterator[T]:
    """Yield what is made one by one, with rests between: parts of a page, families of metrics.  A
    list that may change meanwhile is not to be walked by it.
    """
    walk = _Walk()
    for each in made:
        yield each
        walk.took()
        if walk.is_due:
            await walk.rest()
