"""Which groups the tick matters to: those that have something to wait for.

An idle group costs nothing (replication.md §2.1).  Decides nothing else; used by host.py only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.inputs import LeaderAlive, Tick
from brokerd.raft.messages import NodeId

#: Of more groups than this each tick takes the next: where thousands have something to wait for
#: (their leaders' member was lost) they must not take all time from each other's elections.
GROUPS_PER_TICK = 1_000

#: Groups that are noted until the next question; beyond them any may have moved.
MOVED_MAX = 200_000


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Moved:
    """The groups that ran, came or went since this was asked last: all others are as they were.

    For those who keep something about each group and look at nothing that stands still.
    """

    __slots__ = ("_active", "_is_all", "_noted")

    def __init__(self, active: Collection[int]) -> None:
        self._active = active
        self._noted: set[int] = set()
        self._is_all = True

    def note(self, uid: int) -> None:
        """The group has settled after it ran, or is not here any more."""
        if not self._is_all:
            self._noted.add(uid)
            if len(self._noted) > MOVED_MAX:
                self._noted.clear()
                self._is_all = True

    def take(self) -> tuple[Collection[int], bool]:
        """Return the groups, some of which may be closed; True: any other may have moved as well,
        as at first.
        """
        moved, self._noted = self._noted, set()
        moved.update(self._active)
        is_all, self._is_all = self._is_all, False
        return moved, is_all


class GroupClock:
    """State: `active`, uids of groups that ran since the last tick or wait for the next, the next
    one to be looked at first; the host adds them.
    """

    __slots__ = ("_settled", "_watchers", "_watchers_of_folds", "active")

    def __init__(self, settled: Callable[[int], None]) -> None:
        """settled: told of each group that comes to rest."""
        self.active: dict[int, None] = {}
        self._settled = settled
        self._watchers: list[Moved] = []
        self._watchers_of_folds: list[Moved] = []

    def watch(self, *, folds: bool = False) -> Moved:
        """Return what tells which groups have moved, from now on; folds: and which were folded."""
        moved = Moved(self.active)
        self._watchers.append(moved)
        if folds:
            self._watchers_of_folds.append(moved)
        return moved

    def folded(self, uid: int) -> None:
        """All is as it was, in less room."""
        for moved in self._watchers_of_folds:
            moved.note(uid)

    def remove(self, uid: int) -> None:
        """The group is not here any more, or has stopped."""
        self.active.pop(uid, None)
        self._note(uid)

    def _note(self, uid: int) -> None:
        for moved in self._watchers:
            moved.note(uid)

    def _is_settled(self, driver: Driver, down: Collection[NodeId]) -> bool:
        """Look at a group that has run since the last tick, or waited for it."""
        replica = driver.replica
        # What waits among its inputs for others is handled with the tick.
        if driver.inputs or not replica.is_consensus_quiet(down):
            return False
        return driver.leader in driver.members

    @property
    def round_ticks(self) -> int:
        """In how many ticks each active group has its turn."""
        return max(1, -(-len(self.active) // GROUPS_PER_TICK))

    def due(
        self,
        drivers: Mapping[int, Driver],
        down: Collection[NodeId],
        failed: Callable[[Driver, Exception], None],
    ) -> list[Driver]:
        """Return the groups that want a tick now; `failed` hears of those that cannot say.

        down: members that are not up; groups do not wait for them where they need not.
        """
        due: list[Driver] = []
        # With the tick rather than whenever a group ran: a busy one runs a hundred times between.
        for uid in list(islice(self.active, GROUPS_PER_TICK)):
            driver = drivers[uid]
            # Those that are not settled wait behind all others for their next tick.
            del self.active[uid]
            try:
                if self._is_settled(driver, down):
                    driver.rest()
                    self._note(uid)
                    self._settled(uid)
                    continue
            except Exception as error:
                failed(driver, error)
                continue
            self.active[uid] = None
            due.append(driver)
        return due


def tick(driver: Driver, heard: Collection[NodeId], clock_ms: int) -> bool:
    """Tell a group the time, and that its leader's node was heard; False: it has not come to the
    last tick yet, since thousands of groups have something to do.
    """
    if driver.has_tick:
        return False
    driver.has_tick = True
    # A leader that is no member any more keeps its node, but has no followers.
    if driver.leader in heard and driver.leader in driver.members:
        driver.inputs.append(LeaderAlive())
    # A damaged replica must not campaign.
    if driver.health.may_vote:
        driver.inputs.append(Tick(clock_ms))
    return True
