"""Replica: the order between consensus, disk, machine, replies and effects."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from brokerd.raft.actions import RoleChanged, SaveSnapshot
from brokerd.raft.config import RaftConfig
from brokerd.raft.errors import ConfigurationError, MisuseError
from brokerd.raft.inputs import (
    DeadlineReached,
    LeaderAlive,
    PeerUnreachable,
    Persisted,
    Received,
    Tick,
    TransferLeadership,
)
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.raft.replica import REFUSED_OVERLOADED, REFUSED_TOO_LARGE
from tests.unit.raft.cluster import Cluster, elected, hand_over, kinds

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")


def test_proposal_is_answered_once_applied_with_the_machines_reply() -> None:
    cluster = Cluster()
    cluster.elect("a")
    (token,) = cluster.propose("a", "hello", now_ms=77)
    assert token not in cluster.replies
    cluster.stabilize()
    reply = cluster.replies[token]
    assert (reply.accepted, reply.reply, reply.leader) == (True, b"HELLO", A)
    assert all(cluster.applied(n) == ["hello"] for n in "abc")
    meta = cluster.machines[B].metas[0]
    assert (meta.index, meta.term, meta.now_ms) == (2, 1, 77)


def test_nothing_is_acknowledged_before_a_majority_has_synced() -> None:
    """G1: a confirm means that a majority's disks have it."""
    cluster = Cluster()
    cluster.elect("a")
    (token,) = cluster.propose("a", "x")
    cluster.deliver()
    cluster.deliver()
    assert token not in cluster.replies
    cluster.sync("a")
    assert token not in cluster.replies
    cluster.sync("b")
    cluster.deliver("a")
    assert cluster.replies[token].accepted


def test_leader_commits_by_its_followers_while_its_own_sync_is_pending() -> None:
    """Raft thesis §10.2.1: the leader writes in parallel and counts itself only when done."""
    cluster = Cluster()
    cluster.elect("a")
    (token,) = cluster.propose("a", "x")
    cluster.deliver("b", "c")
    cluster.sync("b")
    cluster.deliver("a")
    assert token not in cluster.replies
    cluster.sync("c")
    cluster.deliver("a")
    assert cluster.replies[token].accepted
    assert cluster.disks[A].last_index() == 1


def test_proposal_at_a_follower_is_refused_at_once_and_names_the_leader() -> None:
    cluster = Cluster()
    cluster.elect("a")
    (token,) = cluster.propose("b", "x")
    reply = cluster.replies[token]
    assert (reply.accepted, reply.leader) == (False, A)


def test_pending_proposals_are_refused_when_leadership_is_lost() -> None:
    cluster = Cluster()
    cluster.elect("a")
    (token,) = cluster.propose("a", "lost")
    cluster.drop()
    cluster.restart("b")
    # c keeps the lease of a until it has not heard it for a while.
    cluster.tick("c", 10)
    cluster.elect("b", "b", "c")
    cluster.propose("b", "kept")
    cluster.stabilize("b", "c")
    cluster.tick("b", 2)
    cluster.stabilize()
    reply = cluster.replies[token]
    assert (reply.accepted, reply.leader) == (False, B)
    cluster.tick("b", 2)
    cluster.stabilize()
    assert cluster.applied("a") == ["kept"]


def test_effects_are_realised_by_the_leader_only_and_after_the_reply() -> None:
    cluster = Cluster()
    cluster.elect("a")
    assert cluster.realised == [("a", 1, "again")]
    order: list[str] = []
    cluster.watch = lambda node, action: order.append(f"{node} {type(action).__name__}")
    cluster.propose("a", "x")
    cluster.stabilize()
    assert cluster.realised[1:] == [("a", 2, "x")]
    assert order.index("a Reply") < order.index("a Realise")


def test_effects_are_realised_everywhere_if_the_machine_says_so() -> None:
    cluster = Cluster(realise_everywhere=True)
    cluster.elect("a")
    cluster.propose("a", "x")
    cluster.stabilize()
    assert sorted(cluster.realised)[-2:] == [("b", 2, "x"), ("c", 2, "x")]


