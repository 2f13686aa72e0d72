"""The keyed work queue: one worker per key at most, due times, back-off (design/operator.md §9).

Pure of what the keys mean. Invariant: a key is at most once among the due ones and at most once
with a worker; a key added while it is with a worker is due again when that worker is done.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Generic, TypeVar

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
#: A herd of keys that failed together must not come back together.
JITTER = 0.2

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Owns due times and failure counts of all keys."""

    def __init__(self, clock: Callable[[], float], randomness: random.Random) -> None:
        self._clock = clock
        self._random = randomness
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Make a key due; the earliest of several due times counts."""
        due = self._clock() + delay_s
        present = self._due.get(key)
        if present is not None and present <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._changed.set()

    def retry(self, key: K) -> float:
        """Make a key due after a failure; seconds until then."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay: float = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(count, 16))
        delay *= 1 + self._random.uniform(-JITTER, JITTER)
        self.add(key, delay)
        return delay

    def succeed(self, key: K) -> None:
        """The next failure of this key is a first one again."""
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """A key that is no more."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    async def get(self) -> K:
        """The next due key; `done` must follow."""
        while True:
            key = self._take()
            if key is not None:
                return key
            self._changed.clear()
            timeout = max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def catch_up(self, key: K) -> None:
        """The worker looks at everything anew from here on: what was told until now is no reason
        for another look."""
        due = self._due.get(key)
        if due is not None and due <= self._clock():
            del self._due[key]

    def done(self, key: K) -> None:
        """The worker has finished with a key."""
        self._working.discard(key)
        due = self._due.get(key)
        if due is not None:
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._changed.set()

    def _take(self) -> K | None:
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) != due or key in self._working:
                # Superseded, forgotten, or `done` will bring it back.
                heapq.heappop(self._heap)
                continue
            if due > self._clock():
                return None
            heapq.heappop(self._heap)
            del self._due[key]
            self._working.add(key)
            return key
        return None

    @property
    def is_idle(self) -> bool:
        """Nothing is due now and nobody works."""
        now = self._clock()
        return not self._working and all(due > now for due in self._due.values())
