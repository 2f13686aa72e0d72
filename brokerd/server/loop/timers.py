"""Deadlines of many connections with one timer.

A connection says when it wants to be looked at; the wheel looks at that time, at those that are due
only, so that thousands of idle connections cost nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import Protocol

log = logging.getLogger(__name__)

#: Shortest time between two looks: deadlines that are nearer to each other share a look, and may be
#: that late.  The shortest heartbeat interval is a second.
RESOLUTION_MS = 40


class Due(Protocol):
    """An object that has deadlines."""

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
        #: When the timer fires, and when it did so last.
        self._due_ms = self._looked_ms = 0
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
        if self._timer is None or deadline_ms < self._due_ms:
            self._schedule(deadline_ms)

    def forget(self, member: Due) -> None:
        """Take a member out."""
        self._deadline.pop(member, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()
        self._deadline.clear()

    def _schedule(self, deadline_ms: int) -> None:
        due_ms = max(deadline_ms, self._looked_ms + RESOLUTION_MS)
        if self._timer is not None:
            if due_ms >= self._due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        # Times are whole milliseconds, cut off: at the next one the deadline is past for certain.
        self._timer = self._loop.call_at((due_ms + 1) / 1000, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._looked_ms = self.now_ms()
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
            self._schedule(self._heap[0][0])
