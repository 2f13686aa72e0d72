"""Changes of membership, and configurations in the log and on disk."""

from __future__ import annotations

import random

import pytest

from brokerd.raft import membership
from brokerd.raft.errors import CorruptEntryError
from brokerd.raft.inputs import Received, TransferLeadership
from brokerd.raft.log import RaftLog
from brokerd.raft.membership import (
    MEMBERS_MAX,
    ConfigurationHistory,
    encode_configuration,
    fault_of_configuration,
)
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
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import Cluster, command, elected, kinds

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")

ABC = Configuration((A, B, C))


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


def test_one_membership_change_at_a_time_and_one_member_each() -> None:
    """Raft thesis §4.1"""
    cluster = elected("abcde")
    both = cluster.change("a", "abc")
    first = cluster.change("a", "abcd")
    second = cluster.change("a", "abc")
    cluster.stabilize()
    assert cluster.replies[both].reply == b"only one member may change at a time"
    assert cluster.replies[second].reply == b"another change is under way"
    assert cluster.replies[first].accepted


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


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(first + i, term, EntryKind.COMMAND, bytes(9)) for i, term in enumerate(terms)]


def test_configuration_survives_its_codec() -> None:
    configuration = Configuration((A, B, C), (D, NodeId("n" * 255)))
    data = membership.encode_configuration(configuration)
    assert membership.decode_configuration(data) == configuration


def test_damaged_configuration_is_an_error_and_nothing_else() -> None:
    data = membership.encode_configuration(ABC)
    for length in range(len(data)):
        with pytest.raises(CorruptEntryError):
            membership.decode_configuration(data[:length])
    rng = random.Random(1)
    for _ in range(500):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            configuration = membership.decode_configuration(bytes(damaged))
        except CorruptEntryError:
            continue
        assert membership.fault_of_configuration(configuration) is None
    with pytest.raises(CorruptEntryError):
        membership.decode_configuration(data + b"x")


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (Configuration((A, B)), None),
        (Configuration((A, B, C, D)), None),
        (Configuration((A, B, C), (D,)), None),
        (Configuration((A, B), (C,)), None),
        (ABC, "nothing changes"),
        (Configuration((A,)), "only one member"),
        (Configuration((A, B, D)), "only one member"),
        (Configuration(()), "at least one voter"),
        (Configuration((A, C, B, D)), "not sorted"),
        (Configuration((A, B, C), (C,)), "named twice"),
        (Configuration((NodeId(""), A, B, C)), "empty or too long"),
    ],
)
def test_only_one_member_changes_at_a_time(wanted: Configuration, fault: str | None) -> None:
    """Raft thesis §4.1."""
    found = membership.fault_of_change(ABC, wanted)
    assert found is None if fault is None else fault in (found or "")


def test_history_of_configurations_falls_back_when_truncated() -> None:
    history = membership.ConfigurationHistory(ABC)
    wider = Configuration((A, B, C, D))
    history.append(5, wider)
    assert history.current == wider
    assert history.at(4) == ABC
    history.truncate(5)
    assert history.current == ABC
    history.append(6, wider)
    history.settle(6)
    history.truncate(6)
    assert history.current == wider


def test_configuration_before_an_uncommitted_one_is_found_after_a_restart() -> None:
    wider = Configuration((A, B, C, D))
    disk = FakeDisk()
    disk.log = entries(1, 1, 1)
    disk.log.append(Entry(3, 1, EntryKind.CONFIG, membership.encode_configuration(wider)))
    log = RaftLog(disk, commit=1)
    history = membership.recover(log, disk, wider, ABC, 1 << 20)
    assert history.current == wider
    history.truncate(3)
    assert history.current == ABC


def ignorant_of_its_group() -> Cluster:
    """Return a group of three, of which `c` has nothing and does not know who belongs to it."""
    cluster = Cluster("abc")
    cluster.joining = "c"
    cluster.restart("c")
    return cluster


def test_a_first_member_that_comes_late_is_told_who_belongs_to_the_group() -> None:
    """Its log is whole without that, and it could not stand for election (cluster, seed 5900)."""
    cluster = ignorant_of_its_group()
    cluster.elect("a", "a", "b")
    cluster.propose("a", "x")
    cluster.stabilize()
    for _ in range(3):
        cluster.tick("a", cluster.config.heartbeat_ticks)
        cluster.stabilize()
    replica = cluster.replicas[NodeId("c")]
    assert replica.configuration == cluster.bootstrap
    # Once, however many answers said so.
    assert replica.last_index == 3
    assert cluster.applied("c") == ["x"]


def test_who_asks_and_is_no_member_is_told_nothing() -> None:
    cluster = elected()
    last = cluster.replicas[NodeId("a")].last_index
    for sender, force in (("d", True), ("b", False)):
        kind = MessageKind.APPEND_REPLY
        message = Message(kind, NodeId(sender), NodeId("a"), 1, last, force=force)
        cluster.feed("a", Received(message))
    assert cluster.replicas[NodeId("a")].last_index == last


def test_who_will_find_it_in_the_log_is_told_nothing_more() -> None:
    cluster = ignorant_of_its_group()
    cluster.elect("a", "a", "b")
    cluster.change("a", "abc", "d")
    cluster.stabilize("a", "b")
    last = cluster.replicas[NodeId("a")].last_index
    message = Message(MessageKind.APPEND_REPLY, NodeId("c"), NodeId("a"), 1, last - 1, force=True)
    cluster.feed("a", Received(message))
    assert cluster.replicas[NodeId("a")].last_index == last
