"""Gives memory that is no longer used back to the system, so that an alarm ends with its cause.

glibc keeps what was freed below the top of its arenas for later, and Python's collector looks at
old objects so seldom that cycles which lived long stay (gc_policy.py).  Measured against jemalloc
(docs/operations.md): malloc_trim gives back as much as the best, needs nothing in the image, and
costs a few milliseconds when there is something to give.  It leaves the tops of all arenas but the
first as they are, so there is only that one (`settle_allocator`).
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable

from brokerd.server.memory.gc_policy import GcPolicy

#: Releases are this far apart, and sooner while memory is short.
EVERY_S = 10.0
SHORT_EVERY_S = 1.0
#: Trimming may take this share of the time.  It goes on beside the event loop, but who needs memory
#: waits for it.
TRIM_SHARE = 0.01

#: malloc.h's names for mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Blocks from this size on are mappings of their own, gone when they are freed: the 16 MiB
#: of a password's hash, large bodies.  Left to itself glibc raises this to the largest that was
#: ever freed, 32 MiB at most, and twice that may then stay at the top of each arena.
MAPPED_FROM_BYTES = 4 << 20
#: What may be free at the top of the heap between two releases, so that a stream of bodies does not
#: give back and ask anew for each.
TOP_BYTES_MAX = 32 << 20


def settle_allocator() -> None:
    """Have glibc keep what it may give back where `malloc_trim` finds it: before the first thread.

    One arena: threads that allocate at the same time hold the interpreter's lock anyway.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, TOP_BYTES_MAX)


def _find_trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim; None with another C library or allocator."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


class MemoryRelease:
    """Acts on each look at the memory; `_trim_from_s` says when it may act again."""

    def __init__(
        self,
        gc_policy: GcPolicy,
        trim: Callable[[int], int] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gc_policy = gc_policy
        self._trim = trim or _find_trim()
        self._clock_s = clock_s
        self._trimmed_s = 0.0
        self._trim_from_s = 0.0
        self._running: asyncio.Future[None] | None = None

    def memory_seen(self, is_short: bool) -> None:
        """Give back what can be given; is_short: the alarm is on or near."""
        now = self._clock_s()
        if self._running is not None and not self._running.done():
            return
        if now < max(self._trim_from_s, self._trimmed_s + (SHORT_EVERY_S if is_short else EVERY_S)):
            return
        self._gc_policy.collect(is_short=is_short)
        self._trimmed_s = now
        if self._trim is not None:
            self._running = asyncio.get_running_loop().run_in_executor(None, self._run, self._trim)

    def _run(self, trim: Callable[[int], int]) -> None:
        began = self._clock_s()
        trim(0)
        ended = self._clock_s()
        self._trim_from_s = ended + (ended - began) / TRIM_SHARE
