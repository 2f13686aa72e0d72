"""A leader that lacks what is known to be committed: nothing is replaced, and the member stops.

In Raft's own world it cannot be; it takes disks that have lost what they had synced.
"""

from __future__ import annotations

import pytest

from brokerd.raft.actions import Contradicted
from brokerd.raft.inputs import PeerUnreachable, Received, TransferLeadership
from brokerd.raft.log import RaftLog
from brokerd.raft.messages import (
    Configuration,
    Contradiction,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
    TermStarts,
)
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import Cluster, elected, hand_over

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def confirmed(count: int = 5, **settings: int) -> Cluster:
    """Return a group in which a and b hold commands that c lacks, and a knows them committed."""
    cluster = elected("abc", **settings)
    cluster.crash("c")
    for number in range(count):
        cluster.propose("a", f"m{number}")
        cluster.stabilize("a", "b")
    cluster.rest()
    cluster.crash("a")
    cluster.crash("b")
    return cluster


def successors(cluster: Cluster, *commands: str, kept: int) -> None:
    """Let b, whose disk holds so many entries only, and c go on without a."""
    cluster.roll_back("b", kept)
    cluster.start("b")
    cluster.start("c")
    cluster.elect("b", "b", "c")
    for command in commands:
        cluster.propose("b", command)
        cluster.stabilize("b", "c")


def meet(cluster: Cluster) -> list[Contradiction]:
    """Let a start last; return what it says."""
    said: list[Contradiction] = []
    cluster.watch = lambda _, action: (
        said.append(action.contradiction) if isinstance(action, Contradicted) else None
    )
    cluster.start("a")
    for _ in range(4):
        cluster.tick("b", 2)
        cluster.stabilize()
    return said


def texts(cluster: Cluster, name: str) -> list[str]:
    """Return the commands on a member's disk."""
    log = cluster.disks[NodeId(name)].log
    return [entry.data[8:].decode() for entry in log if entry.kind is EntryKind.COMMAND]


@pytest.mark.parametrize("later", [0, 1, 4, 9])
def test_what_is_committed_stays_whatever_length_the_leaders_log_has(later: int) -> None:
    """Without the check the entries were passed over in silence, or the replica broke."""
    cluster = confirmed(5)
    successors(cluster, *[f"x{n}" for n in range(later)], kept=3)
    before = cluster.disks[A].log
    said = meet(cluster)
    assert [(found.first, found.term, found.committed, found.last) for found in said] == [
        (4, 1, 6, 6)
    ]
    assert (said[0].leader, said[0].leader_term) == (B, 2)
    assert cluster.disks[A].log == before
    assert cluster.applied("a") == [f"m{n}" for n in range(5)]
    assert cluster.replicas[A].contradiction == said[0]


def test_a_log_that_only_lacks_what_is_committed_nowhere_is_cut_as_ever() -> None:
    cluster = elected()
    cluster.propose("a", "lost")
    cluster.drop()
    cluster.sync("a")
    for name in "abc":
        cluster.crash(name)
    successors(cluster, kept=9)
    assert meet(cluster) == []
    assert texts(cluster, "a") == []


def test_a_stopped_member_neither_votes_nor_stands_and_follows_the_news() -> None:
    cluster = confirmed()
    successors(cluster, kept=3)
    assert len(meet(cluster)) == 1
    cluster.feed("a", Received(Message(MessageKind.VOTE, C, A, 9, 99, 9)))
    cluster.feed("a", Received(Message(MessageKind.PRE_VOTE, C, A, 9, 99, 9)))
    cluster.feed("a", Received(Message(MessageKind.TIMEOUT_NOW, B, A, 9)))
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT, B, A, 1)))
    cluster.feed("a", PeerUnreachable(B))
    cluster.feed("a", TransferLeadership(A))
    cluster.tick("a", 50)
    assert cluster.wire == []
    assert not cluster.replicas[A].is_leader
    cluster.feed("a", Received(Message(MessageKind.APPEND, C, A, 9, 2, 1)))
    assert (cluster.replicas[A].leader, cluster.replicas[A].term) == (C, 9)
    cluster.sync("a")
    assert len(cluster.disks[A].log) == 6


