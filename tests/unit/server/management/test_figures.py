"""Rows of all members, and what changed between samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.cluster.groups.group_clock import Moved
from brokerd.server.management import figures, rates
from brokerd.server.management.figures import Figures
from brokerd.server.management.rates import Rates
from brokerd.server.members.member_calls import Handler
from brokerd.server.members.ports import Json

ROWS = [{"i": i} for i in range(5)]


class Member:
    """The way from one member to another one, which may be silent."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.other: Member | None = None
        self.is_silent = False
        self.asked = 0

    def serve(self, name: str, handler: Handler) -> None:
        self.handlers[name] = handler

    async def ask(self, _: str, name: str, fields: Json | None = None) -> Json | None:
        assert self.other is not None
        self.asked += 1
        if self.other.is_silent:
            await asyncio.Event().wait()
        return await self.other.handlers[name](fields or {})


def two(maker: Callable[[], list[Json]]) -> tuple[Figures, Member, Member]:
    """Return the figures of n0, which knows n1, whose rows come from `maker`."""
    here, there = Member(), Member()
    here.other = there
    mine = Figures("n0", lambda: ["n0", "n1"], here)
    theirs = Figures("n1", list, there)
    mine.register("rows", lambda: [{"i": -1}])
    theirs.register("rows", maker)
    return mine, here, there


async def test_rows_of_all_members_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PART_ROWS", 2)
    mine, here, _ = two(lambda: ROWS)
    found = await mine.everywhere("rows")
    assert found.all() == [{"i": -1}, *ROWS]
    assert here.asked == 3


async def test_those_who_ask_at_once_share_one_gathering() -> None:
    mine, here, _ = two(lambda: ROWS)
    await asyncio.gather(*(mine.everywhere("rows") for _ in range(50)))
    await mine.everywhere("rows")
    assert here.asked == 1


async def test_one_who_goes_away_does_not_end_it_for_the_others() -> None:
    mine, _, _ = two(lambda: ROWS)
    first = asyncio.create_task(mine.everywhere("rows"))
    second = asyncio.create_task(mine.everywhere("rows"))
    await asyncio.sleep(0)
    first.cancel()
    assert len((await second).all()) == 6


async def test_a_silent_member_is_left_out_and_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "ANSWER_S", 0.01)
    monkeypatch.setattr(figures, "FRESH_S", 0.0)
    mine, here, there = two(lambda: ROWS)
    there.is_silent = True
    found = await mine.everywhere("rows")
    assert (found.all(), found.silent) == ([{"i": -1}], ("n1",))
    await mine.everywhere("rows")
    assert here.asked == 1


async def test_a_failure_is_of_those_who_asked_and_not_kept() -> None:
    mine, _, _ = two(lambda: ROWS)
    outcomes: list[Any] = [ValueError("now"), [{"i": 7}]]

    def make() -> list[Json]:
        found = outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return list(found)

    mine.register("other", make)
    with pytest.raises(ValueError, match="now"):
        await mine.here("other")
    assert await mine.here("other") == [{"i": 7}]


async def test_rates_are_what_was_gained_between_two_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "INTERVAL_S", 0.02)
    counts = {1: 0, 2: 5}
    moved = Moved([1])
    found = Rates(lambda: [1, 2, 3], lambda uid: (counts[uid],) if uid in counts else None, moved)
    running = asyncio.create_task(found.run())
    try:
        assert found.of(1) == ()
        found.want()
        async with asyncio.timeout(5):
            while not found.of(1) or found.of(1)[0] <= 0:
                counts[1] += 10
                await asyncio.sleep(0.005)
        assert found.of(2) == (0.0,)
        assert found.of(3) == ()
    finally:
        running.cancel()


async def test_what_stands_still_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "INTERVAL_S", 0.02)
    counts, looked = {1: 0, 2: 5, 3: 7, 9: 0}, []
    moved, rounds = Moved(()), asyncio.Semaphore(0)
    begun: list[bool] = []

    def begin() -> None:
        # What has moved was taken in this turn, and nothing has been looked at since.
        begun.append(not looked and moved.take() == (set(), False))

    def take(uid: int) -> tuple[int, ...] | None:
        looked.append(uid)
        if uid == 9:
            rounds.release()
        return (counts[uid],) if uid in counts else None

    async def next_round() -> list[int]:
        async with asyncio.timeout(5):
            await rounds.acquire()
        seen = sorted(looked)
        looked.clear()
        return seen

    found = Rates(lambda: [1, 2, 3, 9], take, moved, always=[9], begin=begin)
    running = asyncio.create_task(found.run())
    try:
        found.want()
        assert await next_round() == [1, 2, 3, 9]
        counts[1] = 8
        moved.note(1)
        del counts[3]
        moved.note(3)
        assert await next_round() == [1, 3, 9]
        assert found.of(1)[0] > 0
        assert (found.of(2), found.of(3)) == ((0.0,), ())
        # Once more, to see that it has come to rest.
        assert await next_round() == [1, 9]
        assert found.of(1) == (0.0,)
        assert await next_round() == [9]
        assert begun[:4] == [True] * 4
    finally:
        running.cancel()


async def test_sampling_ends_when_nobody_asks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "INTERVAL_S", 0.01)
    monkeypatch.setattr(rates, "IDLE_S", 0.03)
    taken = 0

    def take(_: int) -> tuple[int, ...]:
        nonlocal taken
        taken += 1
        return (taken,)

    found = Rates(lambda: [1], take, Moved([1]))
    running = asyncio.create_task(found.run())
    try:
        found.want()
        async with asyncio.timeout(5):
            # Nothing tells of a sample.
            while not found.of(1):
                # On a slow machine more than IDLE_S passes before the second one.
                found.want()
                await asyncio.sleep(0.005)
            while found.of(1):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        before = taken
        await asyncio.sleep(0.05)
        assert taken == before
    finally:
        running.cancel()
