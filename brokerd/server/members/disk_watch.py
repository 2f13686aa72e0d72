"""Watches whether the disk under the log answers, and has others lead while it does not (ADR 68).

core/alarms.py decides when it is stalled; the host tells the other members; leadership.py hands
over.  What else follows from a stall asks the host (`is_stalled`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from brokerd.config import StorageConfig
from brokerd.core.alarms import StallAlarm
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import NodeId
from brokerd.server.catalog import member_states

log = logging.getLogger(__name__)

#: Looks at the disk within the threshold; they cost nothing.
LOOKS = 5
INTERVAL_MS_MIN = 20
INTERVAL_MS_MAX = 1_000


class Own(Protocol):
    """What the host tells the other members of this one."""

    def set_stalled(self, is_stalled: bool) -> None:
        """The disk here does not answer, or does again."""
        ...


class Disk(Protocol):
    """The host, as far as the disk goes."""

    @property
    def own(self) -> Own:
        """Return what this member reports to the others."""
        ...

    def in_flight_s(self) -> float:
        """Return for how long the disk has not answered the call that it is at; 0: none."""
        ...

    def now_ms(self) -> int:
        """Return the monotonic clock."""
        ...


class Leadership(Protocol):
    """Gives leaderships away (leadership.py)."""

    def transferable(self, avoid: Collection[NodeId] = ()) -> list[int]:
        """Return the groups led here that another member could lead, `avoid` aside."""
        ...

    async def hand_over(self, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
        """Give leaderships away, but not to `avoid`; return how many are left."""
        ...


class DiskWatch:
    """One per member; `check` may be called at any time."""

    def __init__(
        self,
        config: StorageConfig,
        disk: Disk,
        leadership: Leadership,
        view: CatalogState,
    ) -> None:
        """view: knows the members that are to lead nothing."""
        self._config = config
        self._disk = disk
        self._leadership = leadership
        self._view = view
        self._interval_ms = min(max(config.stall_ms // LOOKS, INTERVAL_MS_MIN), INTERVAL_MS_MAX)
        self._alarm = StallAlarm(config.stall_ms, self._interval_ms)
        self._is_moving_told = False

    @property
    def is_stalled(self) -> bool:
        """Tell whether the disk here does not answer."""
        return self._alarm.is_on

    @property
    def count(self) -> int:
        """Return how many stalls have begun."""
        return self._alarm.count

    def total_s(self) -> float:
        """Return how long all stalls have lasted, the one under way included."""
        return self._alarm.total_ms(self._disk.now_ms()) / 1000

    def hindrance(self) -> str:
        """Say for how long the disk has not answered, for probes; "": it does."""
        if not self.is_stalled:
            return ""
        seconds = self._alarm.stalled_for_ms(self._disk.now_ms()) / 1000
        return f"the disk does not answer, the log has waited {seconds:.0f} s"

    async def run(self) -> None:
        """Look until the member ends; not at all where no stall is to be found."""
        while self._config.stall_ms:
            self.check()
            if self._is_to_move():
                await self._move()
            await asyncio.sleep(self._interval_ms / 1000)

    def check(self) -> None:
        """Look once and act on what it means."""
        was_on = self._alarm.is_on
        in_flight_ms = int(self._disk.in_flight_s() * 1000)
        for line in self._alarm.sample(self._disk.now_ms(), in_flight_ms):
            log.warning("%s", line)
        if self._alarm.is_on != was_on:
            self._is_moving_told = False
            self._disk.own.set_stalled(self._alarm.is_on)

    def _is_to_move(self) -> bool:
        stalled_ms = self._alarm.stalled_for_ms(self._disk.now_ms())
        return 0 < stalled_ms >= self._config.stall_leaders_ms

    async def _move(self) -> None:
        """Have others lead; again at each look, since an election may choose this member."""
        resting = member_states.resting(self._view)
        count = len(self._leadership.transferable(resting))
        if not count:
            return
        # Looks go on in between: it is no matter of this disk whether others take over.
        left = await self._leadership.hand_over(self._interval_ms / 1000, resting)
        if not self._is_moving_told or not left:
            self._is_moving_told = True
            log.warning("disk stalled: %d of %d leaderships moved away", count - left, count)
