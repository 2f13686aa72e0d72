"""The memory limit of the container: where the kernel says it is, what it is, and whether it is
hidden from this process.

Asked by monitor.py.  Version 1 and 2 of control groups, and both at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

#: A v1 limit at or above this means "none" (the kernel reports the page counter's maximum).
_NO_LIMIT = 1 << 62
ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc/self")
_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


@dataclass(slots=True, frozen=True)
class Found:
    """One look."""

    #: Bytes; None: there is no limit, or none that can be seen.
    limit: int | None = None
    #: The file that says so.
    file: Path | None = None
    #: The groups that this process is in, as (version, name).
    groups: tuple[tuple[int, str], ...] = ()
    #: Those of them of which nothing can be seen here, while they may have a limit.
    hidden: tuple[tuple[int, str], ...] = ()
    #: Where the files of each version were looked for.
    places: tuple[tuple[int, Path], ...] = ()


class Cgroups:
    """Where the file systems are mounted is looked up once, groups and limits with each look."""

    def __init__(self, proc: Path = PROC, root: Path = ROOT) -> None:
        self._proc = proc
        mounts = _mounts(proc / "mountinfo")
        #: Versions whose file system is mounted in sight of this process.
        self._mounted = frozenset(mounts)
        self._bases = {1: root / "memory", 2: root} | mounts

    def look(self) -> Found:
        """Return the smallest limit on the way up from this process's group.

        Inside a container the name of the group is often the host's, while only the own subtree is
        mounted: then the mount's root is the own group.
        """
        groups = _groups(self._proc / "cgroup")
        limits: list[tuple[int, Path]] = []
        hidden = []
        for version, name in groups:
            found, is_seen = _walk(self._bases[version], name, _FILES[version])
            limits += found
            if not is_seen and version not in self._mounted:
                hidden.append((version, name))
        limit, file = min(limits, default=(None, None))
        if any(version == 1 for version, _ in groups):
            # Both at once: the memory controller is in only one of them.
            hidden = [group for group in hidden if group[0] == 1]
        places = tuple((version, self._bases[version]) for version, _ in groups)
        return Found(limit, file, tuple(groups), tuple(hidden), places)


def _groups(file: Path) -> list[tuple[int, str]]:
    """Return (version, name) of the groups that may limit this process's memory."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, name = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            groups.append((2, name))
        elif "memory" in controllers.split(","):
            groups.append((1, name))
    return groups


def _mounts(file: Path) -> dict[int, Path]:
    """Return the mount points of version 1's memory controller and of version 2, as far as they are
    mounted (proc(5), mountinfo).
    """
    found: dict[int, Path] = {}
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            point = Path(fields[4].replace("\\040", " "))
            if kind[0] == "cgroup2":
                found.setdefault(2, point)
            elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
                found.setdefault(1, point)
    return found


def _walk(base: Path, name: str, file_name: str) -> tuple[list[tuple[int, Path]], bool]:
    """Read the limits of a group and of all its ancestors that are visible here; also return
    whether any of their files could be read.
    """
    limits, is_seen = [], False
    folder = base / name.lstrip("/")
    for candidate in [folder, *folder.parents]:
        if not candidate.is_relative_to(base):
            break
        file = candidate / file_name
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        is_seen = True
        if text.isdigit() and int(text) < _NO_LIMIT:
            limits.append((int(text), file))
    return limits, is_seen
