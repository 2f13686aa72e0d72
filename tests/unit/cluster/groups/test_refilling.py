"""When a damaged replica counts as whole again, in a group in which nothing moves any more (G8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.refilling import Refilling
from brokerd.cluster.groups.replica_health import REQUIRES_VOTE, ReplicaHealth
from brokerd.cluster.groups.write_queue import RefillStep, WriteQueue
from brokerd.raft.inputs import Received
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.storage.group_log import GroupLog
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import (
    entry,
    find,
    flip,
    install,
    open_log,
    put_range,
    save,
    segment_paths,
)

UID = 7
A, B = NodeId("a"), NodeId("b")


@dataclass
class FakeReplica:
    applied_index: int
    term: int = 1


@dataclass
class FakeMachine:
    live: list[tuple[int, int]] = field(default_factory=list)

    def live_indexes(self) -> list[tuple[int, int]]:
        return self.live


@dataclass(eq=False)
class FakeDriver:
    log: GroupLog
    replica: FakeReplica
    health: ReplicaHealth
    machine: FakeMachine = field(default_factory=FakeMachine)
    uid: int = UID
    log_uid: int = UID
    is_closed: bool = False
    is_volatile: bool = False
    is_contradicted: bool = False
    error: Exception | None = None
    refilling: Any = None

    def learn(self, event: replica_health.Event) -> replica_health.Action | None:
        action = self.health.handle(event)
        if not self.health.may_vote:
            self.refilling.damaged(self)
        return action

    def catch_up(self) -> None:
        """All is applied that is known to be committed."""


@dataclass
class FakeHost:
    """The half of the host that decides about refills; steps for the writer are kept."""

    steps: list[Any] = field(default_factory=list)
    replicas: dict[int, FakeDriver] = field(default_factory=dict)
    renewed: list[NodeId] = field(default_factory=list)
    node: NodeId = A

    def renew(self, driver: Driver, damaged: NodeId) -> None:
        self.renewed.append(damaged)

    def driver_of(self, uid: int) -> Any:
        return self.replicas.get(uid)

    def drivers(self) -> list[Any]:
        return list(self.replicas.values())

    def add(self, step: Any) -> None:
        self.steps.append(step)


class Bed:
    """A member that cannot read entry 3, which its snapshot at 5 refers to."""

    def __init__(self, wal: WriteAheadLog, applied_index: int, target: int) -> None:
        self.wal = wal
        self.host = FakeHost()
        self.refilling = Refilling(self.host, wal, cast(WriteQueue, self.host), self.host.renew)
        self.machine = FakeMachine([(3, 4)])
        self.health = ReplicaHealth()
        self.driver = FakeDriver(
            wal.log(UID), FakeReplica(applied_index), self.health, self.machine
        )
        self.driver.refilling = self.refilling
        self.driver.learn(replica_health.LogOpened(is_damaged=True))
        self.health.target = self.health.heard = target
        self.host.replicas[UID] = self.driver

    def heard(self, message: Message) -> None:
        """A message of a leader is on its way to the replica."""
        self.refilling.heard(cast(Driver, self.driver), message)

    def look_again(self) -> list[type]:
        """The replica has handled something, and then a while passes."""
        self.refilling.handled(cast(Driver, self.driver))
        assert self.refilling.lacking() == [UID] * self.health.needs_repair
        return [type(step) for step in self.host.steps]


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[WriteAheadLog]:
    log = open_log(tmp_path)
    put_range(log, UID, 1, 6)
    save(log, UID, 5, [(3, 4)])
    put_range(log, UID, 6, 9)
    log.close()
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(3).data))
    log = open_log(tmp_path)
    assert set(log.log(UID).unreadable) == {3}
    yield log
    log.close()


def test_a_quiet_replica_is_whole_once_the_message_that_it_cannot_read_is_settled(
    wal: WriteAheadLog,
) -> None:
    """The leader sent its last message while the entry was still needed.  Nobody has told the log
    since the start what the machine refers to (simulator seed 101000).
    """
    bed = Bed(wal, applied_index=8, target=8)
    assert bed.look_again() == []
    assert bed.health.needs_repair
    bed.machine.live = [(7, 8)]
    assert bed.look_again() == [RefillStep]
    assert not wal.log(UID).damaged
    assert not bed.health.needs_repair
    assert bed.look_again() == [RefillStep]


def test_a_snapshot_made_since_stands_for_what_the_leader_had_committed(
    wal: WriteAheadLog,
) -> None:
    bed = Bed(wal, applied_index=7, target=6)
    assert bed.look_again() == []
    bed.machine.live = []
    save(wal, UID, 7, [])
    assert bed.look_again() == [RefillStep]


def test_a_snapshot_of_an_earlier_term_does_not(wal: WriteAheadLog) -> None:
    """A leader may not know how far its predecessor had come (Raft thesis §3.6.2)."""
    bed = Bed(wal, applied_index=7, target=6)
    bed.machine.live = []
    save(wal, UID, 7, [])
    bed.driver.replica.term = 2
    assert bed.look_again() == []


@pytest.mark.parametrize(("applied_index", "target"), [(7, 8), (8, 0)])
def test_a_replica_that_has_not_what_its_leader_has_committed_waits(
    wal: WriteAheadLog, applied_index: int, target: int
) -> None:
    """Or that has not heard what that is."""
    bed = Bed(wal, applied_index, target)
    bed.machine.live = []
    assert bed.look_again() == []


@pytest.mark.parametrize(
    ("term", "snapshot_term", "is_whole"), [(1, 1, False), (2, 1, False), (2, 2, True)]
)
def test_a_snapshot_counts_if_it_reaches_into_its_leaders_term(
    wal: WriteAheadLog, term: int, snapshot_term: int, is_whole: bool
) -> None:
    """Otherwise more was committed than it holds, perhaps with this member's help (G8).

    Nothing may follow it in a group at rest.
    """
    bed = Bed(wal, applied_index=9, target=0)
    bed.machine.live = []
    bed.driver.replica.term = 2
    snapshot = install(wal, UID, 9, snapshot_term, [])
    message = Message(MessageKind.SNAPSHOT, A, B, term, 9, snapshot_term, snapshot=snapshot)
    bed.heard(message)
    assert bed.look_again() == [RefillStep] * is_whole


def test_an_entry_that_left_no_trace_is_missed_by_who_refers_to_it(tmp_path: Path) -> None:
    """The header of its record is damaged: not even its group is known (simulator seed 9146)."""
    log = open_log(tmp_path)
    put_range(log, UID, 1, 6)
    save(log, UID, 5, [(1, 5)])
    put_range(log, UID, 6, 9)
    log.close()
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(3).data) - 20)
    log = open_log(tmp_path)
    assert log.log(UID).damaged
    assert not log.log(UID).unreadable
    bed = Bed(log, applied_index=8, target=8)
    # Messages leave the queue, one after the other.
    for live, is_held in (([(1, 5)], False), ([(2, 5)], False), ([(2, 3), (4, 5), (6, 8)], True)):
        assert log.log(UID).holds(live) == is_held
        bed.driver.machine.live = live
        assert bed.look_again() == [RefillStep] * is_held
    log.close()


def test_a_target_does_not_run_away_from_a_busy_replica(wal: WriteAheadLog) -> None:
    """Each command of a leader says that more is committed; the replica is one behind for ever."""
    bed = Bed(wal, applied_index=0, target=0)
    bed.machine.live = []
    for commit in range(5, 9):
        bed.driver.replica.applied_index = commit - 1
        message = Message(MessageKind.APPEND, A, B, 1, commit, 1, commit=commit)
        bed.heard(message)
    assert [type(step) for step in bed.host.steps] == [RefillStep] * 3


def test_a_target_of_a_leaders_predecessor_is_replaced_once_it_is_reached(
    wal: WriteAheadLog,
) -> None:
    """What a leader without a commit of its own term says is not enough (thesis §3.6.2)."""
    bed = Bed(wal, applied_index=7, target=7)
    bed.machine.live = []
    bed.driver.replica.term = 2
    assert bed.look_again() == []
    install(wal, UID, 9, 2, [])
    message = Message(MessageKind.APPEND, A, B, 2, 9, 2, commit=9)
    bed.heard(message)
    assert bed.look_again() == []
    bed.driver.replica.applied_index = 9
    assert bed.look_again() == [RefillStep]


def test_what_is_on_its_way_to_the_disk_is_not_lacking(tmp_path: Path) -> None:
    """Otherwise a replica that is looked at as soon as it has handled a command would take what
    came with it for lost.
    """
    log = open_log(tmp_path)
    put_range(log, UID, 1, 9)
    bed = Bed(log, applied_index=10, target=8)
    bed.machine.live = [(3, 5), (7, 11)]
    assert bed.look_again() == [RefillStep]
    assert not bed.health.needs_repair
    log.close()


def test_a_group_that_is_closed_meanwhile_lacks_nothing(wal: WriteAheadLog) -> None:
    bed = Bed(wal, applied_index=8, target=8)
    assert bed.look_again() == []
    assert bed.health.needs_repair
    bed.driver.is_closed = True
    assert bed.refilling.lacking() == []


@pytest.mark.parametrize("event", [replica_health.Released(), replica_health.LogForgotten()])
def test_a_replica_that_only_another_log_helps_is_named_for_repair(
    wal: WriteAheadLog, event: replica_health.Event
) -> None:
    """Whatever it holds by now; its leader's word counts no more."""
    bed = Bed(wal, applied_index=8, target=8)
    bed.machine.live = []
    bed.driver.learn(event)
    assert bed.refilling.lacking() == [UID]
    assert bed.host.steps == []
    bed.driver.error = OSError("stopped")
    assert bed.refilling.lacking() == []


