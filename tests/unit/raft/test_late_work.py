"""What nobody waits for: answers that decide nothing, entries that a follower has yet to apply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerd.raft.config import RaftConfig
from brokerd.raft.inputs import CatchUp, PeerUnreachable, Received, TransferLeadership
from brokerd.raft.messages import Message, MessageKind, NodeId
from tests.unit.raft.cluster import Cluster

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def patient(**settings: int) -> Cluster:
    """A group whose leader is a and in which all members have everything."""
    cluster = Cluster(config=replace(RaftConfig(), **settings), is_prompt=False)
    cluster.elect("a")
    return cluster


def with_answer_of_the_last(cluster: Cluster) -> Message:
    """Commit a command at a and b; return c's answer, which a has not taken."""
    cluster.propose("a", "pay")
    cluster.deliver("b", "c")
    for name in "abc":
        cluster.sync(name)
    (answer,) = [message for message in cluster.wire if message.sender == C]
    cluster.wire.remove(answer)
    cluster.deliver("a")
    assert cluster.replicas[A].commit_index == answer.index
    return answer


def test_the_last_answer_may_wait_and_counts_when_it_is_handed_in() -> None:
    cluster = patient()
    answer = with_answer_of_the_last(cluster)
    leader = cluster.replicas[A]
    assert leader.may_wait(answer)
    assert not leader.is_quiet, "the tick must come, and the answer with it"
    cluster.feed("a", Received(answer))
    assert leader.match_of(C) == answer.index


def test_an_answer_that_decides_may_not_wait() -> None:
    cluster = patient()
    cluster.propose("a", "pay")
    cluster.deliver("b", "c")
    for name in "abc":
        cluster.sync(name)
    assert not cluster.replicas[A].may_wait(cluster.wire[0])


@pytest.mark.parametrize(
    "change",
    [
        {"kind": MessageKind.HEARTBEAT_REPLY},
        {"reject": True},
        {"term": 7},
        {"sender": NodeId("stranger")},
    ],
)
def test_only_a_plain_answer_of_a_member_may_wait(change: dict[str, object]) -> None:
    cluster = patient()
    answer = with_answer_of_the_last(cluster)
    assert not cluster.replicas[A].may_wait(replace(answer, **change))  # type: ignore[arg-type]


def test_an_answer_may_not_wait_while_it_lets_something_go_on() -> None:
    cluster = patient(inflight_max=1)
    answer = with_answer_of_the_last(cluster)
    leader = cluster.replicas[A]
    cluster.propose("a", "more")
    assert not leader.may_wait(answer), "c's window is full of what it answers"

    cluster = patient()
    answer = with_answer_of_the_last(cluster)
    cluster.feed("a", TransferLeadership(C))
    assert not cluster.replicas[A].may_wait(answer), "c shall take over"

    cluster = patient()
    answer = with_answer_of_the_last(cluster)
    cluster.feed("a", PeerUnreachable(C))
    assert not cluster.replicas[A].may_wait(answer), "c is probed"


def test_nothing_waits_at_a_follower_nor_in_a_group_whose_members_all_have_effects() -> None:
    cluster = patient()
    answer = with_answer_of_the_last(cluster)
    assert not cluster.replicas[B].may_wait(replace(answer, to=B))

    cluster = Cluster()
    cluster.elect("a")
    assert not cluster.replicas[A].may_wait(with_answer_of_the_last(cluster))


def test_few_entries_wait_until_somebody_looks() -> None:
    cluster = patient()
    cluster.propose("a", "one")
    cluster.stabilize()
    cluster.propose("a", "two")
    cluster.stabilize()
    follower, machine = cluster.replicas[B], cluster.machines[B]
    assert (machine.applied, follower.applied_index < follower.commit_index) == ([], True)
    assert not follower.is_quiet, "the tick must come"
    assert cluster.feed("b", CatchUp()) == []
    assert machine.applied == [(2, "one")]


def test_many_bytes_do_not_wait() -> None:
    cluster = patient(apply_bytes_min=100)
    for text in ("x" * 60, "y" * 60, "last"):
        cluster.propose("a", text)
        cluster.stabilize()
    assert [index for index, _ in cluster.machines[B].applied] == [2, 3]


def test_what_is_on_disk_only_is_applied_as_soon_as_it_is_known_to_be_committed() -> None:
    """After a restart there may be thousands: they come in steps of apply_bytes_max."""
    cluster = patient()
    cluster.propose("a", "one")
    cluster.stabilize()
    cluster.restart("b")
    cluster.wire.clear()
    cluster.propose("a", "two")
    cluster.stabilize()
    assert cluster.machines[B].applied == [(2, "one")]
