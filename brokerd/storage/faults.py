"""A disk that fails on purpose: errors at the Nth call, short writes, lost unsynced data.

For tests and the simulator only; nothing in the broker uses it.  It works on real files: `crash`
puts back what stood in every range that was written and never synced, so that reopening the
directory shows what a power cut would have left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.storage.disk import Disk


@dataclass(slots=True)
class Faults:
    """When to fail; counts are calls from now on, 1 = the very next one, 0 = never."""

    write_fails_at: int = 0
    sync_fails_at: int = 0
    rename_fails_at: int = 0
    error: int = errno.EIO
    #: Most bytes that one write call accepts, 0: all.
    write_bytes_max: int = 0
    #: Bytes that may still be written before the disk is full; None: no limit.
    space_bytes: int | None = None


@dataclass(slots=True)
class Unsynced:
    """A write that no sync has followed: where, and what stood there before."""

    path: Path
    #: Counts the writes of the disk.
    number: int
    offset: int
    before: bytes
    size: int


@dataclass(slots=True)
class FaultyDisk(Disk):
    """See the module."""

    faults: Faults = field(default_factory=Faults)
    #: By file; a log writes to few and syncs often.
    unsynced: dict[str, list[Unsynced]] = field(default_factory=dict)
    paths: dict[int, Path] = field(default_factory=dict)
    syncs: int = 0
    writes: int = 0

    def __post_init__(self) -> None:
        Disk.__init__(self)

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = Disk.open(self, path, create=create)
        self.paths[descriptor] = path
        return descriptor

    def open_now(self, path: Path) -> int:
        descriptor = Disk.open_now(self, path)
        self.paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        self.paths.pop(descriptor, None)
        Disk.close(self, descriptor)

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        faults = self.faults
        if self._strikes("write_fails_at"):
            raise OSError(faults.error, os.strerror(faults.error))
        size = len(data)
        if faults.write_bytes_max:
            size = min(size, faults.write_bytes_max)
        if faults.space_bytes is not None:
            size = min(size, faults.space_bytes)
            if size <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            faults.space_bytes -= size
        before = os.pread(descriptor, size, offset)
        path = self.paths[descriptor]
        self.writes += 1
        write = Unsynced(path, self.writes, offset, before, size)
        self.unsynced.setdefault(str(path), []).append(write)
        return Disk.write_some(self, descriptor, memoryview(data)[:size], offset)

    def allocate(self, descriptor: int, size: int) -> int:
        # Space is counted, and runs out, where something is written.
        self.zero(descriptor, size)
        self.sync(descriptor)
        return 0

    def data_sync(self, descriptor: int) -> None:
        self._sync(descriptor)

    def sync(self, descriptor: int) -> None:
        self._sync(descriptor)

    def _sync(self, descriptor: int) -> None:
        if self._strikes("sync_fails_at"):
            raise OSError(self.faults.error, os.strerror(self.faults.error))
        # No real sync: the tests look at what was asked for, and the page cache survives them.
        self.syncs += 1
        self.unsynced.pop(str(self.paths[descriptor]), None)

    def rename(self, old: Path, new: Path) -> None:
        if self._strikes("rename_fails_at"):
            raise OSError(self.faults.error, os.strerror(self.faults.error))
        Disk.rename(self, old, new)
        for descriptor, path in self.paths.items():
            if path == old:
                self.paths[descriptor] = new
        moved = self.unsynced.pop(str(old), [])
        for write in moved:
            write.path = new
        if moved:
            self.unsynced.setdefault(str(new), []).extend(moved)

    def _strikes(self, name: str) -> bool:
        left: int = getattr(self.faults, name)
        if left:
            setattr(self.faults, name, left - 1)
        return left == 1

    def crash(self, is_lost: Callable[[Path, int], bool], sector_bytes: int = 512) -> int:
        """Undo unsynced writes sector by sector where `is_lost(path, offset)`; return how many."""
        lost = 0
        writes = [write for of_file in self.unsynced.values() for write in of_file]
        for write in sorted(writes, key=lambda write: write.number, reverse=True):
            descriptor = os.open(write.path, os.O_RDWR)
            try:
                before = write.before.ljust(write.size, b"\0")
                offset = write.offset
                while offset < write.offset + write.size:
                    end = min(
                        offset - offset % sector_bytes + sector_bytes, write.offset + write.size
                    )
                    if is_lost(write.path, offset - offset % sector_bytes):
                        at = offset - write.offset
                        os.pwrite(descriptor, before[at : at + end - offset], offset)
                        lost += 1
                    offset = end
            finally:
                os.close(descriptor)
        self.unsynced.clear()
        return lost
