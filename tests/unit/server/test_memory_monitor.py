"""cgroup files, what is resident, free space."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from brokerd.server.memory_monitor import MemoryMonitor, cgroup_limit, disk_free


def write(file: Path, text: str) -> None:
    """Make a file with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("files", "proc", "expected"),
    [
        ({"a/b/memory.max": "500\n", "a/memory.max": "300\n"}, "0::/a/b\n", 300),
        ({"a/b/memory.max": "max\n"}, "0::/a/b\n", None),
        ({"memory.max": "700\n"}, "0::/of/the/host\n", 700),
        ({"memory/c/memory.limit_in_bytes": "900\n"}, "5:cpu:/c\n4:memory,x:/c\n", 900),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "4:memory:/\n", None),
        ({"a/memory.max": "nonsense"}, "0::/a\nrubbish\n", None),
    ],
)
def test_the_smallest_limit_on_the_way_up_counts(
    tmp_path: Path, files: dict[str, str], proc: str, expected: int | None
) -> None:
    """R-MEM-2, cgroup v1 and v2, inside and outside of containers."""
    for name, text in files.items():
        write(tmp_path / "cgroup" / name, text)
    write(tmp_path / "proc", proc)
    assert cgroup_limit(tmp_path / "proc", tmp_path / "cgroup") == expected


def test_without_cgroup_files_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_limit(tmp_path / "none", tmp_path) is None


def test_an_override_replaces_detection() -> None:
    sample = MemoryMonitor(True, 12345).sample()
    assert (sample.total, sample.source) == (12345, "override")
    assert sample.used > 1_000_000


def test_used_is_what_is_resident() -> None:
    """R-MEM-1: the operating system's figure for this process."""
    monitor = MemoryMonitor(True, 12345)
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
