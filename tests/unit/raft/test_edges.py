"""The last index, the first tick, the exact byte: what a mutation run found nobody looking at."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from brokerd.raft.config import RaftConfig
from brokerd.raft.errors import BrokenLogError
from brokerd.raft.inputs import NodeGone, PeerUnreachable, Received, TransferLeadership
from brokerd.raft.log import RaftLog
from brokerd.raft.membership import ConfigurationHistory
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    NodeId,
)
from brokerd.raft.node import RaftNode
from brokerd.raft.quorum import VoteResult, vote_result
from brokerd.raft.replica import REFUSED_TOO_LARGE, SaveSnapshot
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import Cluster, command, elected, hand_over, kinds

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")
ABC = Configuration((A, B, C))


def log_of(*terms: int, commit: int = 0) -> RaftLog:
    """Return a log of commands with these terms, all of it in memory."""
    log = RaftLog(FakeDisk(), commit=0)
    log.append([command(index, term) for index, term in enumerate(terms, 1)])
    log.committed = commit
    return log


def stored_log(*terms: int) -> RaftLog:
    """Return a log of commands with these terms, all of it on disk."""
    disk = FakeDisk()
    disk.log = [command(index, term) for index, term in enumerate(terms, 1)]
    return RaftLog(disk, commit=0)


@dataclass(slots=True)
class Dice:
    """A generator that remembers what it was asked for, and gives the least."""

    asked: list[tuple[int, int]] = field(default_factory=list)

    def randrange(self, start: int, stop: int) -> int:
        """Return `start`."""
        self.asked.append((start, stop))
        return start


def one_node(disk: FakeDisk | None = None, voters: Configuration = ABC) -> RaftNode:
    """Return member `a` of a group, without a replica around it."""
    return RaftNode(A, voters, disk or FakeDisk(), RaftConfig(), Dice())


# ---- elections ----------------------------------------------------------------------------------


def test_one_refusal_of_three_decides_nothing() -> None:
    """Raft thesis §3.4"""
    assert vote_result([A, B, C], {A: True, B: False}) is VoteResult.PENDING
    assert vote_result([A, B, C], {A: True, B: False, C: False}) is VoteResult.LOST
    assert vote_result([A, B], {B: False}) is VoteResult.LOST


def test_timeouts_are_drawn_between_the_configured_bounds_inclusive() -> None:
    """Raft thesis §3.4; after the end of the leader's process between 1 and its own bound."""
    dice = Dice()
    config = RaftConfig(election_ticks_min=7, election_ticks_max=9, heartbeat_ticks=2)
    node = RaftNode(A, ABC, FakeDisk(), config, dice)
    assert dice.asked == [(7, 10)]
    node.become_follower(1, B)
    node.node_gone(B)
    assert dice.asked[-1] == (1, config.succession_ticks_max + 1)


def test_every_message_that_is_not_understood_is_counted() -> None:
    cluster = elected()
    for count in (1, 2, 3):
        cluster.feed("a", Received(Message(MessageKind.HEARTBEAT, B, A, 0)))
        assert cluster.replicas[A].overview()["ignored_messages"] == count


def test_a_candidate_that_fails_waits_a_whole_timeout_again() -> None:
    node = one_node()
    for _ in range(node.config.election_ticks_min):
        node.tick()
    assert node.election_elapsed == 0


def test_the_end_of_another_process_is_no_reason_to_stand() -> None:
    cluster = elected()
    cluster.feed("b", NodeGone(C))
    assert cluster.replicas[B].leader == A


# ---- what follows and what leads ----------------------------------------------------------------


def test_entries_that_overlap_what_is_committed_are_taken_behind_it() -> None:
    """Raft thesis §3.5: a leader that knows little of us sends from further back."""
    cluster = elected()
    entries = [Entry(1, 1, EntryKind.NOOP, b""), command(2, 1), command(3, 1)]
    message = Message(MessageKind.APPEND, A, B, 1, 0, 0, commit=1, entries=entries)
    cluster.feed("b", Received(message))
    cluster.sync("b")
    assert cluster.replicas[B].last_index == 3
    assert [(m.kind, m.index) for m in cluster.wire] == [(MessageKind.APPEND_REPLY, 3)]


def test_heartbeats_say_the_term_and_what_may_be_committed_and_nothing_else() -> None:
    cluster = elected()
    cluster.tick("a", 2)
    assert cluster.wire == [
        Message(MessageKind.HEARTBEAT, A, B, 1, commit=1),
        Message(MessageKind.HEARTBEAT, A, C, 1, commit=1),
    ]


def test_only_what_is_committed_is_applied_of_several_entries() -> None:
    cluster = elected()
    cluster.propose("a", "one")
    cluster.propose("a", "two")
    cluster.propose("a", "three")
    cluster.sync("a")
    cluster.drop()
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, B, A, 1, 3)))
    assert cluster.applied("a") == ["one", "two"]
    assert cluster.replicas[A].applied_index == 3