def test_restart_applies_again_without_effects_and_new_leader_gets_them_all_again() -> None:
    cluster = Cluster("a", config=RaftConfig())
    cluster.elect("a")
    tokens = cluster.propose("a", "x", "y")
    cluster.stabilize()
    assert [cluster.replies[t].reply for t in tokens] == [b"X", b"Y"]
    cluster.restart("a")
    cluster.realised.clear()
    cluster.feed("a", Tick(5))
    cluster.elect("a")
    assert cluster.applied("a") == ["x", "y"]
    assert cluster.realised == [("a", 4, "again")]


def test_committed_entries_of_the_hard_state_are_applied_by_the_first_handle() -> None:
    cluster = Cluster(config=RaftConfig())
    cluster.elect("a")
    for text in ("x", "y", "z"):
        cluster.propose("a", text)
        cluster.stabilize()
    cluster.restart("b")
    assert cluster.applied("b") == []
    cluster.feed("b", Tick(5))
    assert cluster.applied("b")[:1] == ["x"]
    assert not cluster.replicas[B].is_quiet


def test_budget_of_proposals_is_bounded_and_refusal_names_this_node() -> None:
    config = RaftConfig(proposals_bytes_max=10, proposals_max=3, command_bytes_max=100)
    cluster = Cluster(config=config)
    cluster.elect("a")
    fits, over = cluster.propose("a", "12345678", "123")
    (huge,) = cluster.propose("a", "x" * 101)
    assert fits not in cluster.replies
    assert (cluster.replies[over].reply, cluster.replies[over].leader) == (REFUSED_OVERLOADED, A)
    assert (cluster.replies[huge].reply, cluster.replies[huge].leader) == (REFUSED_TOO_LARGE, A)
    cluster.stabilize()
    assert cluster.replies[fits].accepted
    (large,) = cluster.propose("a", "x" * 100)
    cluster.stabilize()
    assert cluster.replies[large].accepted
    many = cluster.propose("a", "1", "2", "3", "4")
    cluster.stabilize()
    assert [cluster.replies[t].accepted for t in many] == [True, True, True, False]


def test_snapshot_is_saved_after_enough_entries_and_restored_at_restart() -> None:
    cluster = Cluster(config=RaftConfig(snapshot_entries=4))
    cluster.elect("a")
    for number in range(6):
        cluster.propose("a", f"m{number}")
        cluster.stabilize()
    disk = cluster.disks[A]
    assert disk.first_index() == 5
    assert disk.entry_data(4) is not None
    assert disk.entry_data(3) is None
    cluster.restart("a")
    assert cluster.applied("a") == ["m0", "m1", "m2"]
    assert cluster.replicas[A].configuration == cluster.bootstrap
    cluster.feed("a", Tick(5))
    cluster.elect("b")
    cluster.propose("b", "m6")
    cluster.stabilize()
    assert cluster.applied("a") == [f"m{n}" for n in range(7)]


