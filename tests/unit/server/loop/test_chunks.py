"""Walks in slices: all is seen, and what takes long is done a little at a time."""

from __future__ import annotations

import asyncio
import gc
import os
import time

import pytest

from brokerd.server.loop import chunks


class Clock:
    """Processor time that passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "thread_time", lambda: self.now)


async def walk(clock: Clock, count: int, each_s: float, size: int = chunks.CHUNK) -> list[int]:
    """Return how many each slice had, when one of them takes `each_s`."""
    seen: list[int] = []
    lengths = []
    async for some in chunks.in_chunks(range(count), size):
        seen += some
        lengths.append(len(some))
        clock.now += each_s * len(some)
    assert seen == list(range(count))
    return lengths


async def test_slices_become_as_long_as_a_turn_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    middling = await walk(clock, 1000, chunks.TURN_S / 20)
    assert 10 <= min(middling[1:-1]) <= max(middling[1:-1]) <= 20
    cheap = await walk(clock, 2000, 0.0)
    assert cheap[0] < chunks.CHUNK
    assert max(cheap) == cheap[-2] == chunks.CHUNK
    dear = await walk(clock, 1000, chunks.TURN_S)
    assert dear[1:-1] == [chunks.CHUNK_MIN] * (len(dear) - 2)


async def test_no_slice_is_longer_than_its_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert await walk(clock, 10, 0.0, size=4) == [4, 4, 2]
    assert await walk(clock, 10, 1.0, size=4) == [4, 4, 2]
    assert await walk(clock, 0, 1.0) == []


async def test_a_walk_rests_when_it_has_worked_for_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    seen: list[object] = []

    async def rest() -> None:
        seen.append(rested)
        clock.now += 10.0  # What others do meanwhile is not the walk's.

    rested = "rest"
    monkeypatch.setattr(chunks, "_rest", rest)
    async for each in chunks.in_turns(iter(range(6))):
        seen.append(each)
        clock.now += chunks.TURN_S * 0.6
    assert seen == [0, 1, rested, 2, 3, rested, 4, 5, rested]
    seen.clear()
    async for some in chunks.in_chunks(range(9), 2):
        seen += some
        clock.now += chunks.TURN_S * 0.3 * len(some)
    assert seen == [0, 1, 2, 3, rested, 4, 5, 6, 7, rested, 8]


async def test_the_loop_waits_for_others_while_a_walk_rests() -> None:
    """A turn of the loop is not enough: what another thread brings comes at once all the same."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    others: list[float] = []

    async def other() -> None:
        await woken.wait()
        others.append(time.monotonic())

    waiting = asyncio.create_task(other())
    walked: list[float] = []
    async for _ in chunks.in_turns(range(20)):
        began = time.thread_time()
        while time.thread_time() - began < chunks.TURN_S:
            pass
        walked.append(time.monotonic())
        if len(walked) == 2:
            loop.run_in_executor(None, loop.call_soon_threadsafe, woken.set)
    await waiting
    assert others[0] < walked[-1]


async def test_walks_go_on_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[set[str]] = []

    async def rest(name: str) -> None:
        await chunks._rest()
        woken[-1].add(name)

    due = chunks._Rests._due

    def note(rests: chunks._Rests) -> None:
        woken.append(set())
        due(rests)

    monkeypatch.setattr(chunks._Rests, "_due", note)
    few = [asyncio.create_task(rest(name)) for name in "abc"]
    await asyncio.gather(*few)
    assert woken == [{"a"}, {"b"}, {"c"}]


async def test_a_walk_that_is_cancelled_at_rest_keeps_nobody_up() -> None:
    walks = [asyncio.create_task(chunks._rest()) for _ in range(3)]
    await asyncio.sleep(0)
    walks[0].cancel()
    walks[1].cancel()
    await asyncio.wait_for(walks[2], timeout=10)
    assert walks[0].cancelled()
    assert walks[1].cancelled()
    # And with nobody left, the next one is woken all the same.
    lonely = asyncio.create_task(chunks._rest())
    await asyncio.sleep(0)
    lonely.cancel()
    await asyncio.wait_for(chunks._rest(), timeout=10)


def test_each_loop_has_a_timer_of_its_own_that_ends_with_it() -> None:
    """What is open is counted over loops, of which a test's process makes thousands."""

    async def rest_twice() -> None:
        await chunks._rest()
        await chunks._rest()

    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(rest_twice())
    before = open_files()
    for _ in range(20):
        asyncio.run(rest_twice())
    assert open_files() <= before


async def test_a_long_walk_works_longer_while_queues_take_no_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    rests, each, taken = 0, 0, 0

    async def rest() -> None:
        nonlocal rests, taken
        rests += 1
        taken += each

    monkeypatch.setattr(chunks, "_rest", rest)
    pace = chunks.Pace(lambda: taken)

    async def work(seconds: float) -> int:
        nonlocal rests
        rests = 0
        for _ in range(round(seconds / chunks.TURN_S)):
            clock.now += chunks.TURN_S * 1.01
            await pace.keep()
        return rests

    assert await work(0.01) == 10
    each = 1
    # The first slice is still a long one.
    assert await work(0.01) == 91
    each = 0
    await asyncio.sleep(chunks.USED_FOR_S)
    assert await work(0.01) <= 11


async def test_a_slice_of_what_is_huge_is_followed_by_a_rest_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = chunks.Pace(lambda: 0)
    clock.now += chunks.LONG_S / 2
    await pace.keep()
    assert slept == []
    clock.now += 0.5
    await pace.keep()
    assert slept == [pytest.approx(0.5)]
