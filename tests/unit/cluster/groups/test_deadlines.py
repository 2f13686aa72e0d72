"""Deadlines of machines: in time, together, and nothing for groups that have none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from brokerd.cluster.groups.deadlines import APART_MS, Deadlines
from brokerd.cluster.groups.driver import Driver
from brokerd.raft.inputs import DeadlineReached

TICK_MS = 100
START_MS = 1_000_000


@dataclass
class FakeReplica:
    deadline_ms: int | None = None
    error: Exception | None = None

    @property
    def next_deadline_ms(self) -> int | None:
        if self.error is not None:
            raise self.error
        return self.deadline_ms


@dataclass(eq=False)
class FakeDriver:
    uid: int
    replica: FakeReplica = field(default_factory=FakeReplica)
    deadline_ms: int | None = None
    inputs: list[Any] = field(default_factory=list)


class Timer:
    """The one timer of a virtual loop."""

    def __init__(self, at_ms: float, call: Callable[[], None]) -> None:
        self.at_ms, self.call = at_ms, call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Rig:
    """Groups of a host whose time is the test's."""

    def __init__(self, count: int = 3) -> None:
        self.now_ms = START_MS
        self.drivers = {uid: FakeDriver(uid) for uid in range(1, count + 1)}
        self.told: list[tuple[int, int]] = []
        self.stopped: list[int] = []
        self.timers: list[Timer] = []
        drivers = cast(dict[int, Driver], self.drivers)
        self.deadlines = Deadlines(drivers, TICK_MS, lambda: self.now_ms, self)
        self.deadlines._loop = cast(asyncio.AbstractEventLoop, self)
        self.deadlines.look()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_ms + delay_s * 1000, call))
        return self.timers[-1]

    def wake(self, driver: Driver) -> None:
        self.told.append((self.now_ms, driver.uid))

    def stop_replica(self, driver: Driver, error: Exception) -> None:
        self.stopped.append(driver.uid)

    def want(self, uid: int, deadline_ms: int | None) -> None:
        """The group has run, and wants this now."""
        self.drivers[uid].replica.deadline_ms = deadline_ms
        self.deadlines.note(cast(Driver, self.drivers[uid]))

    def pass_ms(self, time_ms: int) -> None:
        """Let time pass; no tick of the host is among it."""
        end_ms = self.now_ms + time_ms
        while True:
            due = [each for each in self.timers if not each.is_cancelled and each.at_ms <= end_ms]
            if not due:
                break
            assert len(due) == 1, "more than one timer"
            due[0].is_cancelled = True
            self.now_ms = max(self.now_ms, round(due[0].at_ms))
            due[0].call()
        self.now_ms = end_ms


async def test_a_group_is_told_at_its_deadline() -> None:
    rig = Rig()
    rig.want(1, START_MS + 43)
    rig.pass_ms(90)
    assert rig.told == [(START_MS + 43, 1)]
    assert rig.drivers[1].inputs == [DeadlineReached(START_MS + 43)]


async def test_what_is_due_after_the_next_tick_has_no_timer_until_then() -> None:
    rig = Rig()
    rig.want(1, START_MS + 10 * TICK_MS + 30)
    assert not rig.timers
    for _ in range(9):
        rig.pass_ms(TICK_MS)
        rig.deadlines.look()
    assert not rig.timers
    rig.pass_ms(TICK_MS)
    rig.deadlines.look()
    rig.pass_ms(40)
    assert rig.told == [(START_MS + 10 * TICK_MS + 30, 1)]


async def test_deadlines_near_each_other_share_a_look() -> None:
    rig = Rig(1000)
    for uid in rig.drivers:
        rig.want(uid, START_MS + 20 + uid % 4)
    rig.pass_ms(90)
    assert len(rig.told) == 1000
    assert {at_ms for at_ms, _ in rig.told} == {START_MS + 20, START_MS + 20 + APART_MS}


async def test_a_nearer_deadline_sets_the_timer_anew_and_a_later_one_does_not() -> None:
    rig = Rig()
    rig.want(1, START_MS + 50)
    rig.want(2, START_MS + 60)
    assert len(rig.timers) == 1
    rig.want(1, START_MS + 70)
    rig.want(3, START_MS + 10)
    rig.pass_ms(90)
    assert rig.told == [(START_MS + 10, 3), (START_MS + 60, 2), (START_MS + 70, 1)]


async def test_a_deadline_that_moved_or_is_none_any_more_wakes_nobody() -> None:
    """A lease that is renewed with each use: the group does not run for the time that passed."""
    rig = Rig()
    rig.want(1, START_MS + 10)
    rig.want(2, START_MS + 10)
    rig.want(1, START_MS + 500)
    rig.want(2, None)
    rig.pass_ms(90)
    assert rig.told == []
    assert rig.drivers[1].deadline_ms == START_MS + 500
    assert rig.drivers[2].deadline_ms is None


async def test_a_group_that_is_gone_or_cannot_say_is_passed_over() -> None:
    rig = Rig()
    for uid in rig.drivers:
        rig.want(uid, START_MS + 10)
    del rig.drivers[1]
    rig.drivers[2].replica.error = ValueError("a defect")
    rig.pass_ms(90)
    assert rig.told == [(START_MS + 10, 3)]
    assert rig.stopped == [2]


async def test_a_clock_that_is_put_back_stops_nothing() -> None:
    rig = Rig()
    rig.want(1, START_MS + 10)
    rig.pass_ms(20)
    rig.now_ms -= 3_600_000
    rig.deadlines.look()
    rig.want(2, rig.now_ms + 30)
    rig.pass_ms(50)
    assert [uid for _, uid in rig.told] == [1, 2]


async def test_after_the_end_no_timer_is_set() -> None:
    rig = Rig()
    rig.want(1, START_MS + 10)
    rig.deadlines.end()
    rig.want(2, START_MS + 5)
    rig.pass_ms(90)
    assert rig.told == []
