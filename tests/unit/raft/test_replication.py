"""Entries, heartbeats and snapshots on their way: late, lost and crossing messages, one by one."""

from __future__ import annotations

from collections import deque

import pytest

from brokerd.raft.inputs import PeerUnreachable, Received, TransferLeadership
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import Cluster, command, elected, hand_over, kinds

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")

ABC = Configuration((A, B, C))


def test_a_heartbeats_answer_frees_one_slot_of_a_full_window() -> None:
    cluster = elected(inflight_max=2)
    for text in ("1", "2", "3"):
        cluster.propose("a", text)
        cluster.sync("a")
    assert len(kinds(cluster, "b")) == 2
    cluster.drop()
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, B, A, 1)))
    assert [(m.index, len(m.entries)) for m in cluster.wire] == [(3, 1)]


def test_an_answer_from_before_a_probe_is_not_taken_for_its_answer() -> None:
    """Core seeds 308950 and 311276: each had the whole window sent again, a storm."""
    cluster = elected()
    cluster.propose("a", "1")
    cluster.stabilize()
    cluster.feed("a", PeerUnreachable(B))
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, B, A, 1, 1)))
    cluster.propose("a", "2")
    assert kinds(cluster, "b") == []
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, B, A, 1, 2)))
    assert kinds(cluster, "b") == [MessageKind.APPEND]


def test_a_stale_refusal_changes_nothing() -> None:
    cluster = elected()
    refusal = Message(MessageKind.APPEND_REPLY, B, A, 1, 1, 0, reject=True, hint=0)
    cluster.feed("a", Received(refusal))
    assert cluster.wire == []


def test_a_silent_member_gets_no_snapshot_until_it_answers() -> None:
    """Reading a snapshot is dear."""
    cluster = elected(snapshot_entries=4)
    for text in "123456":
        cluster.propose("a", text)
        cluster.stabilize("a", "b")
    for _ in range(25):
        cluster.tick("a")
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    refusal = Message(MessageKind.SNAPSHOT_REPLY, C, A, 1, 1, reject=True)
    cluster.tick("a", 2)
    assert kinds(cluster, "c") == [MessageKind.HEARTBEAT]
    cluster.feed("a", Received(refusal))
    cluster.stabilize()
    assert cluster.applied("c") == list("123456")


def snapshot_on_the_way(**settings: int) -> Cluster:
    """A leader whose follower c needs its snapshot, which has just been sent."""
    cluster = elected(snapshot_entries=4, **settings)
    cluster.disks[C].waiting.clear()
    for text in "123456":
        cluster.propose("a", text)
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, C, A, 1)))
    assert kinds(cluster, "c") == [MessageKind.SNAPSHOT]
    return cluster


def test_a_refused_snapshot_is_sent_again_after_the_next_heartbeat() -> None:
    cluster = snapshot_on_the_way()
    cluster.drop()
    refusal = Message(MessageKind.SNAPSHOT_REPLY, C, A, 1, 2, reject=True)
    cluster.feed("a", Received(refusal))
    cluster.feed("a", Received(refusal))
    assert cluster.wire == []
    cluster.tick("a", 2)
    cluster.stabilize()
    assert cluster.applied("c") == list("123456")


def test_a_snapshot_without_an_answer_is_sent_again_after_a_while() -> None:
    cluster = snapshot_on_the_way(snapshot_resend_ticks=3)
    cluster.drop()
    for _ in range(4):
        cluster.tick("a")
        cluster.stabilize()
    assert cluster.applied("c") == list("123456")


def test_an_acknowledgement_from_before_the_snapshot_does_not_end_it() -> None:
    cluster = snapshot_on_the_way()
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, C, A, 1, 1)))
    assert kinds(cluster, "c") == [MessageKind.SNAPSHOT]
    cluster.stabilize()
    assert cluster.applied("c") == list("123456")


