"""When a damaged replica counts as whole again, in a group in which nothing moves any more (G8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from brokerd.cluster.config import HostConfig
from brokerd.cluster.driver import Driver
from brokerd.cluster.host import Host
from brokerd.cluster.inbox import Inbox
from brokerd.cluster.write_queue import RefillStep, WriteQueue
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


@dataclass
class FakeDriver:
    log: GroupLog
    replica: FakeReplica
    refill_target: int
    refill_heard: int
    machine: FakeMachine = field(default_factory=FakeMachine)
    uid: int = UID
    log_uid: int = UID
    is_damaged: bool = True
    lacks_entries: bool = False
    error: Exception | None = None


@dataclass
class FakeHost:
    """The half of the host that decides about refills; steps for the writer are kept."""

    _wal: WriteAheadLog
    config: HostConfig = field(default_factory=HostConfig)
    steps: list[Any] = field(default_factory=list)

    @property
    def _queue(self) -> FakeHost:
        return self

    def add(self, step: Any) -> None:
        self.steps.append(step)


class Bed:
    """A member that cannot read entry 3, which its snapshot at 5 refers to."""

    def __init__(self, wal: WriteAheadLog, applied_index: int, target: int) -> None:
        self.wal = wal
        self.host = FakeHost(wal)
        self.inbox = Inbox(cast(Host, self.host), wal, cast(WriteQueue, self.host))
        self.machine = FakeMachine([(3, 4)])
        self.driver = FakeDriver(
            wal.log(UID), FakeReplica(applied_index), target, target, self.machine
        )

    def look_again(self) -> list[type]:
        self.inbox.look_again([cast(Driver, self.driver)])
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
    assert bed.driver.lacks_entries
    bed.machine.live = [(7, 8)]
    assert bed.look_again() == [RefillStep]
    assert not wal.log(UID).damaged
    assert not bed.driver.lacks_entries
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
    bed.inbox._note_refill_target(cast(Driver, bed.driver), message)
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
        bed.inbox._look_for_refill(cast(Driver, bed.driver), 1)
        bed.inbox._note_refill_target(cast(Driver, bed.driver), message)
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
    bed.inbox._note_refill_target(cast(Driver, bed.driver), message)
    assert bed.look_again() == []
    bed.driver.replica.applied_index = 9
    assert bed.look_again() == [RefillStep]
