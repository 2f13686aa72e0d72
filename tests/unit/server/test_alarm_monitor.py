"""The watermark follows a control group's limit: Kubernetes resizes running pods."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from brokerd.config import BrokerConfig
from brokerd.core.profiles import profile
from brokerd.server import cgroups
from brokerd.server.alarm_monitor import AlarmMonitor
from brokerd.server.cgroups import Found

MIB = 1024 * 1024


@pytest.fixture
def monitor() -> AlarmMonitor:
    broker = MagicMock()
    broker.config = BrokerConfig()
    broker.profile = profile()
    broker.catalog.state.setting.return_value = None
    return AlarmMonitor(broker)


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
