"""Lazy commands: a bare majority at once, the others late; alone, the disk late (ADR 23)."""

from __future__ import annotations

import pytest

from brokerd.raft import replication
from brokerd.raft.inputs import Hasten, PeerUnreachable
from brokerd.raft.messages import NodeId
from tests.unit.raft.cluster import Cluster, EchoMachine, elected, hand_over, kinds

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def asked(cluster: Cluster) -> set[NodeId]:
    """Return who gets entries by what is on the wire."""
    return {message.to for message in cluster.wire if message.entries}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a group of one whose machine may lose its last commands."""
    monkeypatch.setattr(EchoMachine, "may_lose_last", True)
    return elected("a")


# ---- with followers -----------------------------------------------------------------------------


def test_a_lazy_command_goes_to_a_bare_majority_and_is_answered() -> None:
    cluster = elected()
    (token,) = cluster.propose("a", "x", is_lazy=True)
    assert len(asked(cluster)) == 1
    cluster.stabilize()
    assert cluster.replies[token].accepted
    behind = [name for name in (B, C) if cluster.replicas[name].last_index == 1]
    assert len(behind) == 1
    assert cluster.replicas[A].is_behind


def test_who_answered_last_is_asked_again_however_many_commands_follow() -> None:
    cluster = elected()
    cluster.propose("a", "0", is_lazy=True)
    first = asked(cluster)
    assert len(first) == 1
    for number in range(1, 20):
        cluster.stabilize()
        cluster.propose("a", str(number), is_lazy=True)
        assert asked(cluster) == first


def test_what_was_left_goes_out_in_one_message_when_hastened() -> None:
    cluster = elected()
    for number in range(3):
        cluster.propose("a", str(number), is_lazy=True)
        cluster.stabilize()
    cluster.feed("a", Hasten())
    (message,) = [message for message in cluster.wire if message.entries]
    assert len(message.entries) == 3
    cluster.stabilize()
    assert {replica.last_index for replica in cluster.replicas.values()} == {4}
    assert not cluster.replicas[A].is_behind


def test_the_tick_hastens_and_the_group_comes_to_rest() -> None:
    cluster = elected()
    cluster.propose("a", "x", is_lazy=True)
    cluster.stabilize()
    assert not cluster.replicas[A].is_quiet
    for _ in range(3):
        cluster.rest()
    assert [cluster.applied(name) for name in "abc"] == [["x"]] * 3
    assert cluster.replicas[A].is_quiet


def test_a_command_that_is_not_lazy_takes_along_what_was_left() -> None:
    cluster = elected()
    cluster.propose("a", "x", is_lazy=True)
    cluster.stabilize()
    cluster.propose("a", "y")
    assert asked(cluster) == {B, C}
    cluster.stabilize()
    assert {replica.last_index for replica in cluster.replicas.values()} == {3}


def test_who_does_not_answer_costs_a_moment_and_is_not_asked_next() -> None:
    cluster = elected()
    (token,) = cluster.propose("a", "x", is_lazy=True)
    (silent,) = asked(cluster)
    (other,) = {B, C} - {silent}
    cluster.wire.clear()
    cluster.crash(silent)
    cluster.stabilize()
    assert token not in cluster.replies
    cluster.feed("a", Hasten())
    cluster.stabilize()
    assert cluster.replies[token].accepted
    cluster.propose("a", "y", is_lazy=True)
    assert asked(cluster) == {other}


def test_with_too_few_followers_at_work_all_are_asked() -> None:
    cluster = elected("abcde")
    for peer in ("c", "d", "e"):
        cluster.feed("a", PeerUnreachable(NodeId(peer)))
    cluster.propose("a", "x", is_lazy=True)
    # The others wait for a heartbeat's answer, as ever.
    assert asked(cluster) == {B}
    assert not cluster.replicas[A]._node.replication.prompt < cluster.replicas[A].last_index


def test_a_lazy_command_survives_the_leader_with_the_one_that_holds_it() -> None:
    cluster = elected()
    (token,) = cluster.propose("a", "x", is_lazy=True)
    (holder,) = asked(cluster)
    cluster.stabilize()
    assert cluster.replies[token].accepted
    (empty,) = {B, C} - {holder}
    cluster.crash("a")
    cluster.tick(empty, 40)
    cluster.stabilize()
    assert not cluster.replicas[empty].is_leader
    cluster.elect(holder)
    assert cluster.applied(holder) == ["x"]


def test_who_follows_has_nothing_to_hasten() -> None:
    cluster = elected()
    cluster.propose("a", "x", is_lazy=True)
    cluster.stabilize()
    hand_over(cluster, "a", "b")
    cluster.wire.clear()
    assert cluster.replicas[A].is_behind
    cluster.feed("a", Hasten())
    assert not kinds(cluster, "b") + kinds(cluster, "c")
    # Its host asks while it is behind: a hundred times a second, and the group would never rest.
    assert not cluster.replicas[A].is_behind


# ---- alone --------------------------------------------------------------------------------------


def test_alone_a_lazy_command_is_answered_before_the_disk_holds_it(alone: Cluster) -> None:
    (token,) = alone.propose("a", "x", is_lazy=True)
    assert alone.replies[token].accepted
    assert not alone.disks[A].waiting
    alone.feed("a", Hasten())
    assert alone.sync("a")
    assert alone.disks[A].last_index() == 2
    alone.restart("a")
    alone.elect("a")
    assert alone.applied("a") == ["x"]


def test_what_was_answered_so_is_lost_in_a_crash_and_nothing_before_it(alone: Cluster) -> None:
    alone.propose("a", "kept")
    alone.stabilize()
    alone.propose("a", "lost", is_lazy=True)
    alone.restart("a")
    alone.elect("a")
    assert alone.applied("a") == ["kept"]


def test_alone_and_lazy_it_waits_for_what_came_before(alone: Cluster) -> None:
    (prompt,) = alone.propose("a", "prompt")
    (lazy,) = alone.propose("a", "lazy", is_lazy=True)
    assert not {prompt, lazy} & alone.replies.keys()
    alone.stabilize()
    assert alone.replies[prompt].accepted
    assert alone.replies[lazy].accepted


def test_what_follows_takes_lazy_commands_to_the_disk(alone: Cluster) -> None:
    alone.propose("a", "lazy", is_lazy=True)
    (token,) = alone.propose("a", "prompt")
    assert token not in alone.replies
    alone.stabilize()
    assert alone.replies[token].accepted
    assert alone.disks[A].last_index() == 3


@pytest.mark.plain
def test_the_disk_gets_many_lazy_commands_without_waiting(
    alone: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "LATE_ENTRIES_MAX", 4)
    for number in range(6):
        alone.propose("a", str(number), is_lazy=True)
    (write,) = alone.disks[A].waiting
    assert len(write.entries) == 4
    assert len(alone.applied("a")) == 6


@pytest.mark.plain
def test_a_disk_that_hangs_is_waited_for_in_the_end(
    alone: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "UNWRITTEN_ENTRIES_MAX", 4)
    tokens = [alone.propose("a", str(number), is_lazy=True)[0] for number in range(6)]
    assert [token in alone.replies for token in tokens] == [True] * 4 + [False] * 2
    alone.stabilize()
    assert all(alone.replies[token].accepted for token in tokens)
    (token,) = alone.propose("a", "6", is_lazy=True)
    assert token in alone.replies


def test_alone_with_a_machine_that_loses_nothing_the_disk_comes_first() -> None:
    cluster = elected("a")
    (token,) = cluster.propose("a", "x", is_lazy=True)
    assert token not in cluster.replies
    cluster.stabilize()
    assert cluster.replies[token].accepted


def test_lazy_commands_alone_are_saved_in_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoMachine, "may_lose_last", True)
    cluster = elected("a", snapshot_entries=5)
    for number in range(12):
        cluster.propose("a", str(number), is_lazy=True)
        if number % 3 == 0:
            cluster.feed("a", Hasten())
        # The disk is always a step behind.
        cluster.sync("a", 1)
    cluster.stabilize()
    assert cluster.replicas[A].snapshot_index >= 5
    cluster.rest()
    cluster.restart("a")
    cluster.elect("a")
    assert len(cluster.machines[A].applied) == 12


def test_nobody_joins_before_the_disk_holds_what_was_answered(alone: Cluster) -> None:
    alone.propose("a", "x", is_lazy=True)
    refused = alone.change("a", "a", "b")
    assert b"disk" in alone.replies[refused].reply
    # From here on nothing is answered early: the next try finds the disk up to date.
    (token,) = alone.propose("a", "y", is_lazy=True)
    assert token not in alone.replies
    alone.stabilize()
    assert alone.replies[token].accepted
    taken = alone.change("a", "a", "b")
    alone.sync("a")
    assert alone.replies[taken].accepted
