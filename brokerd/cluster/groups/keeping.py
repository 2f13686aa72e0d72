"""Replicas whose log a leader contradicts: what they hold is put aside, and they wait for a word.

A leader that lacks what is known here to be committed was elected by members whose disks have lost
it (raft/following.py).  The replica has stopped; its log from the first entry that differs goes to
a file (storage/aside.py), on the writer thread and in pieces, behind all writes that were under
way.  The state outlives a restart: the files are found again.  What becomes of them people say
(server/members/kept_aside.py).  Built by host.py.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.write_queue import WriteQueue
from brokerd.raft.messages import CATALOG_GROUP, Contradiction, Entry, NodeId
from brokerd.storage.aside import AsideFiles, AsideWriter, Description, Kept
from brokerd.storage.errors import AsideFailed, CorruptLog, DamagedEntry
from brokerd.storage.wal import WriteAheadLog

logger = logging.getLogger(__name__)

#: So much of a log is read and written in one piece: other groups have their turn in between.
PIECE_BYTES = 4 * 1024 * 1024

#: Phases of a file whose replica may begin anew.
RELEASED = frozenset({"released", "begun"})

#: What people call a group: its kind, vhost, name and members.
Names: TypeAlias = tuple[str, str, str, list[str]]


def _no_names(uid: int) -> Names:
    return ("catalog" if uid == CATALOG_GROUP else "queue", "", f"{uid:x}", [])


def _no_messages(_uid: int, _entry: Entry) -> int:
    return 0


class Keeper:
    """State: `kept`, the files by their id; groups whose file is being written."""

    def __init__(
        self,
        node: NodeId,
        wal: WriteAheadLog,
        queue: WriteQueue,
        files: AsideFiles | None,
        clock_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._wal = wal
        self._queue = queue
        self._clock_ms = clock_ms
        self.files = files
        self._names: Callable[[int], Names] = _no_names
        #: Returns how many messages an entry of a group brings.
        self.messages_of: Callable[[int, Entry], int] = _no_messages
        self.kept: dict[str, Kept] = {kept.id: kept for kept in files.load()} if files else {}
        for path in files.unreadable if files else []:
            logger.error("%s is damaged from its beginning, and left as it is", path)
        self._writing: set[int] = set()
        #: Why what a log holds could not be put aside yet, by the log's name of the group.
        self.faults: dict[int, str] = {}

    def serve(
        self, names: Callable[[int], Names], messages_of: Callable[[int, Entry], int]
    ) -> None:
        """From now on ask these how a group is called, and how many messages an entry brings."""
        self._names = names
        self.messages_of = messages_of

    def of_log(self, log_uid: int) -> Kept | None:
        """Return the file of a replica that was contradicted."""
        return next(
            (
                kept
                for kept in self.kept.values()
                if kept.description.log_uid == log_uid and kept.description.kind != "orphan"
            ),
            None,
        )

    def contradiction_of(self, log_uid: int) -> Contradiction | None:
        """Return what a replica that is opened is to know: it has stopped before its restart."""
        if self._wal.is_removed(log_uid):
            # A catalog that has lost a deletion brings the queue back; nothing written would count.
            return Contradiction(1, 0, 0, 0, self._node, 0)
        kept = self.of_log(log_uid)
        if kept is None or kept.progress.phase == "begun":
            return None
        found = kept.description
        leader = NodeId(found.leader)
        return Contradiction(found.first, 0, found.committed, found.last, leader, found.leader_term)

    def opened(self, driver: Driver) -> None:
        """A group was opened: one whose log is contradicted, or has begun anew, does not vote."""
        kept = None if driver.is_volatile else self.of_log(driver.log_uid)
        if not driver.is_volatile and self.is_removed(driver.log_uid):
            driver.learn(replica_health.LogForgotten())
        if kept is None:
            return
        if not driver.is_contradicted:
            driver.learn(replica_health.RegressionSuspected())
        elif kept.progress.phase in RELEASED:
            driver.learn(replica_health.Released())
        else:
            driver.learn(replica_health.Contradicted())

    def is_removed(self, log_uid: int) -> bool:
        """Whether the log has forgotten this group for good: there is nothing to keep."""
        return self._wal.is_removed(log_uid)

    def contradicted(self, driver: Driver, found: Contradiction) -> None:
        """A replica has stopped just now."""
        driver.learn(replica_health.Contradicted())
        kind, vhost, name, _ = self._names(driver.uid)
        logger.error(
            "%s '%s' in vhost '%s': the leader %s (term %d) lacks entries from %d on, which are "
            "known here to be committed (up to %d); nothing is replaced, they are kept aside "
            "(brokerctl list_kept_aside) group=%x",
            kind,
            name,
            vhost,
            found.leader,
            found.leader_term,
            found.first,
            found.committed,
            driver.uid,
        )
        self._begin(driver, kind, found)

    def look_again(self, drivers: Iterable[Driver]) -> None:
        """Try again what a full disk prevented, of those without a vote; called now and then."""
        for driver in drivers:
            found = driver.replica.contradiction
            if found is None or self.is_removed(driver.log_uid):
                continue
            if self.of_log(driver.log_uid) is None:
                self._begin(driver, self._names(driver.uid)[0], found)

    def keep_orphan(self, driver: Driver) -> None:
        """Put all aside that a queue holds which the cluster's catalog does not know any more."""
        replica = driver.replica
        last = replica.last_index
        self._begin(driver, "orphan", Contradiction(1, 0, last, last, self._node, replica.term))

    def is_writing(self, log_uid: int) -> bool:
        """Whether a file is on its way."""
        return log_uid in self._writing

    def _begin(self, driver: Driver, kind: str, found: Contradiction) -> None:
        if self.files is None or driver.log_uid in self._writing:
            return
        _, vhost, name, members = self._names(driver.uid)
        description = Description(
            uid=driver.uid,
            log_uid=driver.log_uid,
            kind=kind,
            vhost=vhost,
            name=name,
            member=self._node,
            members=members,
            first=found.first,
            last=found.last,
            committed=found.committed,
            leader=found.leader,
            leader_term=found.leader_term,
            made_ms=self._clock_ms(),
        )
        self._writing.add(driver.log_uid)
        self._queue.add(_KeepStep(self, self._queue, self.files, driver, description))

    def written(self, kept: Kept, remarks: Sequence[str]) -> None:
        """A file is whole."""
        log_uid = kept.description.log_uid
        self._writing.discard(log_uid)
        self.faults.pop(log_uid, None)
        kept.progress.remarks += remarks
        self.kept[kept.id] = kept
        logger.error(
            "%s '%s' in vhost '%s': %d entries with %d messages are kept aside as %s",
            kept.description.kind,
            kept.description.name,
            kept.description.vhost,
            kept.entries,
            kept.messages,
            kept.id,
        )

    def failed(self, log_uid: int, fault: str) -> None:
        """A file could not be written: the log still has everything."""
        self._writing.discard(log_uid)
        if self.faults.get(log_uid) != fault:
            self.faults[log_uid] = fault
            logger.error("cannot put entries aside yet, they stay in the log: %s", fault)


