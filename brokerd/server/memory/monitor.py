"""What memory and disk are used and available (R-MEM-1, R-MEM-2, R-DSK-1).

The only place that asks psutil; the limit of the container is cgroups.py's, the decisions are
core/alarms.py's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from brokerd.server.memory.cgroups import PROC, Cgroups, Found

_MIB = 1024 * 1024


@dataclass(slots=True, frozen=True)
class MemorySample:
    """One look at memory; bytes."""

    used: int
    #: None: could not be found out (R-MEM-8).
    total: int | None
    #: "cgroup", "host", "override" or "unknown".
    source: str


class MemoryMonitor:
    """Samples the resident size of this process and what is available to it."""

    def __init__(self, cgroup_aware: bool, total_override: int | None) -> None:
        self._process = psutil.Process(os.getpid())
        self._cgroup_aware = cgroup_aware
        self._override = total_override
        self._used = 0
        self._cgroups = Cgroups()

    def used(self) -> int:
        """Return the resident size, bytes: some 20 µs."""
        # Where no descriptor is left for it the last sample stands in, and the monitor goes on.
        with contextlib.suppress(OSError, psutil.Error):
            self._used = self._process.memory_info().rss
        return self._used

    def sample(self) -> MemorySample:
        """Return used and total now."""
        used = self.used()
        if self._override is not None:
            return MemorySample(used, self._override, "override")
        try:
            host: int | None = psutil.virtual_memory().total
        except (OSError, RuntimeError):
            host = None
        limit = self._cgroups.look().limit if self._cgroup_aware else None
        if limit is not None and (host is None or limit < host):
            return MemorySample(used, limit, "cgroup")
        return MemorySample(used, host, "host" if host is not None else "unknown")

    def findings(self, sample: MemorySample) -> tuple[str, str]:
        """Return a line that says where a sample's total is from, and a warning, "" for none."""
        if self._override is not None:
            return _line(sample, "as memory.total_override says"), ""
        if not self._cgroup_aware:
            return _line(sample, "of the machine; limits of cgroups are not looked at"), ""
        found = self._cgroups.look()
        if sample.source == "cgroup":
            return _line(sample, f"limit of the cgroup in {found.file}"), ""
        looked = ", ".join(
            f"cgroup v{version} {name} below {base}"
            for (version, name), (_, base) in zip(found.groups, found.places, strict=True)
        )
        said = f"no limit below it in {looked or f'{PROC}/cgroup, which names no cgroup'}"
        return _line(sample, f"of the machine; {said}"), _hidden(found)

    def never_reached(self, watermark: int) -> str:
        """Return a warning where the kernel ends this process before the watermark blocks anybody,
        "" where it does not: a profile that does not look at cgroups, or the user, has set it by
        the machine's memory.
        """
        found = self._cgroups.look()
        if found.limit is None or watermark <= found.limit:
            return ""
        return (
            f"Publishers would be blocked above {watermark // _MIB} MiB only, and the kernel ends "
            f"this process at {found.limit // _MIB} MiB, the limit of the cgroup in {found.file}: "
            "set memory.cgroup_aware to true, or memory.total_override to that limit, or a lower "
            "memory.high_watermark"
        )


def _line(sample: MemorySample, source: str) -> str:
    total = sample.total
    known = "unknown" if total is None else f"{total // _MIB} MiB ({total} bytes)"
    return f"Available memory: {known}, {source}"


def _hidden(found: Found) -> str:
    if not found.hidden:
        return ""
    names = ", ".join(f"v{version} {name}" for version, name in found.hidden)
    return (
        f"A memory limit may be hidden from this process: it is in cgroup {names}, whose files are "
        f"not mounted here ({PROC}/mountinfo), as under `ip netns exec`. The machine's memory "
        "counts; set memory.total_override to the limit"
    )


def disk_free(folder: Path) -> int | None:
    """Return the free bytes of the data directory's file system, None if that cannot be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
