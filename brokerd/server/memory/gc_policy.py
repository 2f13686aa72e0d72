"""Looks for cycles of objects that are no longer in use, and leaves alone what lives long.

A collection looks at all objects that are not frozen, and no client is served meanwhile: a queue
has 80 of them, so ten thousand take a third of a second.  Therefore what came with many queues is
frozen unseen, and what a collection took long to look at is frozen behind it.  What of that becomes
garbage later stays until all is looked at once more: where memory is short, and once an hour.
Queues leave no cycles behind, closed connections some.  memory/release.py says when.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Protocol

#: Share of the time that collections may take: where memory is short, and where it is not and they
#: must go unnoticed.
SHORT_SHARE = 0.05
QUIET_SHARE = 0.001
#: What took longer to look at is frozen: the next publish waits no longer than for a write.
LONG_S = 0.01
#: New queues that are frozen unseen: to look at them takes about that long.
NEW_QUEUES = 500
#: How often all is looked at, if something was frozen.
WHOLE_S = 3600.0


class Collector(Protocol):
    """What is used of the module gc."""

    def collect(self) -> int:
        """Look at all that is not frozen."""
        ...

    def freeze(self) -> None:
        """Look no more at what there is now."""
        ...

    def unfreeze(self) -> None:
        """Look at all again."""
        ...


class GcPolicy:
    """State: for how many queues objects are frozen at most; since when something is frozen that
    was not looked at again; when the last collection ended, and how long it took.
    """

    def __init__(
        self,
        queues: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
        collector: Collector = gc,
    ) -> None:
        """queues: how many there are."""
        self._queues = queues
        self._clock_s = clock_s
        self._collector = collector
        self._frozen_queues = 0
        self._frozen_s: float | None = None
        self._ended_s = self._took_s = 0.0

    def collect(self, *, is_short: bool) -> None:
        """Collect now, unless that would take too much of the time; is_short: of memory."""
        queues = self._queues()
        self._frozen_queues = min(self._frozen_queues, queues)
        if queues >= self._frozen_queues + NEW_QUEUES:
            self._freeze()
        began = self._clock_s()
        if began < self._ended_s + self._took_s / (SHORT_SHARE if is_short else QUIET_SHARE):
            return
        is_due = self._frozen_s is not None and began >= self._frozen_s + WHOLE_S
        is_whole = is_short or is_due
        if is_whole:
            self._collector.unfreeze()
        self._collector.collect()
        self._ended_s = self._clock_s()
        self._took_s = self._ended_s - began
        if is_whole or self._took_s > LONG_S:
            self._freeze()
        if is_whole:
            self._frozen_s = None

    def _freeze(self) -> None:
        self._collector.freeze()
        self._frozen_queues = self._queues()
        self._frozen_s = self._clock_s() if self._frozen_s is None else self._frozen_s
