"""What a member does about a disk that does not answer (ADR 68)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

import pytest

from brokerd.config import StorageConfig
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.raft.messages import NodeId
from brokerd.server.members import disk_watch
from brokerd.server.members.disk_watch import DiskWatch


class Member:
    """Host and leadership in one.  State: the clock, since when the disk is silent, what is led."""

    def __init__(self) -> None:
        self.own = self
        self.clock_ms = 0
        self.silent_since_ms: int | None = None
        self.told: list[bool] = []
        self.led = [1, 2, 3]
        #: Those that no other member can lead now.
        self.stuck: set[int] = set()
        #: When somebody was to lead instead.
        self.moved_ms: list[int] = []

    def set_stalled(self, is_stalled: bool) -> None:
        self.told.append(is_stalled)

    def in_flight_s(self) -> float:
        since_ms = self.silent_since_ms
        return 0.0 if since_ms is None else (self.clock_ms - since_ms) / 1000

    def now_ms(self) -> int:
        return self.clock_ms

    def transferable(self, avoid: Collection[NodeId] = ()) -> list[int]:
        return [] if avoid else self.led

    async def hand_over(self, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
        assert timeout_s == 1.0
        self.moved_ms.append(self.clock_ms)
        self.led = [uid for uid in self.led if uid in self.stuck]
        return len(self.led)


class Days:
    """Runs a watch second by second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: int) -> None:
        self.member = Member()
        view = CatalogMachine().state
        self.watch = DiskWatch(StorageConfig(**settings), self.member, self.member, view)
        self._until_ms = 0
        monkeypatch.setattr(disk_watch.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.member.clock_ms += round(seconds * 1000)
        if self.member.clock_ms > self._until_ms:
            raise asyncio.CancelledError

    async def run(self, until_s: int) -> None:
        """Let the time come up to a second."""
        self._until_ms = until_s * 1000
        with pytest.raises(asyncio.CancelledError):
            await self.watch.run()


async def test_a_stall_is_told_and_after_a_bound_others_lead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    days = Days(monkeypatch)
    member, watch = days.member, days.watch
    await days.run(10)
    assert (member.told, watch.hindrance(), watch.count, watch.total_s()) == ([], "", 0, 0.0)
    member.silent_since_ms = 10_000
    await days.run(15)
    assert member.told == [True]
    assert watch.is_stalled
    assert watch.hindrance().startswith("the disk does not answer, the log has waited ")
    # storage.stall_leaders_ms
    assert member.moved_ms == []
    await days.run(30)
    assert member.moved_ms == [20_000]
    assert "disk stalled: 3 of 3 leaderships moved away" in caplog.messages
    member.silent_since_ms = None
    await days.run(40)
    assert member.told == [True, False]
    assert (watch.hindrance(), watch.count, watch.total_s()) == ("", 1, 21.0)
    assert len([line for line in caplog.messages if "disk stall" in line]) == 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_what_cannot_move_now_is_tried_again_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    days = Days(monkeypatch, stall_leaders_ms=0)
    member = days.member
    member.stuck = {2}
    member.silent_since_ms = 0
    await days.run(12)
    member.stuck = set()
    # An election has chosen this member.
    member.led.append(4)
    await days.run(20)
    assert member.moved_ms == [*range(5_000, 14_000, 1_000)]
    told = [line for line in caplog.messages if "moved away" in line]
    assert told == [
        "disk stalled: 2 of 3 leaderships moved away",
        "disk stalled: 2 of 2 leaderships moved away",
    ]


async def test_nobody_looks_where_no_stall_is_to_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    days = Days(monkeypatch, stall_ms=0)
    days.member.silent_since_ms = 0
    await days.watch.run()
    assert days.member.told == []


@pytest.mark.parametrize(
    ("stall_ms", "looks_ms"), [(5, 20), (500, 100), (5_000, 1_000), (60_000, 1_000)]
)
async def test_the_disk_is_looked_at_some_times_within_the_threshold(
    stall_ms: int, looks_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(monkeypatch, stall_ms=stall_ms)
    await days.run(0)
    assert days.member.clock_ms == looks_ms