def test_it_is_found_again_after_a_restart_since_the_commit_index_is_on_disk() -> None:
    cluster = confirmed()
    successors(cluster, kept=3)
    said = meet(cluster)
    cluster.crash("a")
    again = meet(cluster)
    assert [(found.first, found.last) for found in again] == [(said[0].first, said[0].last)]


@pytest.mark.parametrize(("kept", "first"), [(3, 4), (1, 2), (5, 6)])
def test_a_snapshot_of_another_history_replaces_nothing(kept: int, first: int) -> None:
    """What the leader has compacted away shows in the beginnings of its terms."""
    cluster = confirmed(5, snapshot_entries=4)
    cluster.disks[B].saved = None
    cluster.disks[B].log = log_of((1, 6))
    successors(cluster, *[f"x{n}" for n in range(12)], kept=kept)
    assert cluster.replicas[B].snapshot_index > 6
    said = meet(cluster)
    assert [(found.first, found.last) for found in said] == [(first, 6)]
    # Its own snapshot covers what differs: there, too, the beginnings of terms are remembered.
    assert cluster.replicas[A].snapshot_index >= 4
    assert cluster.applied("a") == [f"m{n}" for n in range(5)]


def log_of(*runs: tuple[int, int]) -> list[Entry]:
    """Return entries: (term, how many)."""
    entries: list[Entry] = []
    for term, count in runs:
        for _ in range(count):
            number = len(entries) + 1
            data = bytes(8) + b"m%d" % number
            entries.append(Entry(number, term, EntryKind.COMMAND, data))
    return entries


def raft_log(*runs: tuple[int, int], commit: int, snapshot: Snapshot | None = None) -> RaftLog:
    disk = FakeDisk()
    disk.log = log_of(*runs)
    if snapshot is not None:
        disk.saved, disk.log = snapshot, disk.log[snapshot.index :]
    return RaftLog(disk, commit)


ME = Configuration((A,))


def test_terms_of_a_log_begin_where_they_begin() -> None:
    log = raft_log((1, 3), (4, 1), (5, 6), commit=10)
    assert log.terms_to(10, 64) == ((1, 1), (4, 4), (5, 5))
    assert log.terms_to(4, 64) == ((1, 1), (4, 4))
    assert log.terms_to(10, 2) == ((4, 4), (5, 5))
    assert log.terms_to(0, 64) == ()
    log.append([Entry(11, 7, EntryKind.NOOP, b"")])
    assert log.terms_to(11, 64)[-1] == (11, 7)


def test_terms_below_a_snapshot_are_remembered_with_it() -> None:
    log = raft_log(
        (1, 3), (4, 5), commit=8, snapshot=Snapshot(5, 4, ME, b"", terms=((1, 1), (4, 4)))
    )
    log.terms = ((1, 1), (4, 4))
    assert log.terms_to(8, 64) == ((1, 1), (4, 4))
    # Of the release before: what its snapshot covers is not known.
    log.terms = ()
    assert log.terms_to(8, 64) == ((5, 4),)
    assert (log.known_term(4), log.known_term(5), log.known_term(9)) == (None, 4, None)
    assert log.first_difference(((1, 1), (4, 9)), 8) == 1
    assert log.first_difference(((1, 1), (4, 4)), 8) is None


@pytest.mark.parametrize(
    ("terms", "first"),
    [
        (((1, 1), (4, 4), (5, 5)), None),
        (((1, 1), (4, 4), (5, 5), (30, 9)), None),
        (((1, 1), (4, 4), (7, 9)), 5),
        (((1, 1), (4, 4), (5, 5), (7, 9)), 7),
        (((1, 1), (4, 9)), 4),
        (((1, 2),), 1),
        ((), None),
        # What reaches back no further than beyond the commit index says nothing.
        (((9, 9),), None),
        # Known from within the part that differs only: it may have begun before.
        (((6, 9),), 1),
    ],
)
def test_another_logs_terms_show_where_it_differs(terms: TermStarts, first: int | None) -> None:
    log = raft_log((1, 3), (4, 1), (5, 6), commit=8)
    assert log.first_difference(terms, 40) == first


