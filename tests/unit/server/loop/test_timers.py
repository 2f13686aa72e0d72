"""The deadline wheel of many connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerd.server.loop import timers


class _Member:
    def __init__(self, act: Callable[[int], int | None]) -> None:
        self.act = act

    def deadline_reached(self, now_ms: int) -> int | None:
        return self.act(now_ms)


@pytest.mark.filterwarnings("error")
async def test_a_failing_member_does_not_stop_the_clock_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timers, "RESOLUTION_MS", 1)
    wheel = timers.DeadlineWheel()
    reached = asyncio.Event()

    def broken(_: int) -> int | None:
        raise ValueError("a defect")

    def fine(_: int) -> int | None:
        reached.set()
        return None

    wheel.watch(_Member(broken), wheel.now_ms())
    wheel.watch(_Member(fine), wheel.now_ms() + 2)
    async with asyncio.timeout(60):
        await reached.wait()
    assert "a timer failed" in caplog.text
    wheel.close()


async def test_a_member_is_looked_at_once_at_its_earliest_deadline_and_not_when_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "RESOLUTION_MS", 1)
    wheel = timers.DeadlineWheel()
    calls: list[str] = []
    last = asyncio.Event()

    def note(name: str) -> Callable[[int], int | None]:
        def act(_: int) -> int | None:
            calls.append(name)
            if name == "last":
                last.set()
            return None

        return act

    twice, gone = _Member(note("twice")), _Member(note("gone"))
    now = wheel.now_ms()
    wheel.watch(twice, now + 1)
    wheel.watch(twice, now)
    wheel.watch(gone, now)
    wheel.forget(gone)
    wheel.watch(_Member(note("last")), now + 5)
    async with asyncio.timeout(60):
        await last.wait()
    assert calls == ["twice", "last"]
    wheel.close()


async def test_members_are_looked_at_in_time_and_those_near_each_other_together() -> None:
    """R-HB-1: within a tenth of the shortest heartbeat interval, and no timer for each of many."""
    wheel = timers.DeadlineWheel()
    looks: list[tuple[int, int]] = []
    done = asyncio.Event()

    def at(deadline_ms: int) -> Callable[[int], int | None]:
        def act(now_ms: int) -> int | None:
            looks.append((deadline_ms, now_ms))
            if len(looks) == len(deadlines):
                done.set()
            return None

        return act

    start = wheel.now_ms()
    # The nearest comes last: the timer is set anew for it.
    deadlines = [start + 400 + each for each in range(20)] + [start + 50]
    for deadline_ms in deadlines:
        wheel.watch(_Member(at(deadline_ms)), deadline_ms)
    async with asyncio.timeout(60):
        await done.wait()
    assert looks[0][0] == start + 50
    assert all(deadline_ms <= now_ms for deadline_ms, now_ms in looks)
    assert looks[0][1] < start + 400
    assert len({now_ms for _, now_ms in looks}) <= 3
    wheel.close()
