"""A replica that stands still is folded, and goes on as if it had not been (ADR 61)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from brokerd.raft.config import RaftConfig
from brokerd.raft.errors import BrokenLogError
from brokerd.raft.folded import Folded
from brokerd.raft.inputs import PeerUnreachable, Tick
from brokerd.raft.messages import Contradiction, Entry, EntryKind, GroupUid, NodeId
from brokerd.raft.replica import Replica
from tests.unit.raft.cluster import Cluster, EchoMachine, elected, hand_over

A, B, C = (NodeId(name) for name in "abc")


def at_rest(*commands: str, **settings: int) -> Cluster:
    """Return a group that `a` leads and that has applied these commands, everywhere."""
    cluster = elected(**settings)
    if commands:
        cluster.propose("a", *commands, now_ms=77)
        cluster.stabilize()
    cluster.rest()
    return cluster


def fold(cluster: Cluster, name: str) -> Folded:
    """Fold a member's replica, and have it go on as what comes of that."""
    node = NodeId(name)
    before = cluster.replicas[node]
    folded = before.fold()
    assert folded is not None
    cluster.machines[node] = EchoMachine()
    cluster.replicas[node] = Replica(
        *(GroupUid(7), node, None, cluster.machines[node], cluster.disks[node]),
        *(cluster.config, random.Random(1)),
        folded=folded,
    )
    cluster.replicas[node]._node.is_prompt = cluster.is_prompt
    assert cluster.replicas[node].overview() == before.overview()
    assert cluster.replicas[node].configuration_index == before.configuration_index
    before.close()
    return folded


@pytest.mark.parametrize("names", ["a", "b", "abc"])
def test_what_was_folded_goes_on(names: str) -> None:
    cluster = at_rest("one", "two")
    for name in names:
        folded = fold(cluster, name)
        assert folded.leader == A
        assert cluster.applied(name) == ["one", "two"]
        assert cluster.replicas[NodeId(name)].is_quiet
    [token] = cluster.propose("a", "three")
    cluster.stabilize()
    assert cluster.replies[token].reply == b"THREE"
    cluster.rest()
    for name in "abc":
        assert cluster.applied(name) == ["one", "two", "three"]
    # An effect is realised once: the first two were before.
    effects = [index for name, index, _ in cluster.realised if name == "a"]
    assert effects == sorted(set(effects))


def test_a_leader_goes_on_leading_its_followers_as_they_are() -> None:
    cluster = at_rest("one")
    last = cluster.replicas[A].last_index
    fold(cluster, "a")
    replica = cluster.replicas[A]
    assert replica.may_change_members
    assert [replica.match_of(node) for node in (A, B, C)] == [last] * 3
    # Nobody is asked where the logs part.
    cluster.propose("a", "two")
    assert [len(message.entries) for message in cluster.wire] == [1, 1]


def test_a_follower_elects_once_its_leader_is_gone() -> None:
    cluster = at_rest("one")
    fold(cluster, "b")
    del cluster.replicas[A]
    for _ in range(40):
        cluster.tick("b")
        cluster.tick("c")
        cluster.stabilize()
    assert sum(cluster.replicas[node].is_leader for node in (B, C)) == 1
    [token] = cluster.propose(cluster.replicas[B].leader or "", "two")
    cluster.stabilize()
    assert cluster.replies[token].accepted


def test_votes_and_terms_are_as_they_were() -> None:
    cluster = at_rest("one")
    hand_over(cluster, "a", "b")
    cluster.rest()
    term = cluster.replicas[B].term
    for name in "abc":
        folded = fold(cluster, name)
        assert (folded.saved.term, folded.saved.vote, folded.leader) == (term, B, B)
        assert cluster.replicas[NodeId(name)].term == term


def test_a_snapshot_and_the_terms_in_it_are_kept_in_mind() -> None:
    cluster = at_rest("one", "two", "three", snapshot_entries=2)
    hand_over(cluster, "a", "b")
    cluster.rest()
    before = cluster.replicas[B]
    assert before.snapshot_index
    terms = before._node.log.terms
    fold(cluster, "b")
    after = cluster.replicas[B]
    assert after.snapshot_index == before.snapshot_index
    assert after._node.log.terms == terms != ()


def test_members_are_as_the_log_has_them() -> None:
    cluster = Cluster("abc", joining="d")
    cluster.elect("a")
    cluster.change("a", "abc", "d")
    cluster.stabilize()
    for _ in range(3):
        cluster.rest()
    for name in "abcd":
        fold(cluster, name)
        assert cluster.replicas[NodeId(name)].configuration.learners == (NodeId("d"),)


def test_what_has_something_to_do_is_not_folded() -> None:
    cluster = at_rest("one")
    cluster.propose("a", "two")
    assert cluster.replicas[A].fold() is None
    cluster.stabilize()
    cluster.rest()
    assert cluster.replicas[A].fold() is not None


def test_a_leader_that_misses_somebody_is_not_folded() -> None:
    cluster = at_rest("one")
    cluster.feed("a", PeerUnreachable(C))
    assert cluster.replicas[A].fold() is None


def test_who_knows_no_leader_is_not_folded() -> None:
    cluster = Cluster()
    assert cluster.replicas[A].fold() is None


def test_a_timer_keeps_its_leader_awake_and_nobody_else() -> None:
    cluster = at_rest("one")
    for machine in cluster.machines.values():
        machine.deadline_ms = 10_000
    assert cluster.replicas[A].fold() is None
    assert cluster.replicas[B].fold() is not None


def test_a_contradicted_replica_is_not_folded() -> None:
    cluster = at_rest("one")
    replica = cluster.replicas[B]
    replica._node.contradiction = Contradiction(1, 1, 1, 1, A, 1)
    assert replica.fold() is None


def test_a_leader_alone_that_somebody_is_to_join_is_not_folded() -> None:
    cluster = elected("a")
    cluster.rest()
    cluster.replicas[A]._node.replication.is_lazy_allowed = False
    assert cluster.replicas[A].fold() is None


def test_a_log_that_has_changed_meanwhile_is_not_gone_on_with() -> None:
    cluster = at_rest("one")
    replica, disk = cluster.replicas[B], cluster.disks[B]
    folded = replica.fold()
    assert folded is not None
    last = replica.last_index
    disk.log.append(Entry(last + 1, 1, EntryKind.COMMAND, bytes(8)))
    with pytest.raises(BrokenLogError, match="while its replica was folded"):
        Replica(
            *(GroupUid(7), B, None, EchoMachine(), disk, RaftConfig(), random.Random(1)),
            folded=folded,
        )


def test_the_time_heard_of_last_is_kept() -> None:
    cluster = at_rest("one")
    cluster.feed("b", Tick(9_000))
    folded = cluster.replicas[B].fold()
    assert folded is not None
    assert folded.figures().now_ms == 9_000
    assert replace(folded.figures(), ignored_count=3).pack() != folded.figures().pack()
