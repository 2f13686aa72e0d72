"""Telling the log what machines still need, and letting it clean up.  Used by host.py only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.write_queue import CollectStep, WriteQueue
from brokerd.storage.wal import WriteAheadLog


class Cleaning:
    """State: groups whose machine moved since their live ranges were told."""

    def __init__(self, wal: WriteAheadLog, queue: WriteQueue, groups_max: int) -> None:
        self.moved: dict[int, None] = {}
        self._wal = wal
        self._queue = queue
        self._groups_max = groups_max

    def forget(self, known: Collection[int]) -> None:
        """Remove what the log holds of other groups than these."""
        for log_uid in self._wal.groups():
            if log_uid not in known:
                self._queue.remove_group(log_uid)

    def collect(self, drivers: Mapping[int, Driver]) -> None:
        """Bounded work, every few seconds."""
        for uid in list(self.moved)[: self._groups_max]:
            del self.moved[uid]
            driver = drivers.get(uid)
            if driver is not None and driver.error is None:
                self._wal.set_live(driver.log_uid, driver.machine.live_indexes())
                if driver.replica.snapshot_index or driver.replica.is_installing:
                    # Messages leave the queue without a new snapshot; look again next time.
                    self.moved[uid] = None
        work = self._wal.collect()
        if work is not None:
            self._queue.add(CollectStep(work))
