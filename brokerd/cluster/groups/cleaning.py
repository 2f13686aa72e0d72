"""Telling the log what machines still need, and letting it clean up.  Used by host.py only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.group_clock import Moved
from brokerd.cluster.groups.write_queue import CollectStep, WriteQueue
from brokerd.storage.wal import WriteAheadLog


class Cleaning:
    """State: groups that moved since their live ranges were told."""

    def __init__(
        self, wal: WriteAheadLog, queue: WriteQueue, groups_max: int, moved: Moved
    ) -> None:
        self._waiting: dict[int, None] = {}
        self._wal = wal
        self._queue = queue
        self._groups_max = groups_max
        self._moved = moved

    def forget(self, known: Collection[int]) -> None:
        """Remove what the log holds of other groups than these."""
        for log_uid in self._wal.groups():
            if log_uid not in known:
                self._queue.remove_group(log_uid)

    def collect(self, drivers: Mapping[int, Driver]) -> None:
        """Bounded work, every few seconds."""
        moved, is_all = self._moved.take()
        for uid in drivers if is_all else moved:
            driver = drivers.get(uid)
            # Without a snapshot all of the log is needed.
            if driver is not None and driver.replica.snapshot_index:
                self._waiting[uid] = None
        for uid in list(islice(self._waiting, self._groups_max)):
            del self._waiting[uid]
            driver = drivers.get(uid)
            if driver is not None and driver.error is None:
                self._wal.set_live(driver.log_uid, driver.machine.live_indexes())
        work = self._wal.collect()
        if work is not None:
            self._queue.add(CollectStep(work))