@dataclass(slots=True)
class _KeepStep:
    """One file (write_queue.Step): a piece is read on the event loop, then written, and so on."""

    keeper: Keeper
    queue: WriteQueue
    files: AsideFiles
    driver: Driver
    description: Description
    writer: AsideWriter | None = None
    #: Entries at or below `applied` count only where the machine refers to them.
    applied: int = 0
    live: list[tuple[int, int]] = field(default_factory=list)
    piece: list[tuple[Entry, int, bool]] = field(default_factory=list)
    state: bytes = b""
    #: The index to go on from; 0: not begun, since writes may be under way before this step.
    position: int = 0
    is_last: bool = False
    kept: Kept | None = None
    fault: str = ""
    remarks: list[str] = field(default_factory=list)

    def run(self, wal: WriteAheadLog) -> None:
        """Write a piece; what fails must not end the process, which a failed log does."""
        if not self.position:
            return
        try:
            if self.writer is None:
                self.writer = self.files.begin(self.description)
                if self.state:
                    self.writer.add_state(self.state)
            self.writer.add(self.piece)
            if self.is_last:
                self.kept = self.writer.finish()
        except (OSError, AsideFailed) as error:
            self.fault = str(error)
            if self.writer is not None:
                self.writer.give_up()

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        """Go on with the next piece."""
        if self.fault:
            self.keeper.failed(self.description.log_uid, self.fault)
        elif self.kept is not None:
            self.keeper.written(self.kept, self.remarks)
        else:
            self._read(wal)
            self.queue.add(self)
        return []

    def _read(self, wal: WriteAheadLog) -> None:
        if not self.position:
            self.position = self.description.first
            self.applied = self.driver.replica.applied_index
            self.live = list(self.driver.machine.live_indexes())
            if self.driver.uid == CATALOG_GROUP:
                self.state = self.driver.machine.snapshot()
        log = wal.log(self.driver.log_uid)
        self.piece = []
        size = 0
        while size < PIECE_BYTES:
            indexes = log.table.indexes
            at = bisect_left(indexes, self.position)
            if at == len(indexes):
                self.is_last = True
                return
            index = indexes[at]
            try:
                found = log.load_live(index, log.last_index())
            except (DamagedEntry, CorruptLog) as error:
                self.remarks.append(f"entry {index} is lost: {error}")
                self.position = index + 1
                continue
            for entry in found:
                is_live = self._is_live(entry.index)
                count = self.keeper.messages_of(self.driver.uid, entry) if is_live else 0
                self.piece.append((entry, count, is_live and count > 0))
                size += len(entry.data)
            self.position = found[-1].index + 1

    def _is_live(self, index: int) -> bool:
        if index > self.applied:
            return True
        at = bisect_right(self.live, index, key=lambda pair: pair[0]) - 1
        return at >= 0 and index < self.live[at][1]
