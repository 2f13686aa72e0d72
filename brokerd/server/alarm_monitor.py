"""Watches memory and disk and raises this member's alarms (R-MEM-9, R-DSK-2).

Feeds core/alarms.py with samples, tells the other members through the liveness frames.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from brokerd.core import alarms
from brokerd.server import memory_breakdown, memory_monitor, memory_release

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: Between two looks where bodies are paged out already: publishers bring 200 MiB a second.
NEAR_INTERVAL_MS = 100


class AlarmMonitor:
    """One per member; `check` may be called at any time (a changed setting re-checks at once)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        aware = config.memory.cgroup_aware
        override = config.memory.total_override
        self._memory = memory_monitor.MemoryMonitor(
            broker.profile.memory_cgroup_aware if aware is None else aware,
            alarms.parse_bytes(override) if override else None,
        )
        self._release = memory_release.MemoryRelease()
        self._watermark = alarms.WatermarkMachine(broker.profile)
        self._disk = alarms.DiskAlarm()
        self._applied: tuple[str, str, int | None] = ("", "", None)
        #: A control group's limit is followed, since Kubernetes resizes running pods; a sample that
        #: found none keeps the one of before.
        self._total: int | None = None
        #: Alarms that somebody has raised by hand; they stay until they are cleared by hand.
        self._forced: set[str] = set()
        holders = memory_breakdown.Holders(
            queues=broker.queues,
            has_replica=broker.host.has_group,
            connections=broker.connections.all,
            consumers=broker.deliveries,
            catalog=broker.view,
            log_cache=broker.queues.caches.size_bytes,
        )
        self.breakdown = memory_breakdown.MemoryBreakdown(
            holders, lambda: self._memory.sample().used
        )
        self.memory_used = 0
        self.memory_limit = 0
        self.memory_total: int | None = None
        self.disk_free = 0
        self.disk_limit = 0

    async def run(self) -> None:
        """Sample until the member stops."""
        interval_ms = self._broker.config.memory.interval_ms
        while True:
            self.check()
            # R-DSK-2: the nearer the disk is to its limit, the sooner; with memory no other.
            near_ms = NEAR_INTERVAL_MS if self._broker.queues.caches.is_paging else interval_ms
            await asyncio.sleep(min(interval_ms, near_ms, self._disk.interval_ms()) / 1000)

    def _setting(self, name: str, configured: str) -> str:
        """Return the run-time value: this member's, else the cluster's, else the configured one."""
        state = self._broker.catalog.state
        for key in (f"{name}@{self._broker.node}", name):
            value = state.setting(key)
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
        broker = self._broker
        sample = self._memory.sample()
        watermark = self._setting(alarms.MEMORY_SETTING, broker.config.memory.high_watermark)
        free_limit = self._setting(alarms.DISK_SETTING, broker.config.disk.free_limit)
        if sample.source == "cgroup" or self._total is None:
            self._total = sample.total
        if (watermark, free_limit, self._total) != self._applied:
            self._applied = (watermark, free_limit, self._total)
            for line in self._watermark.configure(watermark, self._total):
                log.info("%s", line)
            for line in self._disk.configure(free_limit, self._total):
                log.info("%s", line)
        free = memory_monitor.disk_free(broker.config.data_dir)
        self.memory_used, self.memory_total = sample.used, sample.total
        self.memory_limit, self.disk_limit = self._watermark.limit, self._disk.limit
        self.disk_free = free or 0
        broker.queues.caches.memory_seen(sample.used, self.memory_limit)
        broker.unfinished.set_watermark(self.memory_limit or self._watermark.total)
        was_on = self._watermark.is_on
        for line in self._watermark.sample(sample.used):
            log.warning("%s", line)
        self._release.memory_seen(self._watermark.is_on or broker.queues.caches.is_paging)
        if self._watermark.is_on != was_on:
            broker.counters.alarm(
                int(was_on), int(self._watermark.is_on), sample.used, self.memory_limit
            )
        for line in self._disk.sample(free):
            log.warning("%s", line)
        on = frozenset(
            name
            for name, is_on in (("memory", self._watermark.is_on), ("disk", self._disk.is_on))
            if is_on or name in self._forced
        )
        broker.host.set_liveness(sorted(on), sample.used, self.memory_limit, self.disk_free)
        broker.set_alarms(broker.node, on)
