"""The watermark follows a control group's limit: Kubernetes resizes running pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.cluster.groups.group_clock import Moved
from brokerd.config import BrokerConfig
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.profiles import profile
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.listings.memory_breakdown import Holders
from brokerd.server.memory import alarms, cgroups
from brokerd.server.memory.alarms import AlarmListeners, AlarmMonitor
from brokerd.server.memory.cgroups import Found

MIB = 1024 * 1024


class Deaf:
    """Hears of every sample, and does nothing."""

    is_paging = False

    def hear(self, *_: object) -> None:
        return

    memory_seen = set_watermark = alarm = set_liveness = hear


class NoQueues:
    led = ()
    records = ()

    def queue_of(self, uid: int) -> Queue | None:
        return None

    def machine(self, uid: int) -> QueueMachine:
        raise LookupError(uid)


class Stalls:
    """A disk that answers, unless it is told not to."""

    is_stalled = False
    count = 0

    def total_s(self) -> float:
        return 0.0


def monitor_of(
    config: BrokerConfig,
    profile_name: str = "",
    hear: Callable[[str, frozenset[str]], None] | None = None,
    stalls: Stalls | None = None,
) -> AlarmMonitor:
    catalog = CatalogMachine().state
    holders = Holders(
        NoQueues(), lambda _: False, lambda _: False, Moved(()), list, (), catalog, lambda: 0
    )
    told = AlarmListeners(Deaf(), [Deaf()], Deaf(), Deaf(), hear or Deaf().hear, stalls or Stalls())
    chosen = profile(profile_name) if profile_name else profile()
    return AlarmMonitor("n0", config, chosen, catalog, told, holders)


@pytest.fixture
def monitor() -> AlarmMonitor:
    return monitor_of(BrokerConfig())


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


@pytest.mark.parametrize(
    ("profile_name", "memory", "is_warned"),
    [
        ("brokerd", {}, False),
        ("reference", {}, True),
        ("rabbitmq-3.10", {}, True),
        ("reference", {"cgroup_aware": True}, False),
        ("reference", {"total_override": "64MiB"}, False),
        ("reference", {"high_watermark": "60MiB"}, False),
        ("reference", {"high_watermark": "65MiB"}, True),
        # Nobody is to be blocked, as somebody has said.
        ("reference", {"high_watermark": "0"}, False),
        # More than there is, which only this profile allows.
        ("reference", {"cgroup_aware": True, "high_watermark": "3"}, True),
        ("brokerd", {"total_override": "1GiB"}, True),
    ],
)
async def test_a_watermark_above_the_limit_of_the_container_is_told(
    profile_name: str,
    memory: dict[str, object],
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R-MEM-2: what RabbitMQ and the document do is done, but the kernel would end the member."""
    found = Found(64 * MIB, Path("memory.max"))
    monkeypatch.setattr(cgroups.Cgroups, "look", lambda _: found)
    monitor = monitor_of(BrokerConfig.model_validate({"memory": memory}), profile_name)
    monitor.check()
    monitor.check()
    said = [each for each in caplog.messages if "the kernel ends this process at 64 MiB" in each]
    assert len(said) == is_warned
    assert (monitor.memory_limit > 64 * MIB) == is_warned


async def test_memory_that_passes_the_watermark_is_seen_at_once(
    monitor: AlarmMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-MEM-11: it was looked at once a second, in which a flood had passed it by 45 %."""
    found = Found(1000 * MIB, Path("memory.max"))
    monkeypatch.setattr(cgroups.Cgroups, "look", lambda _: found)
    used, slept = 100 * MIB, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal used
        slept.append(seconds)
        used += int(400 * MIB * seconds)

    monkeypatch.setattr(alarms.asyncio, "sleep", sleep)
    monkeypatch.setattr(monitor._memory, "used", lambda: used)
    monitor.check()
    assert monitor.memory_limit == 600 * MIB
    await monitor._rest(10.0)
    assert 600 * MIB < used < 606 * MIB
    assert not monitor._watermark.is_on
    monitor.check()
    assert monitor._watermark.is_on
    # Far below it nobody looks more often than before, and above it neither.
    assert len(slept) < 20
    assert slept[0] == pytest.approx(0.5)
    before = len(slept)
    await monitor._rest(0.01)
    assert slept[before:] == [pytest.approx(0.01, abs=0.002)]


async def test_a_stalled_disk_is_one_of_the_members_alarms() -> None:
    """ADR 68: beside memory and disk space, whatever these say."""
    heard: list[frozenset[str]] = []
    stalls = Stalls()
    monitor = monitor_of(BrokerConfig(), "", lambda _, on: heard.append(on), stalls)
    for is_stalled in (False, True, False):
        stalls.is_stalled = is_stalled
        monitor.check()
    monitor.force("disk", True)
    assert heard == [frozenset(), frozenset({"disk_stalled"}), frozenset(), frozenset({"disk"})]
