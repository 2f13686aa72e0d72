"""Walks over all queues, groups or connections of a member, which may be ten thousand.

A walk works for TURN_S of processor time, whatever is done with it, and rests then: what a publish
waits for is a few turns, since it passes the loop a few times.  A turn of the loop in between would
not do: while the loop never waits for anything the log's thread, whose sync is over, does not get
the interpreter's lock, for the loop lets go of it for some microseconds only (ADR 53).  Walks rest
together and go on one at a time: a few of them take no more of the loop than one.  While a command
is under way they rest on, where commands are few: whoever waits for it does not notice the walk.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

#: So many at most are looked at before others have a turn of the loop.
CHUNK = 200
#: So many at least: a turn of the loop costs about 20 microseconds itself.
CHUNK_MIN = 8
#: Of the first, of which nobody knows what they cost.
_FIRST = 8
TURN_S = 0.0001
REST_S = 0.0002
#: So many rests at most while a command is under way, which takes a millisecond.
PATIENCE = 5
#: And so many, a tenth of a second, of walks on end: who asks for much is not to wait for long.
PUT_OFFS_MAX = 500
#: Walks that began so long after the last rest of others are others.
APART_S = 0.1
#: Where one is under way in more than this share of the moments, waiting for none is in vain.
BUSY_MAX = 0.5
#: Moments that count: the last dozens.
_BUSY_GAIN = 1 / 32
#: One more walk goes on at a time for so many that wait: many readers are not to starve.
CROWD = 4


def never() -> bool:
    """Nobody waits for anything."""
    return False


class _Timer(ctypes.Structure):
    """struct itimerspec: the time of one who begins anew, and until the first."""

    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


class _Rests:
    """Wakes walks of a loop after their rest, one after the other.

    State: who rests, in order; while somebody does, the timer is set; in what share of the last
    moments the member was busy, and how often the next walk has been put off.  The loop's own clock
    counts milliseconds; this one is a file that can be read when its time has come
    (timerfd_create(2)).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._set_time = libc.timerfd_settime
        self._until = ctypes.byref(_Timer((0, 0), (0, round(REST_S * 1e9))))
        self._timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.is_busy: Callable[[], bool] = never
        self._busy = 0.0
        self._put_off = 0
        #: The same of all walks on end, and when one of them rested last.
        self._put_offs = 0
        self._rested_at = 0.0
        loop.add_reader(self._timer, self._due)

    def __del__(self) -> None:
        if self._timer >= 0:
            os.close(self._timer)

    def _begin(self) -> None:
        self._set_time(self._timer, 0, self._until, None)

    def add(self, walk: asyncio.Future[None]) -> None:
        """Let a walk rest."""
        self._waiting.append(walk)
        if len(self._waiting) == 1:
            self._begin()

    def _due(self) -> None:
        os.read(self._timer, 8)
        if self._is_put_off():
            self._begin()
            return
        turns = 1 + len(self._waiting) // CROWD
        while self._waiting and turns:
            walk = self._waiting.popleft()
            # Nobody waits for one that was cancelled meanwhile.
            if not walk.done():
                walk.set_result(None)
                turns -= 1
        if self._waiting:
            self._begin()

    def _is_put_off(self) -> bool:
        """Tell whether the next walk rests on, since a client waits for something."""
        is_busy, now = self.is_busy(), time.monotonic()
        if now - self._rested_at > APART_S:
            self._put_offs = 0
        self._rested_at = now
        if not self._put_off:
            self._busy += (is_busy - self._busy) * _BUSY_GAIN
        is_worth_it = self._busy <= BUSY_MAX and self._put_offs < PUT_OFFS_MAX
        if is_busy and is_worth_it and self._put_off < PATIENCE:
            self._put_off += 1
            self._put_offs += 1
            return True
        self._put_off = 0
        return False


_rests: WeakKeyDictionary[asyncio.AbstractEventLoop, _Rests] = WeakKeyDictionary()


def _here() -> _Rests:
    loop = asyncio.get_running_loop()
    rests = _rests.get(loop)
    if rests is None:
        rests = _rests[loop] = _Rests(loop)
    return rests


def give_way_to(is_busy: Callable[[], bool]) -> None:
    """Have the walks of this loop rest on while `is_busy` says so, where that is seldom."""
    _here().is_busy = is_busy


async def _rest() -> None:
    walk = asyncio.get_running_loop().create_future()
    _here().add(walk)
    await walk


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
        await _rest()
        self._worked_s, self._began_s = 0.0, time.thread_time()

    async def give_way(self) -> None:
        """Let others have a turn of the loop: what a slice has begun, tasks say, is not in its
        time.
        """
        await asyncio.sleep(0)
        self._began_s = time.thread_time()


async def in_chunks(uids: Sequence[T], size: int = CHUNK) -> AsyncIterator[Sequence[T]]:
    """Yield them, `size` at a time at most; what they name may be gone when its slice comes."""
    begin, count = 0, min(_FIRST, size)
    walk = _Walk()
    while begin < len(uids):
        yield uids[begin : begin + count]
        begin += count
        took = walk.took()
        if took > TURN_S:
            count = max(min(CHUNK_MIN, size), int(count * TURN_S / took))
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
