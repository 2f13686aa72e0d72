"""Deadlines of machines (a message expires, a delay is over): their groups hear of them in time.

The host's tick would be a tenth of a second late.  One timer for all groups of a member, set only
for what is due before the next tick; a group without a deadline costs nothing.  Used by host.py
only.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Protocol

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.inputs import DeadlineReached

#: From one look to the next at least: so late a deadline may be, and what is due by then is one
#: flush.  A queue whose messages expire one after the other has 200 commands a second for it.
APART_MS = 5


class Host(Protocol):
    """What this needs of the host."""

    def wake(self, driver: Driver) -> None:
        """The driver has inputs."""
        ...

    def stop_replica(self, driver: Driver, error: Exception) -> None:
        """It cannot say what its machine waits for."""
        ...


class Deadlines:
    """State: deadlines by group, the nearest first; some are old news, since only a driver's own
    `deadline_ms` counts; a timer while one is due before the host's next tick.
    """

    def __init__(
        self,
        drivers: Mapping[int, Driver],
        tick_ms: int,
        clock_ms: Callable[[], int],
        host: Host,
    ) -> None:
        """drivers: those that are awake."""
        self._drivers = drivers
        self._tick_ms = tick_ms
        self._clock_ms = clock_ms
        self._host = host
        self._heap: list[tuple[int, int]] = []
        #: When groups were told last, and when is looked next: by the timer, or by the tick.
        self._looked_ms = self._next_look_ms = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, driver: Driver) -> None:
        """The group has run: its machine may have another deadline.

        A later one needs no entry of its own, the earlier one looks again: a deadline that moves
        with each use does not pile entries up.
        """
        deadline_ms, noted_ms = self._wanted_ms(driver), driver.deadline_ms
        if deadline_ms is not None and (noted_ms is None or deadline_ms < noted_ms):
            driver.deadline_ms = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, driver.uid))
            if deadline_ms < self._next_look_ms:
                self._set_timer(deadline_ms, self._clock_ms())

    def look(self) -> None:
        """Tell the groups whose deadline has come; called by the host's tick, too."""
        now_ms = self._clock_ms()
        self._next_look_ms = now_ms + self._tick_ms
        # The clock may have been put back.
        self._looked_ms = min(self._looked_ms, now_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            deadline_ms, uid = heapq.heappop(heap)
            driver = self._drivers.get(uid)
            if driver is None or driver.deadline_ms != deadline_ms:
                continue
            driver.deadline_ms = None
            wanted_ms = self._wanted_ms(driver)
            if wanted_ms is None:
                continue
            if wanted_ms > now_ms:
                # It has moved, as a lease does with each use.
                self.note(driver)
                continue
            self._looked_ms = now_ms
            driver.inputs.append(DeadlineReached(now_ms))
            self._host.wake(driver)
        if heap and heap[0][0] < self._next_look_ms:
            self._set_timer(heap[0][0], now_ms)

    def _wanted_ms(self, driver: Driver) -> int | None:
        try:
            return driver.replica.next_deadline_ms
        except Exception as error:
            self._host.stop_replica(driver, error)
            return None

    def end(self) -> None:
        """Look no more."""
        self._next_look_ms = 0
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, deadline_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        look_ms = self._next_look_ms = max(deadline_ms, self._looked_ms + APART_MS)
        self._timer = self._loop.call_later(max(0, look_ms - now_ms) / 1000, self.look)
