"""Deadlines of many connections with one timer.

A connection says when it wants to be looked at; the wheel looks every 250 ms, at those that are due
only, so that thousands of idle connections cost nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import Protocol

log = logging.getLogger(__name__)

#: How precisely deadlines are kept; heartbeats are counted in seconds.
RESOLUTION_MS = 250


class Due(Protocol):
    """Whoever has deadlines."""

    def deadline_reached(self, now_ms: int) -> int | None:
        """Act, and return the next deadline (or None for none until `watch` is called again)."""
        ...


class DeadlineWheel:
    """Holds (deadline, member) pairs; a member stands in it at most once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Due]] = []
        self._deadline: dict[Due, int] = {}
        self._counter = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return the loop's monotonic clock in milliseconds."""
        return int(self._loop.time() * 1000)

    def watch(self, member: Due, deadline_ms: int | None) -> None:
        """Set a member's deadline, replacing its earlier one; None takes it out."""
        if deadline_ms is None:
            self._deadline.pop(member, None)
            return
        known = self._deadline.get(member)
        if known is not None and known <= deadline_ms:
            # Looked at too early rather than entered again and again; it then says its new one.
            return
        self._deadline[member] = deadline_ms
        self._counter += 1
        heapq.heappush(self._heap, (deadline_ms, self._counter, member))
        if self._timer is None:
            self._schedule()

    def forget(self, member: Due) -> None:
        """Take a member out."""
        self._deadline.pop(member, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()
        self._deadline.clear()

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(RESOLUTION_MS / 1000, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self.now_ms()
        while self._heap and self._heap[0][0] <= now:
            deadline, _, member = heapq.heappop(self._heap)
            if self._deadline.get(member) != deadline:
                continue
            del self._deadline[member]
            try:
                following = member.deadline_reached(now)
            except Exception:
                # One member's defect must not stop the clock of all others.
                log.exception("a timer failed")
                continue
            if following is not None:
                self.watch(member, max(following, now + 1))
        if self._heap:
            self._schedule()