def test_while_a_snapshot_is_written_entries_and_more_snapshots_wait() -> None:
    cluster = snapshot_on_the_way()
    cluster.deliver("c")
    assert cluster.wire == []
    cluster.feed(
        "c", Received(Message(MessageKind.APPEND, A, C, 1, 7, 1, 7, entries=[command(8, 1)]))
    )
    again = Message(MessageKind.SNAPSHOT, A, C, 1, 7, 1, snapshot=Snapshot(7, 1, ABC, b"[]"))
    cluster.feed("c", Received(again))
    cluster.feed("c", Received(Message(MessageKind.HEARTBEAT, A, C, 1, 0, 0, 7)))
    assert kinds(cluster, "a") == [MessageKind.HEARTBEAT_REPLY]
    cluster.drop()
    # It does not campaign either: its log is neither the old one nor the new one.
    cluster.tick("c", 25)
    assert cluster.wire == []
    cluster.sync("c")
    assert kinds(cluster, "a") == [MessageKind.SNAPSHOT_REPLY]


def test_a_snapshot_of_what_is_here_already_only_moves_the_commit_index() -> None:
    cluster = elected()
    append = Message(MessageKind.APPEND, A, B, 1, 1, 1, 1, entries=[command(2, 1), command(3, 1)])
    cluster.feed("b", Received(append))
    cluster.sync("b")
    cluster.drop()
    message = Message(MessageKind.SNAPSHOT, A, B, 1, 3, 1, snapshot=Snapshot(3, 1, ABC, b"[]"))
    cluster.feed("b", Received(message))
    assert [(m.kind, m.index) for m in cluster.wire] == [(MessageKind.SNAPSHOT_REPLY, 3)]
    assert cluster.replicas[B].commit_index == 3
    assert cluster.disks[B].saved is None


def test_a_snapshot_of_a_second_leader_in_a_term_is_not_believed() -> None:
    """Raft thesis §3.2"""
    cluster = elected()
    message = Message(MessageKind.SNAPSHOT, C, B, 1, 9, 1, snapshot=Snapshot(9, 1, ABC, b"[]"))
    assert cluster.feed("b", Received(message)) == []
    assert cluster.replicas[B].commit_index == 1


def test_writes_under_way_do_not_vouch_for_what_replaced_them() -> None:
    """Raft thesis §3.5 with an asynchronous disk: the acknowledgement would be of other entries."""
    cluster = elected()
    old = Message(MessageKind.APPEND, A, B, 1, 1, 1, 1, entries=[command(2, 1), command(3, 1)])
    cluster.feed("b", Received(old))
    new = Message(MessageKind.APPEND, C, B, 2, 1, 1, 1, entries=[command(2, 2)])
    cluster.feed("b", Received(new))
    cluster.sync("b")
    assert [(m.to, m.index) for m in cluster.wire] == [(A, 3), (C, 2)]
    assert [entry.term for entry in cluster.disks[B].log] == [1, 2]
    cluster.feed("b", Received(Message(MessageKind.HEARTBEAT, C, B, 2, 0, 0, 2)))
    cluster.stabilize("b")
    assert cluster.replicas[B].applied_index == 2


def test_a_snapshot_overtakes_writes_under_way() -> None:
    cluster = elected()
    old = Message(MessageKind.APPEND, A, B, 1, 1, 1, 1, entries=[command(2, 1)])
    cluster.feed("b", Received(old))
    message = Message(MessageKind.SNAPSHOT, C, B, 2, 9, 2, snapshot=Snapshot(9, 2, ABC, b"[]"))
    cluster.feed("b", Received(message))
    cluster.sync("b")
    assert cluster.replicas[B].applied_index == 9
    assert cluster.replicas[B].snapshot_index == 9


def test_entries_that_come_twice_are_acknowledged_twice_and_written_once() -> None:
    cluster = elected()
    append = Message(MessageKind.APPEND, A, B, 1, 1, 1, 1, entries=[command(2, 1)])
    cluster.feed("b", Received(append))
    cluster.sync("b")
    cluster.feed("b", Received(append))
    assert [(m.kind, m.index) for m in cluster.wire] == [(MessageKind.APPEND_REPLY, 2)] * 2
    assert not cluster.disks[B].waiting


