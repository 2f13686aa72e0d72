"""What memory and disk are used and available (R-MEM-1, R-MEM-2, R-DSK-1).

The only place that asks psutil and the cgroup files; the decisions are core/alarms.py's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

#: A v1 limit at or above this means "none" (the kernel reports the page counter's maximum).
_NO_LIMIT = 1 << 62
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(slots=True, frozen=True)
class MemorySample:
    """One look at memory; bytes."""

    used: int
    #: None: could not be found out (R-MEM-8).
    total: int | None
    #: "cgroup", "host", "override" or "unknown".
    source: str


def cgroup_limit(proc: Path = Path("/proc/self/cgroup"), root: Path = _CGROUP_ROOT) -> int | None:
    """Return the smallest memory limit on the way up from this process's cgroup, v2 or v1."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            limits += _walk(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _walk(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _walk(base: Path, path: str, file_name: str) -> list[int]:
    """Read the limit of the cgroup and of all its ancestors that are visible here.

    Inside a container the path of /proc/self/cgroup is often the host's, while only the own
    subtree is mounted: then the mount's root is the own cgroup.
    """
    limits = []
    folder = base / path.lstrip("/")
    candidates = [folder, *folder.parents]
    for candidate in candidates:
        if not candidate.is_relative_to(base):
            break
        try:
            text = (candidate / file_name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT:
            limits.append(int(text))
    return limits


class MemoryMonitor:
    """Samples the resident size of this process and what is available to it."""

    def __init__(self, cgroup_aware: bool, total_override: int | None) -> None:
        self._process = psutil.Process(os.getpid())
        self._cgroup_aware = cgroup_aware
        self._override = total_override
        self._used = 0

    def sample(self) -> MemorySample:
        """Return used and total now."""
        # Where no descriptor is left for it the last sample stands in, and the monitor goes on.
        with contextlib.suppress(OSError, psutil.Error):
            self._used = self._process.memory_info().rss
        used = self._used
        if self._override is not None:
            return MemorySample(used, self._override, "override")
        try:
            host: int | None = psutil.virtual_memory().total
        except (OSError, RuntimeError):
            host = None
        limit = cgroup_limit() if self._cgroup_aware else None
        if limit is not None and (host is None or limit < host):
            return MemorySample(used, limit, "cgroup")
        return MemorySample(used, host, "host" if host is not None else "unknown")


def disk_free(folder: Path) -> int | None:
    """Return the free bytes of the data directory's file system, None if that cannot be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