def test_restart_reads_no_live_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bodies of a long queue stay on disk (design/replication.md §2.7)."""
    cluster = Cluster(config=RaftConfig(snapshot_entries=4))
    cluster.elect("a")
    for number in range(6):
        cluster.propose("a", f"m{number}")
        cluster.stabilize()

    def refuse(_: object) -> None:
        raise AssertionError("all live entries were read")

    monkeypatch.setattr(type(cluster.disks[A]), "snapshot", refuse)
    cluster.restart("a")
    assert cluster.applied("a") == ["m0", "m1", "m2"]


def test_snapshot_waits_until_the_leaders_own_disk_has_what_it_covers() -> None:
    cluster = Cluster(config=RaftConfig(snapshot_entries=2))
    cluster.elect("a")
    saved: list[SaveSnapshot] = []

    def note(node: NodeId, action: object) -> None:
        if node == A and isinstance(action, SaveSnapshot):
            saved.append(action)

    cluster.watch = note
    cluster.propose("a", "x", "y")
    cluster.deliver("b", "c")
    cluster.sync("b")
    cluster.sync("c")
    cluster.deliver("a")
    assert cluster.replicas[A].applied_index == 3
    assert saved == []
    cluster.stabilize()
    cluster.propose("a", "z")
    cluster.stabilize()
    assert [s.snapshot.index for s in saved] == [4]


def test_follower_that_is_too_far_behind_gets_a_snapshot_with_live_entries() -> None:
    cluster = Cluster(config=RaftConfig(snapshot_entries=3))
    cluster.elect("a")
    for number in range(7):
        cluster.propose("a", f"m{number}")
        cluster.stabilize("a", "b")
    cluster.feed("a", PeerUnreachable(C))
    kinds = []
    cluster.watch = lambda node, action: kinds.append(
        getattr(getattr(action, "message", None), "kind", None)
    )
    cluster.tick("a", 2)
    cluster.stabilize()
    assert MessageKind.SNAPSHOT in kinds
    assert MessageKind.SNAPSHOT_REPLY in kinds
    assert cluster.applied("c") == [f"m{n}" for n in range(7)]
    snapshot = cluster.disks[C].snapshot()
    assert snapshot is not None
    assert [entry.index for entry in snapshot.live] == [snapshot.index]
    assert cluster.disks[C].entry_data(snapshot.index) is not None
    assert cluster.replicas[A].match_of(C) == cluster.replicas[A].last_index


def test_quiet_group_wakes_up_for_trouble_and_calms_down() -> None:
    """design/replication.md §2.1: quiet groups are not ticked."""
    cluster = Cluster()
    assert not cluster.replicas[A].is_quiet
    cluster.elect("a")
    assert not any(replica.is_quiet for replica in cluster.replicas.values()), "what is committed"
    cluster.rest()
    assert all(replica.is_quiet for replica in cluster.replicas.values())
    cluster.propose("a", "x")
    assert not cluster.replicas[A].is_quiet
    cluster.stabilize()
    cluster.rest()
    assert all(replica.is_quiet for replica in cluster.replicas.values())
    cluster.feed("a", PeerUnreachable(B))
    assert not cluster.replicas[A].is_quiet
    cluster.tick("a", 2)
    cluster.stabilize()
    assert all(replica.is_quiet for replica in cluster.replicas.values())


def test_members_that_are_down_are_not_waited_for_where_the_others_are_a_majority() -> None:
    """With one member down each of ten thousand groups was ticked ten times a second."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.rest()
    leader = cluster.replicas[A]
    cluster.crash("b")
    cluster.feed("a", PeerUnreachable(B))
    assert leader.is_consensus_quiet({B})
    assert not leader.is_consensus_quiet({C}), "b is to be looked for"
    cluster.propose("a", "x")
    assert not leader.is_consensus_quiet({B}), "c does not have it yet"
    cluster.stabilize("a", "c")
    cluster.tick("a")
    cluster.sync("a")
    assert leader.is_consensus_quiet({B})
    assert not leader.is_consensus_quiet({B, C}), "it may not lead any more"
    assert not leader.is_quiet
    # b is back: it is not down any more, and gets what it missed.
    cluster.start("b")
    assert not leader.is_consensus_quiet(())
    cluster.tick("a", 2)
    cluster.stabilize()
    assert leader.is_consensus_quiet(())
    assert cluster.applied("b") == ["x"]


def test_group_with_a_deadline_is_not_quiet_and_proposes_one_tick_command() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.rest()
    cluster.machines[A].deadline_ms = 50
    assert not cluster.replicas[A].is_quiet
    assert cluster.replicas[A].is_consensus_quiet(())
    assert cluster.replicas[A].next_deadline_ms == 50
    assert cluster.replicas[B].is_quiet
    cluster.tick("a", 1, now_ms=49)
    last = cluster.replicas[A].last_index
    cluster.tick("a", 3, now_ms=50)
    assert cluster.replicas[A].last_index == last + 1
    # One is on its way: until it is applied the time that has passed is no news.
    assert cluster.replicas[A].next_deadline_ms is None
    cluster.stabilize()
    assert cluster.applied("b") == ["tick"]
    cluster.rest()
    assert cluster.replicas[A].is_quiet


