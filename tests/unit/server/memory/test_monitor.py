"""What is resident, free space."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil

from brokerd.server.memory.monitor import MemoryMonitor, disk_free


def test_an_override_replaces_detection() -> None:
    sample = MemoryMonitor(True, 12345).sample()
    assert (sample.total, sample.source) == (12345, "override")
    assert MemoryMonitor(True, 12345).findings(sample) == (
        "Available memory: 0 MiB (12345 bytes), as memory.total_override says",
        "",
    )
    assert sample.used > 1_000_000


def test_used_is_what_is_resident() -> None:
    """R-MEM-1: the operating system's figure for this process."""
    monitor = MemoryMonitor(True, 12345)
    # What earlier tests left shall not go meanwhile.
    gc.collect()
    before, shown = psutil.Process().memory_info().rss, monitor.sample().used
    ballast = bytearray(64 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    after = monitor.sample().used
    assert abs(shown - before) < 16 << 20
    assert after - shown > 48 << 20
    assert len(ballast) == 64 << 20


def test_free_space_of_nowhere_is_unknown(tmp_path: Path) -> None:
    """R-DSK-3."""
    assert disk_free(tmp_path / "none") is None
    assert (disk_free(tmp_path) or 0) > 0