def test_a_replica_that_its_leader_can_refill_waits_for_it(wal: WriteAheadLog) -> None:
    bed = Bed(wal, applied_index=8, target=8)
    assert bed.refilling.waiting() == [UID]
    bed.driver.is_contradicted = True
    assert bed.refilling.waiting() == [], "it waits for somebody's word"
    bed.driver.is_contradicted = False
    bed.driver.error = OSError("stopped")
    assert bed.refilling.waiting() == []
    bed.driver.error = None
    bed.driver.learn(replica_health.RefillRecorded())
    assert bed.refilling.waiting() == [], "it votes"
    assert bed.refilling.without_vote() == []
    bed.driver.learn(replica_health.LogForgotten())
    assert bed.refilling.without_vote() == [bed.driver]
    assert bed.refilling.waiting() == [], "only another log helps"


def test_a_member_with_a_new_disk_suspects_what_it_opens(wal: WriteAheadLog) -> None:
    bed = Bed(wal, applied_index=8, target=8)
    assert bed.refilling.suspect(UID)
    assert bed.health.is_suspected
    assert not bed.refilling.suspect(UID + 1)
    bed.driver.is_volatile = True
    assert not bed.refilling.suspect(UID), "it has no past"
    bed.refilling.release(UID + 1)
    assert not bed.health.needs_repair
    bed.refilling.release(UID)
    assert bed.health.needs_repair


def test_a_damaged_replica_gives_no_vote_that_was_asked_for_before_its_damage_was_known() -> None:
    """Such messages are kept for groups that are not open yet, and may wait among the inputs: two
    damaged members of three elected a leader with them, after a start (G8).
    """
    handled: list[MessageKind] = []

    class Listener:
        def handle(self, event: Received) -> list[Any]:
            handled.append(event.message.kind)
            return []

    replica: Any = Listener()
    nobody: Any = None
    driver = Driver(UID, replica, nobody, nobody, nobody, is_volatile=False)
    kinds = [*REQUIRES_VOTE, MessageKind.APPEND, MessageKind.HEARTBEAT]
    messages = [Received(Message(kind, A, B, 1)) for kind in kinds]
    driver.inputs += messages
    driver.health.handle(replica_health.RegressionSuspected())
    driver.run()
    assert handled == [MessageKind.APPEND, MessageKind.HEARTBEAT]
    driver.health.handle(replica_health.RefillRecorded())
    driver.inputs += messages
    driver.run()
    assert handled[2:] == kinds