@pytest.mark.parametrize(("end", "first"), [(4, None), (5, 5), (6, 5)])
def test_terms_say_nothing_about_what_is_behind_their_snapshot(end: int, first: int | None) -> None:
    log = raft_log((1, 3), (4, 1), (5, 6), commit=8)
    assert log.first_difference(((1, 1), (4, 4)), end) == first


def test_a_snapshot_that_comes_late_contradicts_nothing() -> None:
    # Saved in the term before: what is committed here behind it is of the leader's own term.
    cluster = elected()
    hand_over(cluster, "a", "b")
    cluster.rest()
    replica = cluster.replicas[C]
    term = replica.term
    index = replica.commit_index - 1
    voters = Configuration((A, B, C))
    snapshot = Snapshot(index, term - 1, voters, b"[]", terms=((1, term - 1),))
    message = Message(MessageKind.SNAPSHOT, B, C, term, index, term - 1, snapshot=snapshot)
    cluster.feed("c", Received(message))
    assert replica.contradiction is None


def snapshot_message(index: int, term: int, terms: TermStarts = ()) -> Received:
    voters = Configuration((A, B, C))
    snapshot = Snapshot(index, term, voters, b"[]", terms=terms)
    return Received(Message(MessageKind.SNAPSHOT, B, A, 3, index, term, snapshot=snapshot))


def test_a_snapshot_that_ends_within_what_is_committed_is_compared_by_its_term() -> None:
    cluster = confirmed(5)
    cluster.start("a")
    cluster.feed("a", snapshot_message(4, 2))
    found = cluster.replicas[A].contradiction
    assert found is not None
    assert (found.first, found.committed) == (1, 6)


def test_an_older_snapshot_is_answered_by_what_it_covers_and_no_more() -> None:
    """The answer says what agrees; of what lies behind the snapshot nothing was compared."""
    cluster = confirmed(5)
    cluster.start("a")
    cluster.feed("a", snapshot_message(4, 1, ((1, 1),)))
    assert cluster.replicas[A].contradiction is None
    cluster.sync("a")
    (answer,) = [message for message in cluster.wire if message.kind is MessageKind.SNAPSHOT_REPLY]
    assert answer.index == 4


def test_entries_below_the_own_snapshot_cannot_be_compared() -> None:
    cluster = elected(snapshot_entries=4)
    for number in range(9):
        cluster.propose("a", f"m{number}")
        cluster.stabilize()
    base = cluster.replicas[B].snapshot_index
    assert base > 4
    older = [Entry(index, 1, EntryKind.COMMAND, bytes(9)) for index in (2, 3)]
    for entries in (older, []):
        cluster.feed("b", Received(Message(MessageKind.APPEND, A, B, 1, 1, 1, entries=entries)))
        cluster.sync("b")
        answer = cluster.wire.pop()
        assert (answer.reject, answer.index) == (False, entries[-1].index if entries else 1)
    assert cluster.replicas[B].contradiction is None


def test_the_commit_index_goes_along_with_what_is_written_anyway() -> None:
    """A busy group spends no sync on it, one at rest a single one."""
    cluster = elected()
    cluster.propose("a", "x")
    cluster.stabilize()
    cluster.propose("a", "y")
    cluster.sync("a")
    assert cluster.disks[A].hard_state.commit == 2
    cluster.stabilize()
    cluster.tick("a")
    cluster.sync("a")
    assert cluster.disks[A].hard_state.commit == 3
    cluster.tick("a", 5)
    assert not cluster.disks[A].waiting


def test_a_tick_while_a_write_is_under_way_writes_nothing_more() -> None:
    cluster = elected()
    cluster.propose("a", "x")
    cluster.deliver("b")
    cluster.sync("b")
    cluster.deliver("a")
    before = len(cluster.disks[A].waiting)
    cluster.tick("a")
    assert len(cluster.disks[A].waiting) == before


def test_terms_that_do_not_end_with_the_snapshots_own_are_not_believed() -> None:
    cluster = confirmed()
    cluster.start("a")
    before = cluster.replicas[A].overview()["ignored_messages"]
    cluster.feed("a", snapshot_message(9, 3, ((1, 1), (7, 2))))
    assert cluster.replicas[A].overview()["ignored_messages"] == int(str(before)) + 1
