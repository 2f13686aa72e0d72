"""Looks: commands that most often change nothing, and are no entries of the log then."""

from __future__ import annotations

from brokerd.raft.inputs import Look, TransferLeadership
from brokerd.raft.messages import NodeId
from tests.unit.raft.cluster import Cluster, elected

A, B = NodeId("a"), NodeId("b")


def look(cluster: Cluster, name: str, now_ms: int = 5) -> int:
    cluster.token += 1
    cluster.feed(name, Look(now_ms, cluster.token, b"count"))
    return cluster.token


def test_a_leader_that_has_applied_everything_answers_as_it_is() -> None:
    cluster = elected()
    cluster.propose("a", "x")
    cluster.stabilize()
    last = cluster.replicas[A].last_index
    token = look(cluster, "a")
    reply = cluster.replies[token]
    assert (reply.accepted, reply.reply) == (True, b"1")
    assert cluster.replicas[A].last_index == last


def test_what_was_proposed_before_it_is_seen() -> None:
    """It follows in the log, whoever else proposed."""
    cluster = elected()
    cluster.propose("a", "x")
    token = look(cluster, "a")
    assert token not in cluster.replies
    cluster.stabilize()
    assert cluster.replies[token].reply == b"COUNT"
    assert cluster.applied("b") == ["x", "count"]


def test_a_command_that_would_change_something_is_proposed() -> None:
    cluster = elected()
    token = look(cluster, "a", now_ms=100)
    assert token not in cluster.replies
    cluster.stabilize()
    assert cluster.replies[token].reply == b"COUNT"


def test_others_say_who_leads() -> None:
    cluster = elected()
    token = look(cluster, "b")
    reply = cluster.replies[token]
    assert (reply.accepted, reply.leader) == (False, A)


def test_a_new_leader_first_commits_an_entry_of_its_term() -> None:
    """Raft thesis §6.4: until then it may not know what is committed."""
    cluster = elected()
    cluster.propose("a", "x")
    cluster.stabilize()
    cluster.feed("a", TransferLeadership(B))
    while not cluster.replicas[B].is_leader:
        cluster.deliver()
        for name in "abc":
            cluster.sync(name)
    token = look(cluster, "b")
    assert token not in cluster.replies
    cluster.stabilize()
    assert cluster.replies[token].reply == b"COUNT"
