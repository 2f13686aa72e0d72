"""Storages that hold less, more or other things than they should: what a replica does then."""

from __future__ import annotations

import pytest

from brokerd.raft.config import RaftConfig
from brokerd.raft.errors import BrokenLogError
from brokerd.raft.inputs import Received, SnapshotSaved
from brokerd.raft.log import RaftLog
from brokerd.raft.messages import (
    Configuration,
    Entry,
    HardState,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from brokerd.raft.validation import fault_of_message
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import Cluster, command, elected, kinds

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
ABC = Configuration((A, B, C))


class LyingDisk(FakeDisk):
    """Answers as the test says."""

    last: int | None = None
    known_terms = True
    gives_entries = True

    def last_index(self) -> int:
        """Return what the test has set."""
        return super().last_index() if self.last is None else self.last

    def term(self, index: int) -> int | None:
        """Forget all terms, if the test says so."""
        return super().term(index) if self.known_terms else None

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Forget all entries, if the test says so."""
        return super().entries(low, high, bytes_max) if self.gives_entries else []


class SparseDisk(FakeDisk):
    """Knows the terms of live entries below its snapshot, as the real log does."""

    def term(self, index: int) -> int | None:
        """Return the term of a synced or live entry."""
        return self.live[index].term if index in self.live else super().term(index)


def test_a_live_entry_newer_than_its_snapshots_term_is_refused() -> None:
    value = Snapshot(9, 1, Configuration((A,)), b"[]", [command(3, 2)])
    message = Message(MessageKind.SNAPSHOT, A, B, 2, 9, 1, snapshot=value)
    assert fault_of_message(message, RaftConfig()) == (
        "a live entry of a snapshot has an impossible term"
    )


def test_a_storage_that_contradicts_itself_stops_the_replica() -> None:
    disk = LyingDisk()
    disk.saved = Snapshot(4, 1, ABC, b"[]")
    disk.last = 2
    with pytest.raises(BrokenLogError, match="ends before its snapshot"):
        RaftLog(disk, 0)
    disk = LyingDisk()
    disk.log = [command(1, 1)]
    disk.known_terms = False
    with pytest.raises(BrokenLogError, match="no term where it has an entry"):
        RaftLog(disk, 0)
    disk.known_terms = True
    log = RaftLog(disk, 0)
    disk.gives_entries = False
    with pytest.raises(BrokenLogError, match="lacks an entry"):
        log.entries(1, 2, 1000, 10)
    with pytest.raises(BrokenLogError, match="no snapshot is being installed"):
        log.installed()


def test_what_the_snapshot_replaced_has_neither_terms_nor_entries() -> None:
    disk = FakeDisk()
    disk.log = [command(1, 1), command(2, 1)]
    log = RaftLog(disk, 0)
    log.install(Snapshot(9, 2, ABC, b"[]"))
    assert (log.first, log.term(2), log.term(9), log.term(-1), log.term(0)) == (
        10,
        None,
        2,
        None,
        None,
    )
    assert log.entries(1, 3, 1000, 10) == []


def test_a_second_report_of_the_same_write_changes_nothing() -> None:
    log = RaftLog(FakeDisk(), 0)
    log.append([command(1, 1)])
    log.handed_out()
    log.persisted_to(1)
    log.persisted_to(1)
    assert (log.stable, log.find_conflict([command(1, 1)])) == (1, 1)


def test_a_slower_snapshot_does_not_hide_a_newer_one() -> None:
    cluster = elected()
    cluster.feed("a", SnapshotSaved(7))
    cluster.feed("a", SnapshotSaved(5))
    assert cluster.replicas[A].snapshot_index == 7


def test_live_entries_below_the_snapshot_are_no_way_to_replicate() -> None:
    disk = SparseDisk()
    disk.saved = Snapshot(4, 1, ABC, b"[]")
    disk.live = {2: command(2, 1)}
    disk.hard_state = HardState(1, None, 4)
    cluster = Cluster()
    for name in "ab":
        cluster.crash(name)
    cluster.disks[A] = disk
    cluster.start("a")
    cluster.tick("c", 12)
    cluster.drop()
    cluster.elect("a", "a", "c")
    term = cluster.replicas[A].term
    cluster.propose("a", "x")
    cluster.stabilize("a", "c")
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, B, A, term)))
    cluster.drop()
    refusal = Message(MessageKind.APPEND_REPLY, B, A, term, 4, 1, reject=True, hint=2)
    cluster.feed("a", Received(refusal))
    assert kinds(cluster, "b") == [MessageKind.SNAPSHOT]
