"""Late work: what lazy commands left behind is sent and written soon, for many of them at once.

A replica says that it is behind (raft/replication.py); a moment later the timer has it hasten.  One
timer for all groups of a member.  Used by host.py only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.inputs import Hasten

#: How long work is left: what a member that is killed may forget (ADR 23), and what a get waits
#: when the follower that it went to does not answer.
LATE_S = 0.01


class LateWork:
    """State: the drivers that are behind, each once; a timer while there are any."""

    def __init__(self, wake: Callable[[Driver], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._behind: dict[Driver, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, driver: Driver) -> None:
        """The driver's replica is behind."""
        self._behind[driver] = None
        if self._timer is None:
            self._timer = self._loop.call_later(LATE_S, self.do)

    def end(self, flush: Callable[[], None]) -> None:
        """The member ends: leave nothing."""
        # What waits for the next flush may be lazy.
        flush()
        self.do()
        flush()

    def do(self) -> None:
        """Have all that is left done with the next flush."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        behind, self._behind = self._behind, {}
        for driver in behind:
            driver.inputs.append(Hasten())
            self._wake(driver)