def test_the_heir_is_told_once() -> None:
    """Raft thesis §3.10: two orders would be two elections."""
    cluster = elected()
    leader = cluster.replicas[A]._node
    assert leader.transfer_leadership(B)
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, B, A, 1, 1)))
    assert kinds(cluster, "b").count(MessageKind.TIMEOUT_NOW) == 1


def test_a_leader_that_is_being_removed_is_no_part_of_its_quorum() -> None:
    """Raft thesis §4.2.2 and §6.2: b alone is no majority of b and c."""
    cluster = elected()
    cluster.change("a", "bc")
    cluster.drop()
    cluster.tick("a", 10)
    cluster.drop()
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, B, A, 1)))
    cluster.tick("a", 10)
    assert not cluster.replicas[A].is_leader


def test_a_newcomer_costs_the_leader_no_quorum_before_it_had_a_chance() -> None:
    """Of a, b and d: b is away, d has just been added."""
    cluster = Cluster("ab", joining="d")
    cluster.elect("a")
    cluster.stabilize()
    cluster.change("a", "abd")
    progress = cluster.replicas[A]._node.replication.peers
    assert progress[D].is_active
    progress[B].is_active = False
    cluster.tick("a", 10)
    assert cluster.replicas[A].is_leader


def test_a_member_that_refuses_a_snapshot_lives() -> None:
    cluster = elected()
    progress = cluster.replicas[A]._node.replication.peers[B]
    progress.is_active = False
    refusal = Message(MessageKind.SNAPSHOT_REPLY, B, A, 1, 1, reject=True)
    cluster.feed("a", Received(refusal))
    assert progress.is_active


def test_a_silent_member_is_probed_but_no_snapshot_is_read_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = elected(snapshot_entries=2)
    for text in ("one", "two", "three"):
        cluster.propose("a", text)
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    reads: list[int] = []
    monkeypatch.setattr(FakeDisk, "snapshot", lambda disk: reads.append(1))
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, C, A, 1)))
    assert len(reads) == 1
    # The disk had none: not again before the next answer.
    cluster.propose("a", "four")
    assert len(reads) == 1


# ---- the log ------------------------------------------------------------------------------------


def test_entries_end_where_they_are_asked_to_end() -> None:
    log = log_of(1, 1, 1, 1, 1)
    assert [e.index for e in log.entries(1, 3, 1 << 20, 99)] == [1, 2]
    assert [e.index for e in log.entries(2, 5, 1 << 20, 2)] == [2, 3]
    stored = stored_log(1, 1, 1, 1, 1)
    assert [e.index for e in stored.entries(1, 6, 1 << 20, 2)] == [1, 2]
    assert [e.index for e in stored.entries(2, 4, 1 << 20, 99)] == [2, 3]


def test_an_entry_that_fits_exactly_is_sent_along() -> None:
    log = log_of(1, 1, 1)
    assert len(log.entries(1, 4, 18, 99)) == 2
    assert len(log.entries(1, 4, 17, 99)) == 1


def test_the_term_before_what_is_in_memory_is_kept() -> None:
    log = log_of(1, 2, 3, commit=2)
    log.handed_out()
    log.persisted_to(3)
    log.applied_to(2)
    assert (log.offset, log.term(2)) == (3, 2)


def test_errors_of_the_log_name_the_index() -> None:
    log = log_of(1, 1, commit=1)
    for broken, index in (
        (lambda: log.truncate(1), 1),
        (lambda: log.append([command(5, 1)]), 5),
        (lambda: log.applied_to(2), 2),
    ):
        with pytest.raises(BrokenLogError) as caught:
            broken()
        assert caught.value.index == index
        assert f"(index {index})" in str(caught.value)


def test_a_write_that_was_cut_vouches_for_what_is_left_of_it() -> None:
    """Raft thesis §3.5 with asynchronous writes."""
    node = one_node()
    node.step(Message(MessageKind.HEARTBEAT, B, A, 1))
    entries = [command(index, 1) for index in (1, 2, 3)]
    node.step(Message(MessageKind.APPEND, B, A, 1, entries=entries))
    first = node.ready()
    assert first is not None
    node.step(Message(MessageKind.APPEND, C, A, 2, 2, 1, entries=[command(3, 2)]))
    assert node.ready() is not None
    node.advance_persisted(first.token)
    assert node.log.stable == 2


def test_a_round_of_messages_alone_writes_nothing() -> None:
    node = one_node()
    node.campaign()
    ready = node.ready()
    assert ready is not None
    assert len(ready.messages) == 2
    assert (ready.token, ready.hard_state, ready.entries, ready.snapshot) == (0, None, [], None)


# ---- configurations -----------------------------------------------------------------------------


def test_a_configuration_holds_from_its_own_index_on() -> None:
    history = ConfigurationHistory(ABC)
    history.append(5, Configuration((A, B)))
    assert history.at(4) == ABC
    assert history.at(5) == Configuration((A, B))


