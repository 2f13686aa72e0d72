"""Watches memory and disk and raises this member's alarms (R-MEM-9, R-DSK-2).

Feeds core/alarms.py with samples, tells the other members through the liveness frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerd.config import BrokerConfig
from brokerd.core import alarms
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.server.listings import memory_breakdown
from brokerd.server.listings import ports as listings_ports
from brokerd.server.memory import monitor, release
from brokerd.server.memory.gc_policy import GcPolicy

log = logging.getLogger(__name__)

#: Between two looks where bodies are paged out already: publishers bring 200 MiB a second.
NEAR_INTERVAL_MS = 100


class Caches(Protocol):
    """Messages that are kept in memory though they are on disk."""

    @property
    def is_paging(self) -> bool:
        """Tell whether few are kept, since memory is short."""
        ...

    def memory_seen(self, used: int, limit: int) -> None:
        """Keep fewer or more, as memory is used."""
        ...


class Bounded(Protocol):
    """What is bounded by a share of the watermark: bodies that have not come whole, say."""

    def set_watermark(self, limit: int) -> None:
        """Memory may be used up to `limit` before the alarm."""
        ...


class Counters(Protocol):
    """What counts for telemetry."""

    def alarm(self, before: int, after: int, used: int, limit: int) -> None:
        """The memory alarm went on or off."""
        ...


class Stalls(listings_ports.Stalls, Protocol):
    """Whether the disk answers (members/disk_watch.py)."""

    @property
    def is_stalled(self) -> bool:
        """Tell whether the disk here does not answer."""
        ...


class Liveness(Protocol):
    """The way to the other members."""

    def set_liveness(
        self, alarms: Sequence[str], memory_used: int, memory_limit: int, disk_free: int
    ) -> None:
        """Have the others told from now on."""
        ...


@dataclass(slots=True, frozen=True)
class AlarmListeners:
    """Who hears of each sample, and who is asked for the third alarm."""

    caches: Caches
    bounded: Sequence[Bounded]
    counters: Counters
    liveness: Liveness
    #: This member's alarms: its name, those that are on.
    alarms: Callable[[str, frozenset[str]], None]
    stalls: Stalls


class AlarmMonitor:
    """One per member; `check` may be called at any time (a changed setting re-checks at once)."""

    def __init__(
        self,
        node: str,
        config: BrokerConfig,
        profile: Profile,
        view: CatalogState,
        told: AlarmListeners,
        holders: memory_breakdown.Holders,
    ) -> None:
        """view: has the settings that were changed at run time.  holders: who holds memory."""
        self._node = node
        self._config = config
        self._view = view
        self._told = told
        aware = config.memory.cgroup_aware
        override = config.memory.total_override
        self._memory = monitor.MemoryMonitor(
            profile.memory_cgroup_aware if aware is None else aware,
            alarms.parse_bytes(override) if override else None,
        )
        self._release = release.MemoryRelease(GcPolicy(lambda: len(holders.queues.records)))
        self._watermark = alarms.WatermarkMachine(profile)
        self._disk = alarms.DiskAlarm()
        #: None: nothing yet.
        self._applied: tuple[str | None, str, int | None] = (None, "", None)
        #: A control group's limit is followed, since Kubernetes resizes running pods; a sample that
        #: found none keeps the one of before.
        self._total: int | None = None
        #: Alarms that somebody has raised by hand; they stay until they are cleared by hand.
        self._forced: set[str] = set()
        self.breakdown = memory_breakdown.MemoryBreakdown(
            holders, lambda: self._memory.sample().used
        )
        self.memory_used = 0
        self.memory_total: int | None = None
        self.disk_free = 0

    @property
    def stalls(self) -> Stalls:
        """Return what watches whether the disk answers."""
        return self._told.stalls

    @property
    def memory_limit(self) -> int:
        """Return above how many bytes of memory publishers are blocked, 0 for never."""
        return self._watermark.limit

    @property
    def disk_limit(self) -> int:
        """Return below how many free bytes publishers are blocked."""
        return self._disk.limit

    async def run(self) -> None:
        """Sample until the member stops."""
        interval_ms = self._config.memory.interval_ms
        while True:
            self.check()
            # R-DSK-2: the nearer the disk is to its limit, the sooner.
            near_ms = NEAR_INTERVAL_MS if self._told.caches.is_paging else interval_ms
            await self._rest(min(interval_ms, near_ms, self._disk.interval_ms()) / 1000)

    async def _rest(self, seconds: float) -> None:
        """Sleep, but not beyond the moment in which memory passes the watermark: bodies of queues
        that are not durable have no disk to wait for.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            limit = self.memory_limit
            if not limit or self._watermark.is_on:
                await asyncio.sleep(left)
                return
            soon = alarms.look_in_ms(self._memory.used(), limit) / 1000
            await asyncio.sleep(min(left, soon))
            if self._memory.used() > limit:
                return

    def _setting(self, name: str, configured: str) -> str:
        """Return the run-time value: this member's, else the cluster's, else the configured one."""
        for key in (f"{name}@{self._node}", name):
            value = self._view.setting(key)
            if value is not None:
                return str(value)
        return configured

    def force(self, resource: str, on: bool) -> None:
        """Raise an alarm whatever the samples say, or take that back; acts at once."""
        if on:
            self._forced.add(resource)
        else:
            self._forced.discard(resource)
        self.check()

    def check(self) -> None:
        """Sample once and act on what it means."""
        config, told = self._config, self._told
        sample = self._memory.sample()
        watermark = self._setting(alarms.MEMORY_SETTING, config.memory.high_watermark)
        free_limit = self._setting(alarms.DISK_SETTING, config.disk.free_limit)
        if sample.source == "cgroup" or self._total is None:
            self._total = sample.total
        if self._total != self._applied[2] or self._applied[0] is None:
            line, warning = self._memory.findings(sample)
            log.info("%s", line)
            if warning:
                log.warning("%s", warning)
        if (watermark, free_limit, self._total) != self._applied:
            self._applied = (watermark, free_limit, self._total)
            lines = self._watermark.configure(watermark, self._total)
            for line in self._watermark.warnings:
                log.warning("%s", line)
            for line in lines:
                log.info("%s", line)
            if warning := self._memory.never_reached(self.memory_limit):
                log.warning("%s", warning)
            for line in self._disk.configure(free_limit, self._total):
                log.info("%s", line)
        free = monitor.disk_free(config.data_dir)
        self.memory_used, self.memory_total = sample.used, sample.total
        self.disk_free = free or 0
        told.caches.memory_seen(sample.used, self.memory_limit)
        for bounded in told.bounded:
            bounded.set_watermark(self.memory_limit or self._watermark.total)
        was_on = self._watermark.is_on
        for line in self._watermark.sample(sample.used):
            log.warning("%s", line)
        self._release.memory_seen(self._watermark.is_on or told.caches.is_paging)
        if self._watermark.is_on != was_on:
            told.counters.alarm(
                int(was_on), int(self._watermark.is_on), sample.used, self.memory_limit
            )
        for line in self._disk.sample(free):
            log.warning("%s", line)
        on = frozenset(
            name
            for name, is_on in (
                ("memory", self._watermark.is_on),
                ("disk", self._disk.is_on),
                (alarms.DISK_STALLED, told.stalls.is_stalled),
            )
            if is_on or name in self._forced
        )
        told.liveness.set_liveness(sorted(on), sample.used, self.memory_limit, self.disk_free)
        told.alarms(self._node, on)
