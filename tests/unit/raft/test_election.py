"""Elections, leases, transfers, and who is alive: turns that a healthy group rarely takes."""

from __future__ import annotations

from brokerd.raft.config import RaftConfig
from brokerd.raft.inputs import LeaderAlive, NodeGone, PeerUnreachable, Received, TransferLeadership
from brokerd.raft.messages import Configuration, Message, MessageKind, NodeId
from brokerd.raft.node import RaftNode
from brokerd.raft.quorum import VoteResult, vote_result
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import Cluster, Dice, elected, hand_over, kinds, one_node

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")
ABC = Configuration((A, B, C))


def test_a_learner_never_stands_for_election() -> None:
    """Raft thesis §4.2.1"""
    cluster = Cluster("ab", learners="c")
    cluster.tick("c", 50)
    assert cluster.wire == []
    assert cluster.replicas[C].term == 0


def test_a_leader_greets_a_member_that_asks_for_a_vote_in_its_own_term() -> None:
    cluster = elected()
    cluster.feed("a", Received(Message(MessageKind.PRE_VOTE, B, A, 1, 1, 1)))
    assert kinds(cluster, "b") == [MessageKind.HEARTBEAT]


def test_a_leader_greets_a_member_that_was_left_terms_behind() -> None:
    cluster = elected()
    hand_over(cluster, "a", "b")
    hand_over(cluster, "b", "a")
    cluster.feed("a", Received(Message(MessageKind.PRE_VOTE, C, A, 1, 1, 1)))
    assert kinds(cluster, "c") == [MessageKind.HEARTBEAT]
    cluster.drop()
    cluster.feed("b", Received(Message(MessageKind.PRE_VOTE, C, B, 1, 1, 1)))
    assert [(m.kind, m.reject) for m in cluster.wire] == [(MessageKind.PRE_VOTE_REPLY, True)]


def test_a_vote_of_an_older_term_gets_no_answer() -> None:
    """Its candidate has long lost; nothing that is said could help it."""
    cluster = elected()
    hand_over(cluster, "a", "b")
    assert cluster.feed("c", Received(Message(MessageKind.VOTE, A, C, 1, 1, 1))) == []


def test_an_order_to_stand_is_taken_from_the_leader_only() -> None:
    """Raft thesis §3.10"""
    cluster = elected()
    cluster.feed("b", Received(Message(MessageKind.TIMEOUT_NOW, C, B, 1)))
    assert cluster.replicas[B].overview()["ignored_messages"] == 1
    assert cluster.replicas[B].term == 1


def test_a_pre_candidate_whose_peers_know_better_follows_again() -> None:
    cluster = Cluster()
    cluster.tick("a", 25)
    cluster.drop()
    for sender in (B, C):
        refusal = Message(MessageKind.PRE_VOTE_REPLY, sender, A, 1, reject=True)
        cluster.feed("a", Received(refusal))
    assert cluster.replicas[A].overview()["role"] == "follower"


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """Raft thesis §6.2, check-quorum."""
    cluster = elected()
    (token,) = cluster.propose("a", "x")
    cluster.tick("a", 25)
    assert cluster.replicas[A].overview()["role"] == "follower"
    assert not cluster.replies[token].accepted


def test_a_transfer_whose_heir_is_silent_is_given_up_and_the_leader_serves_again() -> None:
    """Raft thesis §3.10"""
    cluster = elected()
    cluster.feed("a", TransferLeadership(B))
    cluster.feed("a", TransferLeadership(C))
    assert kinds(cluster, "b") == [MessageKind.TIMEOUT_NOW]
    assert kinds(cluster, "c") == []
    cluster.drop()
    cluster.propose("a", "refused")
    assert not cluster.replies[1].accepted
    for _ in range(3):
        cluster.tick("a", 5)
        cluster.stabilize()
    cluster.propose("a", "taken")
    cluster.stabilize()
    assert cluster.replies[2].accepted


def test_leadership_goes_to_no_stranger_and_not_to_the_leader_itself() -> None:
    cluster = elected()
    cluster.feed("a", TransferLeadership(NodeId("x")))
    cluster.feed("a", TransferLeadership(A))
    cluster.feed("b", TransferLeadership(C))
    assert cluster.wire == []


def test_hearsay_prolongs_the_lease_of_an_undoubted_leader_only() -> None:
    """design/replication.md §2.1"""
    cluster = elected()
    for _ in range(30):
        cluster.tick("b")
        cluster.feed("b", LeaderAlive())
    assert cluster.wire == []
    cluster.feed("b", PeerUnreachable(A))
    assert kinds(cluster, "a") == [MessageKind.PRE_VOTE]
    for _ in range(30):
        cluster.tick("b")
        cluster.feed("b", LeaderAlive())
    assert MessageKind.PRE_VOTE in kinds(cluster, "c")


def test_members_of_a_killed_leader_elect_soon() -> None:
    """design/replication.md §2.1: a suspected node, then a pre-vote after a short random wait."""
    cluster = elected()
    cluster.crash("a")
    for name in "bc":
        cluster.feed(name, NodeGone(A))
        assert cluster.replicas[NodeId(name)].leader is None
    for _ in range(cluster.config.gone_leader_ticks_max):
        cluster.tick("b")
    cluster.stabilize("b", "c")
    assert cluster.replicas[B].is_leader
    assert cluster.replicas[C].leader == B


def test_the_end_of_another_node_leaves_leader_and_followers_as_they_are() -> None:
    cluster = elected()
    cluster.feed("b", NodeGone(C))
    cluster.feed("a", NodeGone(C))
    cluster.feed("a", NodeGone(A))
    assert cluster.replicas[A].is_leader
    assert cluster.replicas[B].leader == A
    assert cluster.wire == []


def test_a_follower_does_not_care_about_other_followers() -> None:
    cluster = elected()
    cluster.feed("b", PeerUnreachable(C))
    assert cluster.wire == []


def test_a_leader_forgets_nothing_over_a_peer_that_is_no_member() -> None:
    cluster = elected()
    cluster.rest()
    cluster.feed("a", PeerUnreachable(NodeId("x")))
    cluster.feed("a", Received(Message(MessageKind.PRE_VOTE, NodeId("x"), A, 1, 1, 1)))
    assert cluster.wire == []
    assert cluster.replicas[A].is_consensus_quiet(())


def test_replies_that_come_after_leadership_was_lost_are_dropped() -> None:
    cluster = elected()
    for kind in (
        MessageKind.APPEND_REPLY,
        MessageKind.HEARTBEAT_REPLY,
        MessageKind.SNAPSHOT_REPLY,
    ):
        assert cluster.feed("b", Received(Message(kind, C, B, 1, 1))) == []


def test_a_follower_that_asks_in_vain_follows_again() -> None:
    cluster = elected()
    cluster.tick("b", 25)
    cluster.drop()
    for sender in (A, C):
        refusal = Message(MessageKind.PRE_VOTE_REPLY, sender, B, 1, reject=True)
        cluster.feed("b", Received(refusal))
    assert cluster.replicas[B].overview()["role"] == "follower"


def test_the_last_voter_that_leaves_tells_nobody_to_stand() -> None:
    """A learner cannot take over; the group is at an end, not in an election without end."""
    cluster = Cluster("a", learners="b")
    cluster.elect("a")
    cluster.stabilize()
    token = cluster.change("a", "", "ab")
    assert cluster.replies[token].reply == b"a group needs at least one voter"
    assert cluster.replicas[A].is_leader


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
    assert dice.asked[-1] == (1, config.gone_leader_ticks_max + 1)


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
