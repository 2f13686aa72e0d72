"""The deadline wheel of many connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerd.server import timers


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
