"""When memory is given back to the system."""

from __future__ import annotations

import asyncio
import ctypes

from brokerd.server.memory.gc_policy import GcPolicy
from brokerd.server.memory.release import EVERY_S, SHORT_EVERY_S, TRIM_SHARE, MemoryRelease


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.trims = 0
        self.trim_takes_s = 0.0

    def trim(self, _: int) -> int:
        self.trims += 1
        self.now_s += self.trim_takes_s
        return 1


def nobody() -> GcPolicy:
    return GcPolicy(lambda: 0)


async def seen(release: MemoryRelease, is_short: bool) -> None:
    release.memory_seen(is_short)
    if release._running is not None:
        await release._running


def test_it_is_given_back_now_and_then_and_soon_when_it_is_short() -> None:
    async def run() -> None:
        clock = Clock()
        release = MemoryRelease(nobody(), clock.trim, lambda: clock.now_s)
        for _ in range(3):
            await seen(release, False)
        assert clock.trims == 1
        clock.now_s += SHORT_EVERY_S
        await seen(release, False)
        assert clock.trims == 1
        await seen(release, True)
        assert clock.trims == 2
        clock.now_s += EVERY_S
        await seen(release, False)
        assert clock.trims == 3

    asyncio.run(run())


def test_it_takes_a_small_share_of_the_time() -> None:
    async def run() -> None:
        clock = Clock()
        clock.trim_takes_s = 1.0
        release = MemoryRelease(nobody(), clock.trim, lambda: clock.now_s)
        await seen(release, True)
        clock.now_s += 1.0 / TRIM_SHARE - 1
        await seen(release, True)
        assert clock.trims == 1
        clock.now_s += 1
        await seen(release, True)
        assert clock.trims == 2

    asyncio.run(run())


def test_the_system_has_such_a_call() -> None:
    """With glibc, which the image has; elsewhere nothing is done."""
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        assert MemoryRelease(nobody())._trim is not None
