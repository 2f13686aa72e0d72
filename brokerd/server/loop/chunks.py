"""Walks over all queues, groups or connections of a member, which may be ten thousand.

A walk works for TURN_S of processor time, whatever is done with it, and rests then: what a publish
waits for is a few turns, since it passes the loop a few times.  A turn of the loop in between would
not do: while the loop never waits for anything the log's thread, whose sync is over, does not get
the interpreter's lock, for the loop lets go of it for some microseconds only (ADR 53).  Walks rest
together and go on one at a time: many of them take no more of the loop than one.
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

#: Most items of one chunk.
CHUNK = 200
#: Fewest items of one chunk: a turn of the loop costs about 20 microseconds itself.
CHUNK_MIN = 8
#: Items of a walk's first chunk, before the cost of one is known.
_FIRST = 8
#: Seconds of processor time that a walk works before it rests.
TURN_S = 0.0001
#: Seconds of a rest.
REST_S = 0.0002
#: Seconds of processor time that a walk which takes whole seconds works before it rests, while
#: nothing else uses the loop: a rest costs about 0.05 ms itself.
IDLE_TURN_S = 0.001
#: Seconds of processor time of one slice, after which its walk rests as long as it worked: what is
#: read as a whole may have 128 MiB.
LONG_S = 0.02
#: Seconds for which the loop counts as used after a command: by a client of 50 a second all along.
USED_FOR_S = 0.02


class _Timer(ctypes.Structure):
    """struct itimerspec: the time of one who begins anew, and until the first."""

    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


class _Rests:
    """Wakes walks of a loop after their rest, one after the other.

    State: walks that rest, in order; the timer is set while there is one.  The loop's own clock
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
        while self._waiting:
            walk = self._waiting.popleft()
            # A walk that was cancelled meanwhile is done.
            if not walk.done():
                walk.set_result(None)
                break
        if self._waiting:
            self._begin()


_rests: WeakKeyDictionary[asyncio.AbstractEventLoop, _Rests] = WeakKeyDictionary()


def _here() -> _Rests:
    loop = asyncio.get_running_loop()
    rests = _rests.get(loop)
    if rests is None:
        rests = _rests[loop] = _Rests(loop)
    return rests


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


class Pace(_Walk):
    """The pace of a walk that takes whole seconds: over the messages of a deep queue.

    It rests as the others while queues take commands, and after ten times as much work while none
    does: one publish that comes then waits for a millisecond, the next does not.
    State: how many commands there had been, when the loop counts as idle again.
    """

    __slots__ = ("_commands", "_idle_from_s", "_seen")

    def __init__(self, commands: Callable[[], int]) -> None:
        """commands() grows when queues here take any."""
        super().__init__()
        self._commands = commands
        self._seen = commands()
        self._idle_from_s = 0.0

    @property
    def turn_s(self) -> float:
        """Return the processor time of a slice, as things are now."""
        return IDLE_TURN_S if time.monotonic() >= self._idle_from_s else TURN_S

    async def keep(self) -> None:
        """Rest if this has worked for long enough."""
        self.took()
        if self._worked_s >= self.turn_s:
            await self.rest()

    async def rest(self) -> None:
        """Leave the loop to others, and see whether queues took commands."""
        if self._worked_s >= LONG_S:
            await asyncio.sleep(self._worked_s)
        await super().rest()
        seen = self._commands()
        if seen != self._seen:
            self._seen = seen
            self._idle_from_s = time.monotonic() + USED_FOR_S
