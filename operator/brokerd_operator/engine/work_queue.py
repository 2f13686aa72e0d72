"""The keyed work queue: one worker per key at most, due times, back-off, fair turns.

design/operator.md §9. Pure of what the keys mean. Invariant: a key is at most once among the due
ones and at most once with a worker; a key added while it is with a worker is due again when that
worker is done.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from brokerd_operator.engine.turns import Line, Turns

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
#: A herd of keys that failed together must not come back together.
JITTER = 0.2
#: Workers that passes over clusters, or over the resources of one broker, leave to the others: a
#: broker that does not answer in time holds as many workers as it gets.
LEFT_TO_OTHERS = 2
#: The lanes of keys that go before all others have this in place of a broker.
CLUSTERS = "clusters"

K = TypeVar("K")


def _one_line(_: object) -> Line:
    return Line("")


class WorkQueue(Generic[K]):
    """Owns due times and failure counts of all keys."""

    def __init__(
        self,
        clock: Callable[[], float],
        randomness: random.Random,
        line_of: Callable[[K], Line] = _one_line,
        workers: int = 1,
    ) -> None:
        self._clock = clock
        self._random = randomness
        self._line_of = line_of
        self._busy_max = max(1, workers - LEFT_TO_OTHERS)
        self._due: dict[K, float] = {}
        #: Keys whose time will come.
        self._heap: list[tuple[float, int, K]] = []
        #: Keys whose time has come: clusters, and everything else.
        self._clusters: Turns[K] = Turns()
        self._others: Turns[K] = Turns()
        self._order = itertools.count()
        #: Keys with a worker, and the broker of their line.
        self._working: dict[K, str] = {}
        self._busy: Counter[str] = Counter()
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

    def is_working(self, key: K) -> bool:
        """Whether a worker has the key."""
        return key in self._working

    def catch_up(self, key: K) -> None:
        """The worker looks at everything anew from here on: what was told until now is no reason
        for another look."""
        due = self._due.get(key)
        if due is not None and due <= self._clock():
            del self._due[key]

    def done(self, key: K) -> None:
        """The worker has finished with a key."""
        broker = self._working.pop(key)
        self._busy[broker] -= 1
        if not self._busy[broker]:
            del self._busy[broker]
        due = self._due.get(key)
        if due is not None:
            heapq.heappush(self._heap, (due, next(self._order), key))
        # A line that had all workers it may have is open again.
        if due is not None or self._clusters or self._others:
            self._changed.set()

    def _take(self) -> K | None:
        self._sort_in()
        for turns in (self._clusters, self._others):
            found = turns.pop(self._is_wanted, self._is_open)
            if found is not None:
                line, key = found
                del self._due[key]
                self._working[key] = line.broker
                self._busy[line.broker] += 1
                return key
        return None

    def _sort_in(self) -> None:
        """Keys whose time has come wait for their turn."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._is_wanted(due, key):
                line = self._line_of(key)
                turns = self._clusters if line.broker == CLUSTERS else self._others
                turns.push(line, due, key)

    def _is_wanted(self, due: float, key: K) -> bool:
        """False: superseded, forgotten, or `done` will bring it back."""
        return self._due.get(key) == due and key not in self._working

    def _is_open(self, line: Line) -> bool:
        return not line.broker or self._busy[line.broker] < self._busy_max

    @property
    def is_idle(self) -> bool:
        """Nothing is due now and no worker is busy."""
        now = self._clock()
        return not self._working and all(due > now for due in self._due.values())