def test_a_deadline_is_no_tick_of_the_clock() -> None:
    """It comes when it likes: a leader that hears of many has not waited longer for its members."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.rest()
    cluster.machines[A].deadline_ms = 50
    last = cluster.replicas[A].last_index
    for _ in range(50):
        cluster.feed("a", DeadlineReached(49))
    assert cluster.replicas[A].is_leader
    assert cluster.replicas[A].last_index == last
    for _ in range(50):
        cluster.feed("a", DeadlineReached(50))
    assert cluster.replicas[A].is_leader
    assert cluster.replicas[A].last_index == last + 1
    cluster.stabilize()
    assert cluster.applied("b") == ["tick"]
    cluster.feed("b", DeadlineReached(90))
    assert cluster.replicas[B].last_index == last + 1


def test_hearing_the_leaders_node_holds_elections_off_until_the_leader_is_doubted() -> None:
    cluster = Cluster()
    cluster.elect("a")
    for _ in range(50):
        cluster.tick("b")
        cluster.feed("b", LeaderAlive())
    assert cluster.replicas[B].leader == A
    cluster.feed("b", PeerUnreachable(A))
    assert not cluster.replicas[B].is_quiet
    for _ in range(20):
        cluster.tick("b")
        cluster.feed("b", LeaderAlive())
    assert cluster.replicas[B].leader is None


def test_restarted_member_of_a_quiet_group_finds_the_leader_again() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.restart("c")
    assert not cluster.replicas[C].is_quiet
    cluster.tick("c", 20)
    cluster.stabilize()
    assert cluster.replicas[C].leader == A
    assert cluster.replicas[A].term == 1
    cluster.rest()
    assert all(replica.is_quiet for replica in cluster.replicas.values())


def test_restarted_leader_of_a_quiet_group_is_replaced_though_its_node_is_heard() -> None:
    """The simulator found this: leases that only hearsay prolonged blocked every election."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.restart("a")
    for _ in range(60):
        for name in "abc":
            if not cluster.replicas[NodeId(name)].is_quiet:
                cluster.tick(name)
            if cluster.replicas[NodeId(name)].leader == A and name != "a":
                cluster.feed(name, LeaderAlive())
        cluster.stabilize()
    assert any(replica.is_leader for replica in cluster.replicas.values())


def test_leadership_is_transferred_and_proposals_meanwhile_are_refused() -> None:
    """Raft thesis §3.10."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.feed("a", TransferLeadership(B))
    (token,) = cluster.propose("a", "x")
    assert cluster.replies[token].reply == REFUSED_OVERLOADED
    cluster.stabilize()
    assert cluster.replicas[B].is_leader
    assert cluster.replicas[A].leader == B


def test_transfer_to_a_silent_member_is_given_up_after_an_election_timeout() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.feed("a", TransferLeadership(B))
    cluster.drop()
    for _ in range(10):
        cluster.tick("a")
        cluster.stabilize("a", "c")
    (token,) = cluster.propose("a", "x")
    cluster.stabilize("a", "c")
    assert cluster.replies[token].accepted


def test_role_changes_are_announced_once() -> None:
    cluster = Cluster()
    seen: list[tuple[str, RoleChanged]] = []
    cluster.watch = lambda node, action: (
        seen.append((node, action)) if isinstance(action, RoleChanged) else None
    )
    cluster.elect("a")
    assert [(n, r.leader, r.is_leader) for n, r in seen if r.leader] == [
        ("a", A, True),
        ("b", A, False),
        ("c", A, False),
    ]


def test_group_of_one_works_alone() -> None:
    cluster = Cluster("a")
    cluster.tick("a", 20)
    cluster.stabilize()
    (token,) = cluster.propose("a", "x")
    assert token not in cluster.replies
    cluster.stabilize()
    assert cluster.replies[token].accepted
    cluster.rest()
    assert cluster.replicas[A].is_quiet


def test_acknowledging_a_write_that_was_never_asked_for_is_an_error() -> None:
    cluster = Cluster()
    with pytest.raises(MisuseError):
        cluster.feed("a", Persisted(99))


@pytest.mark.parametrize(
    "change",
    [
        {"tick_ms": 0},
        {"election_ticks_min": 30},
        {"heartbeat_ticks": 9},
        {"proposals_bytes_max": -1},
    ],
)
def test_senseless_settings_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        replace(RaftConfig(), **change).validate()


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
    """design/hot-path.md, "Scale": what a snapshot costs per command does not grow with depth."""
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


@pytest.mark.plain
def test_a_closed_replica_goes_with_its_last_user() -> None:
    """A member whose queues are deleted gets their memory back without Python's collector."""
    cluster = Cluster()
    cluster.elect("a")
    replica = cluster.replicas.pop(A)
    left = weakref.ref(replica._node)
    gc.disable()
    try:
        replica.close()
        del replica
        assert left() is None
    finally:
        gc.enable()
