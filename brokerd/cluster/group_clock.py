"""Which groups the clock matters to: those with something to wait for, those with a deadline.

An idle group costs nothing (replication.md §2.1).  Decides nothing else; used by host.py only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from brokerd.cluster.driver import Driver


class GroupClock:
    """State: `active` (uids of groups that ran since the last tick or wait for the next; the host
    adds them), and deadlines of machines, which may be old news: only a driver's own `deadline_ms`
    counts.
    """

    __slots__ = ("_deadlines", "active")

    def __init__(self) -> None:
        self.active: set[int] = set()
        self._deadlines: list[tuple[int, int]] = []

    def _settle(self, driver: Driver) -> None:
        """Look at a group that has run since the last tick, or waited for it."""
        replica, uid = driver.replica, driver.uid
        if not replica.is_consensus_quiet or driver.leader not in driver.members:
            return
        self.active.discard(uid)
        deadline_ms = replica.next_deadline_ms
        # A later deadline needs no timer of its own: the earlier one looks again.  So a deadline
        # that moves with each use does not pile timers up.
        if deadline_ms is not None and (
            driver.deadline_ms is None or deadline_ms < driver.deadline_ms
        ):
            driver.deadline_ms = deadline_ms
            heapq.heappush(self._deadlines, (deadline_ms, uid))

    def due(
        self,
        drivers: Mapping[int, Driver],
        clock_ms: int,
        failed: Callable[[Driver, Exception], None],
    ) -> set[int]:
        """Return the groups that want a tick now; `failed` hears of those that cannot say."""
        # With the tick rather than whenever a group ran: a busy one runs a hundred times between.
        for uid in list(self.active):
            try:
                self._settle(drivers[uid])
            except Exception as error:
                failed(drivers[uid], error)
        due = set(self.active)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= clock_ms:
            deadline_ms, uid = heapq.heappop(deadlines)
            driver = drivers.get(uid)
            if driver is not None and driver.deadline_ms == deadline_ms:
                driver.deadline_ms = None
                due.add(uid)
        return due
