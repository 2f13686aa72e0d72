"""Logs of volatile groups: memory instead of disk, otherwise the same way through the replica.

Classic queues with this node as their only member live here (host.py: open_group).
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.actions import SaveSnapshot
from brokerd.raft.inputs import SnapshotSaved
from brokerd.raft.messages import Configuration, Entry, HardState
from brokerd.storage.memory import MemoryLog

#: Bytes of commands between two snapshots of a volatile group: each lets go of dead entries.
SNAPSHOT_BYTES_MAX = 16 * 1024 * 1024


class VolatileStore:
    """One MemoryLog per volatile group; every write is done at once."""

    def __init__(self, wake: Callable[[Driver], None]) -> None:
        self._wake = wake
        self._logs: dict[int, MemoryLog] = {}
        #: Groups with new entries since they were last cleaned.
        self._moved: dict[int, Driver] = {}

    def open(self, uid: int, configuration: Configuration) -> MemoryLog:
        """Return a new, empty log."""
        log = self._logs[uid] = MemoryLog(configuration)
        return log

    def close(self, uid: int) -> None:
        """Let a log go, and all that is in it: who refers to it goes later, if in a cycle."""
        self._moved.pop(uid, None)
        log = self._logs.pop(uid, None)
        if log is not None:
            log.clear()

    def persist(
        self, driver: Driver, token: int, hard_state: HardState | None, entries: list[Entry]
    ) -> None:
        """Keep what a Persist action brings."""
        self._logs[driver.uid].append(hard_state, entries)
        self._moved[driver.uid] = driver
        driver.persisted(token, entries)
        self._wake(driver)

    def save_snapshot(self, driver: Driver, action: SaveSnapshot) -> None:
        """Keep a snapshot and let dead entries go."""
        self._logs[driver.uid].save_snapshot(action.snapshot, action.live_indexes)
        driver.inputs.append(SnapshotSaved(action.snapshot.index))
        self._wake(driver)

    def clean(self) -> None:
        """Let go of what no machine needs any more; every few seconds.

        A snapshot comes after many bytes of commands, and a queue that is only emptied has few:
        its bodies would stay, and an alarm with them that keeps the next ones away.
        """
        moved, self._moved = self._moved, {}
        for uid, driver in moved.items():
            live = driver.machine.live_indexes()
            self._logs[uid].empty_dead(live, driver.replica.applied_index)
