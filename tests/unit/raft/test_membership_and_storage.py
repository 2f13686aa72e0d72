"""Changes of membership, and storages that hold less, more or other things than they should."""

from __future__ import annotations

import pytest

from brokerd.raft.config import RaftConfig
from brokerd.raft.errors import BrokenLogError
from brokerd.raft.inputs import Received, SnapshotSaved, TransferLeadership
from brokerd.raft.log import RaftLog
from brokerd.raft.membership import MEMBERS_MAX, encode_configuration, fault_of_configuration
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
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


# ---- membership ---------------------------------------------------------------------------------


def test_membership_changes_are_refused_with_the_reason() -> None:
    """Raft thesis §4.1"""
    cluster = Cluster()
    assert cluster.change("b", "ab") in cluster.replies
    cluster.feed("a", TransferLeadership(A))
    for _ in range(4):
        cluster.deliver()
        cluster.sync("a")
        cluster.sync("b")
        if cluster.replicas[A].is_leader:
            break
    early = cluster.change("a", "ab")
    cluster.stabilize()
    cluster.feed("a", TransferLeadership(B))
    late = cluster.change("a", "ab")
    assert cluster.replies[1].reply == b"not the leader"
    assert cluster.replies[early].reply == b"the leader has not committed in its term yet"
    assert cluster.replies[late].reply == b"leadership is being transferred"


def test_leader_says_when_its_members_may_be_changed() -> None:
    """Raft thesis §4.1"""
    cluster = elected()
    leader, follower = cluster.replicas[A], cluster.replicas[B]
    assert leader.may_change_members
    assert leader.configuration_index == 0
    assert not follower.may_change_members
    cluster.change("a", "ab")
    assert not leader.may_change_members
    assert leader.configuration_index == leader.last_index
    cluster.stabilize()
    assert leader.may_change_members
    cluster.feed("a", TransferLeadership(B))
    assert not leader.may_change_members


def test_a_removed_member_is_sent_nothing_more() -> None:
    cluster = elected()
    token = cluster.change("a", "ab")
    cluster.stabilize()
    assert cluster.replies[token].accepted
    cluster.propose("a", "x")
    assert kinds(cluster, "c") == []
    assert cluster.replicas[A].match_of(C) is None
    assert cluster.replicas[B].match_of(A) is None
    assert cluster.replicas[A].match_of(A) == 3 - 1


def test_a_leader_that_removes_itself_hands_over_once_that_is_committed() -> None:
    """Raft thesis §4.2.2"""
    cluster = elected()
    token = cluster.change("a", "bc")
    cluster.stabilize()
    assert cluster.replies[token].accepted
    assert not cluster.replicas[A].is_leader
    assert cluster.replicas[B].is_leader or cluster.replicas[C].is_leader


def test_a_configuration_that_is_truncated_gives_way_to_the_one_before_it() -> None:
    """Raft thesis §4.1: the newest configuration in the log is in force, committed or not."""
    cluster = elected()
    cluster.change("a", "ab")
    cluster.drop()
    cluster.sync("a")
    assert cluster.replicas[A].configuration.voters == (A, B)
    cluster.restart("a")
    assert cluster.replicas[A].configuration.voters == (A, B)
    cluster.tick("c", 12)
    cluster.elect("b", "b", "c")
    cluster.tick("b", 2)
    cluster.stabilize()
    assert cluster.replicas[A].configuration.voters == (A, B, C)


def test_after_a_restart_the_base_is_the_newest_committed_configuration() -> None:
    disk = FakeDisk()
    one, two = Configuration((A, B)), Configuration((A, B, C))
    disk.log = [
        Entry(1, 1, EntryKind.CONFIG, encode_configuration(one)),
        Entry(2, 1, EntryKind.CONFIG, encode_configuration(two)),
    ]
    disk.hard_state = HardState(1, None, 1)
    cluster = Cluster()
    cluster.crash("a")
    cluster.disks[A] = disk
    cluster.start("a")
    assert cluster.replicas[A].configuration == two
    replacing = Message(MessageKind.APPEND, B, A, 2, 1, 1, 1, entries=[command(2, 2)])
    cluster.feed("a", Received(replacing))
    assert cluster.replicas[A].configuration == one


def test_after_a_restart_the_base_may_stand_in_the_snapshot() -> None:
    disk = FakeDisk()
    disk.saved = Snapshot(4, 1, Configuration((A, B)), b"[]")
    disk.log = [Entry(5, 1, EntryKind.CONFIG, encode_configuration(ABC))]
    disk.hard_state = HardState(1, None, 4)
    cluster = Cluster(joining="j")
    cluster.crash("j")
    cluster.disks[NodeId("j")] = disk
    cluster.start("j")
    replica = cluster.replicas[NodeId("j")]
    assert replica.configuration == ABC
    assert (replica.snapshot_index, replica.pending_count) == (4, 0)
    replacing = Message(MessageKind.APPEND, B, NodeId("j"), 2, 4, 1, 4, entries=[command(5, 2)])
    cluster.feed("j", Received(replacing))
    assert replica.configuration.voters == (A, B)


def test_a_configuration_names_a_bounded_number_of_members() -> None:
    many = tuple(NodeId(f"n{i:03}") for i in range(MEMBERS_MAX + 1))
    assert fault_of_configuration(Configuration(many)) == (
        f"a group has at most {MEMBERS_MAX} members"
    )


# ---- what the storage must never say -------------------------------------------------------------


def test_a_live_entry_newer_than_its_snapshots_term_is_refused() -> None:
    value = Snapshot(9, 1, Configuration((A,)), b"[]", [command(3, 2)])
    message = Message(MessageKind.SNAPSHOT, A, B, 2, 9, 1, snapshot=value)
    assert fault_of_message(message, RaftConfig()) == (
        "a live entry of a snapshot has an impossible term"
    )


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


class SparseDisk(FakeDisk):
    """Knows the terms of live entries below its snapshot, as the real log does."""

    def term(self, index: int) -> int | None:
        """Return the term of a synced or live entry."""
        return self.live[index].term if index in self.live else super().term(index)


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