def test_all_of_a_long_log_is_searched_for_the_configuration_before() -> None:
    """Page by page; the last page of what is committed holds commands only."""
    cluster = elected(apply_bytes_max=10)
    cluster.change("a", "ab")
    cluster.stabilize()
    for text in ("one", "two", "three"):
        cluster.propose("a", text)
        cluster.stabilize()
    cluster.disks[A].hard_state = HardState(1, A, cluster.replicas[A].commit_index)
    cluster.change("a", "abc")
    cluster.drop()
    cluster.sync("a")
    restarted = cluster.restart("a")
    assert restarted.configuration == ABC
    assert restarted._node.configuration_at(2) == Configuration((A, B))


# ---- the replica --------------------------------------------------------------------------------


def test_a_command_may_be_empty_or_as_large_as_allowed_and_no_larger() -> None:
    cluster = elected(command_bytes_max=4)
    (empty,) = cluster.propose("a", "")
    (largest,) = cluster.propose("a", "1234")
    (larger,) = cluster.propose("a", "12345")
    cluster.stabilize()
    assert cluster.replies[empty].accepted
    assert cluster.replies[largest].accepted
    assert cluster.replies[larger].reply == REFUSED_TOO_LARGE
    assert not cluster.replies[larger].accepted
    assert cluster.applied("b") == ["", "1234"]


def test_a_new_leaders_machine_learns_its_first_index_and_term() -> None:
    cluster = elected()
    cluster.propose("a", "x")
    cluster.stabilize()
    hand_over(cluster, "a", "b")
    (office,) = cluster.machines[B].offices
    assert (office.index, office.term, office.now_ms) == (3, 2, 5)


def test_one_deadline_after_the_other_is_kept() -> None:
    cluster = elected()
    for now_ms in (10, 20):
        cluster.machines[A].deadline_ms = now_ms
        cluster.tick("a", now_ms=now_ms)
        cluster.stabilize()
    cluster.propose("a", "x")
    cluster.stabilize()
    assert cluster.applied("a") == ["tick", "tick", "x"]


def test_a_deadline_that_was_proposed_in_vain_is_proposed_again_in_the_next_office() -> None:
    cluster = elected()
    cluster.machines[A].deadline_ms = 10
    cluster.tick("a", now_ms=10)
    cluster.drop()
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT, B, A, 2)))
    cluster.drop()
    cluster.feed("a", TransferLeadership(A))
    for _ in range(5):
        if not cluster.replicas[A].is_leader:
            cluster.deliver()
            for name in "abc":
                cluster.sync(name)
    # In office, and nothing is committed yet: the entry of the old term, its own first one.
    assert cluster.replicas[A].is_leader
    assert cluster.replicas[A].commit_index == 1
    cluster.tick("a", now_ms=30)
    assert cluster.replicas[A].last_index == 4
    cluster.stabilize()
    assert cluster.applied("a") == ["tick", "tick"]


def test_a_silent_member_that_needs_a_snapshot_is_left_alone_until_it_answers() -> None:
    cluster = elected(snapshot_entries=2)
    cluster.crash("c")
    for text in ("one", "two", "three"):
        cluster.propose("a", text)
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    progress = cluster.replicas[A]._node.replication.peers[C]
    progress.is_active = progress.probe_sent = False
    cluster.propose("a", "four")
    assert progress.is_paused
    assert kinds(cluster, "c") == []


def test_a_snapshot_is_due_at_the_very_byte() -> None:
    """8 bytes of time stamp and 2 of command: the second command makes it 20."""
    cluster = elected(snapshot_bytes=20)
    actions: list[object] = []
    cluster.watch = lambda node, action: actions.append(action) if node == A else None
    cluster.propose("a", "xx")
    cluster.stabilize()
    assert not any(isinstance(action, SaveSnapshot) for action in actions)
    cluster.propose("a", "yy")
    cluster.stabilize()
    assert [a.snapshot.index for a in actions if isinstance(a, SaveSnapshot)] == [3]


def test_a_large_state_is_not_written_again_before_the_log_has_grown_by_as_much() -> None:
    """hot-path.md, "Scale": what a snapshot costs per command does not grow with depth."""
    cluster = elected(snapshot_entries=1, snapshot_state_bytes=20)
    saved: list[int] = []
    sizes: list[int] = []

    def watch(node: NodeId, action: object) -> None:
        if node == A and isinstance(action, SaveSnapshot):
            saved.append(action.snapshot.index)
            sizes.append(len(action.snapshot.data))

    cluster.watch = watch
    for _ in range(12):
        cluster.propose("a", "xx")
        cluster.stabilize()
    # Of 10 bytes each: all that a state has beyond 20 bytes must have come into the log first.
    assert saved[:2] == [2, 3]
    for before, index, following in zip(sizes, saved, saved[1:], strict=False):
        assert 10 * (following - index) >= before - 20
        assert 10 * (following - index - 1) < max(1, before - 20)
    cluster.restart("a")
    assert cluster.replicas[A]._saved_bytes == sizes[-1]
