"""Of many groups that wait for a tick each has its turn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.cluster.groups import group_clock, replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.group_clock import GroupClock
from brokerd.cluster.groups.replica_health import ReplicaHealth
from brokerd.raft.inputs import LeaderAlive, Tick
from brokerd.raft.messages import NodeId

A, B = NodeId("a"), NodeId("b")


@dataclass
class FakeReplica:
    """Waits for something, unless the member that it waits for is down."""

    waits_for: NodeId | None = A

    def is_consensus_quiet(self, down: Collection[NodeId]) -> bool:
        return self.waits_for is None or self.waits_for in down


@dataclass
class FakeDriver:
    uid: int
    replica: FakeReplica = field(default_factory=FakeReplica)
    leader: NodeId | None = B
    members: frozenset[NodeId] = frozenset((A, B))
    has_tick: bool = False
    health: ReplicaHealth = field(default_factory=ReplicaHealth)
    inputs: list[Any] = field(default_factory=list)
    has_rested: bool = False

    def rest(self) -> None:
        self.has_rested = True


class Rig:
    """A clock and five groups that want a tick."""

    def __init__(self) -> None:
        self.drivers = {uid: FakeDriver(uid) for uid in range(1, 6)}
        self.settled: list[int] = []
        self.clock = GroupClock(self.settled.append)
        self.clock.active = dict.fromkeys(self.drivers)

    def due(self, *down: NodeId) -> list[int]:
        drivers = cast(dict[int, Driver], self.drivers)
        return [driver.uid for driver in self.clock.due(drivers, down, self.failed)]

    def failed(self, driver: Driver, error: Exception) -> None:
        raise error


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(group_clock, "GROUPS_PER_TICK", 2)
    return Rig()


def test_each_tick_takes_the_next_groups(rig: Rig) -> None:
    assert rig.clock.round_ticks == 3
    assert [rig.due() for _ in range(4)] == [[1, 2], [3, 4], [5, 1], [2, 3]]
    assert rig.clock.active.keys() == rig.drivers.keys()


def test_a_group_that_has_run_meanwhile_keeps_its_place(rig: Rig) -> None:
    rig.due()
    rig.clock.active[4] = None
    assert rig.due() == [3, 4]


def test_groups_that_came_to_rest_are_taken_off(rig: Rig) -> None:
    rig.drivers[1].replica.waits_for = None
    assert rig.due() == [2]
    assert 1 not in rig.clock.active
    assert [driver.has_rested for driver in rig.drivers.values()] == [True] + 4 * [False]


def test_who_watches_is_told_what_moved(rig: Rig) -> None:
    moved = rig.clock.watch()
    # At first anything may be other than before.
    assert moved.take() == (set(rig.drivers), True)
    rig.drivers[1].replica.waits_for = rig.drivers[2].replica.waits_for = None
    rig.due()
    assert moved.take() == ({1, 2, 3, 4, 5}, False)
    assert moved.take() == ({3, 4, 5}, False)
    rig.clock.remove(3)
    rig.clock.remove(2)
    assert moved.take() == ({2, 3, 4, 5}, False)


def test_what_nobody_asks_for_is_not_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_clock, "MOVED_MAX", 2)
    moved = group_clock.Moved(())
    moved.note(1)
    assert moved.take() == (set(), True)
    for uid in (1, 2):
        moved.note(uid)
    assert moved.take() == ({1, 2}, False)
    for uid in (1, 2, 3, 4):
        moved.note(uid)
    assert moved.take() == (set(), True)


def test_who_is_down_is_not_waited_for(rig: Rig) -> None:
    assert [rig.due(A) for _ in range(3)] == [[], [], []]
    assert not rig.clock.active
    assert rig.clock.round_ticks == 1


def test_the_next_tick_waits_until_the_last_one_was_handled(rig: Rig) -> None:
    driver = rig.drivers[1]
    for _ in range(2):
        was_told = group_clock.tick(cast(Driver, driver), {B}, 7)
        assert driver.inputs == [LeaderAlive(), Tick(7)]
    assert not was_told
    driver.has_tick = False
    driver.health.handle(replica_health.RegressionSuspected())
    driver.inputs.clear()
    assert group_clock.tick(cast(Driver, driver), {A}, 8)
    assert driver.inputs == []


def test_what_waits_among_the_inputs_of_a_group_that_rests_is_handled_with_the_tick() -> None:
    """A late answer to a leader that knows all it needs; else the group would never be folded."""
    rig = Rig()
    driver = rig.drivers[3]
    driver.replica.waits_for = None
    driver.inputs.append("a late answer")
    assert 3 in rig.due()
    assert not driver.has_rested
    driver.inputs.clear()
    assert 3 not in rig.due()
    assert rig.settled == [3]
