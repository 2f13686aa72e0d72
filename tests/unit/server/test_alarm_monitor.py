"""The watermark follows a control group's limit: Kubernetes resizes running pods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerd.config import BrokerConfig
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.profiles import profile
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server import cgroups
from brokerd.server.alarm_monitor import AlarmMonitor, Told
from brokerd.server.cgroups import Found
from brokerd.server.memory_breakdown import Holders

MIB = 1024 * 1024


class Deaf:
    """Hears of every sample, and does nothing."""

    is_paging = False

    def hear(self, *_: object) -> None:
        return

    memory_seen = set_watermark = alarm = set_liveness = hear


class NoQueues:
    led = ()

    def queue_uids(self) -> Sequence[int]:
        return ()

    def queue_of(self, uid: int) -> Queue | None:
        return None

    def machine(self, uid: int) -> QueueMachine:
        raise LookupError(uid)


@pytest.fixture
def monitor() -> AlarmMonitor:
    catalog = CatalogMachine().state
    holders = Holders(NoQueues(), lambda _: False, list, (), catalog, lambda: 0)
    told = Told(Deaf(), [Deaf()], Deaf(), Deaf(), Deaf().hear)
    return AlarmMonitor("n0", BrokerConfig(), profile(), catalog, told, holders)


async def test_watermark_follows_the_limit_of_the_control_group(
    monitor: AlarmMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    for limit in (512 * MIB, 640 * MIB, None, 256 * MIB):
        found = Found(limit, Path("memory.max"))
        monkeypatch.setattr(cgroups.Cgroups, "look", lambda _, found=found: found)
        monitor.check()
        limits.append(monitor.memory_limit)
    assert limits == [
        int(0.6 * 512 * MIB),
        int(0.6 * 640 * MIB),
        # It could not be read for a moment: what was known stands.
        int(0.6 * 640 * MIB),
        int(0.6 * 256 * MIB),
    ]
