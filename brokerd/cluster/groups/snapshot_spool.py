"""Snapshots on their way in: live entries go to the log as they come, so that memory is bounded.

inbox.py feeds it; what is complete goes to the replica as a snapshot whose `live` says where it is.
What never is (a stream that ends, a snapshot that the replica does not want) is given up; the raft
room sends it again.  A disk that is slower than the network stops the sender by not reading.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from brokerd.cluster.errors import FrameError
from brokerd.cluster.groups.write_queue import WriteQueue
from brokerd.raft import validation
from brokerd.raft.config import RaftConfig
from brokerd.raft.messages import Entry, NodeId, Snapshot
from brokerd.storage import staging
from brokerd.storage.staging import StagedEntries, Staging
from brokerd.storage.wal import WriteAheadLog

#: Bytes that wait for the disk: above the first the sender's stream is not read, below the second
#: it is again.  A slow disk must be through with it before the silence looks like death.
WAITING_BYTES_MAX = 16 * 1024 * 1024
WAITING_BYTES_LOW = 4 * 1024 * 1024


@dataclass(slots=True)
class _Incoming:
    """One group's snapshot; `staging` None: nothing here wants it."""

    node: NodeId
    index: int
    term: int
    staging: Staging | None
    last_index: int = 0


class SnapshotSpool:
    """State: one snapshot per group at most; `waiting_bytes` of chunks not yet on disk."""

    def __init__(
        self,
        wal: WriteAheadLog,
        queue: WriteQueue,
        config: RaftConfig,
        log_of: Callable[[int], int | None],
    ) -> None:
        """log_of(group) returns the uid of the group's log on disk, None if there is none here."""
        self.waiting_bytes = 0
        #: Stops or resumes the reading of a member's stream; set once there are any.
        self.throttle: Callable[[NodeId, bool], None] = _no_streams
        self._wal = wal
        self._queue = queue
        self._config = config
        self._log_of = log_of
        self._incoming: dict[int, _Incoming] = {}
        self._throttled: set[NodeId] = set()

    def begin(self, group: int, snapshot: Snapshot, node: NodeId) -> None:
        """The first chunk has come."""
        self.drop(group)
        log_uid = self._log_of(group)
        staged = None if log_uid is None else self._wal.begin_staging(log_uid)
        self._incoming[group] = _Incoming(node, snapshot.index, snapshot.term, staged)

    def take(self, group: int, entries: list[Entry]) -> None:
        """Write some live entries; FrameError if they cannot be a snapshot's."""
        incoming = self._incoming.get(group)
        if incoming is None or not entries:
            return
        for entry in entries:
            if not incoming.last_index < entry.index <= incoming.index:
                raise FrameError(f"live entries of group {group:x} are not in order")
            if not 0 < entry.term <= incoming.term:
                raise FrameError(f"a live entry of group {group:x} has an impossible term")
            fault = validation.fault_of_entry_data(entry, self._config)
            if fault is not None:
                raise FrameError(f"a live entry of group {group:x}: {fault}")
            incoming.last_index = entry.index
        if incoming.staging is None:
            return
        chunk = staging.extend(incoming.staging, entries)
        self.waiting_bytes += chunk.size
        self._queue.add_chunk(chunk, self._written)
        if self.waiting_bytes > WAITING_BYTES_MAX and incoming.node not in self._throttled:
            self._throttled.add(incoming.node)
            self.throttle(incoming.node, True)

    def _written(self, size: int) -> None:
        self.waiting_bytes -= size
        if self.waiting_bytes < WAITING_BYTES_LOW and self._throttled:
            throttled, self._throttled = self._throttled, set()
            for node in throttled:
                self.throttle(node, False)

    def complete(self, group: int) -> StagedEntries | None:
        """The last chunk has come: return what the message carries; the replica decides next."""
        incoming = self._incoming.pop(group, None)
        if incoming is None or incoming.staging is None:
            return None
        if self._log_of(group) != incoming.staging.uid:
            # The group was closed meanwhile, and has another log if it was opened again.
            self._wal.give_up(incoming.staging)
            return None
        live = StagedEntries(incoming.staging)
        # It cannot be installed once nothing refers to it any more.
        weakref.finalize(live, self._wal.give_up, incoming.staging)
        return live

    def drop(self, group: int) -> None:
        """A group's snapshot will not be completed."""
        incoming = self._incoming.pop(group, None)
        if incoming is not None and incoming.staging is not None:
            self._wal.give_up(incoming.staging)

    def node_lost(self, node: NodeId) -> None:
        """A member's stream began or ended: what it had not sent completely is over."""
        self._throttled.discard(node)
        for group, incoming in list(self._incoming.items()):
            if incoming.node == node:
                self.drop(group)

    def sweep(self) -> None:
        """Every few seconds: forget what comes for groups that are here no more."""
        for group in list(self._incoming):
            if self._log_of(group) is None:
                self.drop(group)


def _no_streams(node: NodeId, is_throttled: bool) -> None:
    """No member can be sending yet."""