def test_a_machines_deadline_waits_while_leadership_is_handed_over() -> None:
    cluster = elected()
    cluster.machines[A].deadline_ms = 1
    cluster.feed("a", TransferLeadership(B))
    cluster.tick("a", now_ms=5)
    assert cluster.replicas[A].last_index == 1


def test_a_leader_left_behind_learns_the_term_from_who_refuses_it() -> None:
    cluster = elected()
    hand_over(cluster, "a", "b")
    hand_over(cluster, "b", "c")
    late = Message(MessageKind.HEARTBEAT, A, B, 1, 0, 0, 1)
    cluster.feed("b", Received(late))
    assert [(m.kind, m.term, m.reject) for m in cluster.wire] == [
        (MessageKind.APPEND_REPLY, 3, True)
    ]


def test_a_leader_skips_the_terms_that_a_follower_does_not_share() -> None:
    """Raft paper §5.3: one refusal for each term, not for each entry."""
    cluster = elected()
    for text in "1234":
        cluster.propose("a", text)
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, C, A, 1)))
    (probe,) = [message for message in cluster.wire if message.to == C]
    cluster.drop()
    refusal = Message(MessageKind.APPEND_REPLY, C, A, 1, probe.index, 1, reject=True, hint=0)
    cluster.feed("a", Received(refusal))
    cluster.stabilize()
    assert cluster.applied("c") == list("1234")


def test_a_silent_member_gets_entries_as_far_as_the_log_reaches_and_then_waits() -> None:
    cluster = elected(snapshot_entries=4)
    for _ in range(25):
        cluster.tick("a")
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    for text in "123456":
        cluster.propose("a", text)
        cluster.stabilize("a", "b")
    assert kinds(cluster, "c") == []
    cluster.start("c")
    cluster.tick("a", 2)
    cluster.stabilize()
    assert cluster.applied("c") == list("123456")


def test_a_snapshot_is_not_repeated_to_a_member_that_fell_silent() -> None:
    cluster = snapshot_on_the_way(snapshot_resend_ticks=12)
    cluster.drop()
    for _ in range(24):
        cluster.tick("a")
        cluster.stabilize("a", "b")
    cluster.propose("a", "7")
    assert kinds(cluster, "c") == []
    cluster.tick("a", 2)
    cluster.stabilize()
    assert cluster.applied("c") == list("1234567")


def test_what_a_majority_holds_is_committed_though_more_is_on_the_way() -> None:
    cluster = elected()
    cluster.propose("a", "x")
    cluster.propose("a", "y")
    cluster.drop()
    cluster.sync("a")
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, B, A, 1, 2)))
    assert cluster.replicas[A].commit_index == 2
    assert kinds(cluster, "c") == []


def test_a_leader_without_a_stored_snapshot_waits_for_the_next_heartbeat() -> None:
    """It was just truncated, or the file is damaged: nothing can be sent that would be true."""
    cluster = snapshot_on_the_way()
    cluster.drop()
    disk = cluster.disks[A]
    saved = disk.saved
    refusal = Message(MessageKind.SNAPSHOT_REPLY, C, A, 1, 1, reject=True)
    cluster.feed("a", Received(refusal))
    waiting: deque[object] = deque()
    disk.snapshot = lambda: waiting.append(1)  # type: ignore[assignment, method-assign, func-returns-value]
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, C, A, 1)))
    assert len(waiting) == 1
    assert cluster.wire == []
    del disk.snapshot
    assert disk.saved is saved
    cluster.feed("a", Received(Message(MessageKind.HEARTBEAT_REPLY, C, A, 1)))
    assert kinds(cluster, "c") == [MessageKind.SNAPSHOT]


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
