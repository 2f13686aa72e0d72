"""The segment files: naming, creating, recycling, preparing the next one, reading.

For wal.py and its parts.  Descriptors are opened and closed by the writer thread; the event loop
only looks them up to read (one dict access, atomic under the interpreter lock).  A segment is
taken out of use only after the event loop has said that it refers to it no more.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brokerd.storage import records
from brokerd.storage.config import WalConfig
from brokerd.storage.dead_files import DeadFiles
from brokerd.storage.disk import Disk
from brokerd.storage.records import SegmentHeader, SyncMark

SEGMENT_FILE = re.compile(r"wal-([0-9a-f]{16})\.log")
FREE_SUFFIX = ".free"
SPARE_NAME = "spare.tmp"


@dataclass(slots=True)
class ActiveSegment:
    """The segment that is being written; owned by the writer thread."""

    header: SegmentHeader
    descriptor: int
    #: Where the next write goes.
    end: int
    #: Up to here the file has been written once, with zeros at least; behind it is only reserved.
    filled: int

    @property
    def segment(self) -> int:
        return self.header.segment


def list_segments(directory: Path) -> list[int]:
    """Return the ids of the segment files, ascending."""
    matches = (SEGMENT_FILE.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1], 16) for match in matches if match)


def new_salt(disk: Disk) -> int:
    """Four random bytes, none zero, so that they never show in a zero-filled file."""
    return int.from_bytes(bytes([1 + byte % 255 for byte in disk.random_bytes(4)]), "little")


class SegmentFiles:
    """All segment files of a directory."""

    def __init__(
        self, directory: Path, config: WalConfig, disk: Disk, report: Callable[[str], None]
    ) -> None:
        self.directory = directory
        self.config = config
        self.disk = disk
        self.report = report
        #: Open descriptors and file sizes by segment id.
        self.descriptors: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.next_id = 1
        #: The file of the last mark; opened with the first one.
        self._marks = -1
        self._free: list[Path] = []
        self._spare_ready = False
        self._spare_filled = 0
        self._preparing: threading.Thread | None = None
        self._dead = DeadFiles(disk, report, config.in_background)
        self._is_closing = False

    def path(self, segment: int) -> Path:
        return self.directory / records.segment_name(segment)

    def adopt_leftovers(self) -> None:
        """Take over recycled files of an earlier run, remove unfinished ones."""
        for path in sorted(self.directory.iterdir()):
            if path.suffix == FREE_SUFFIX and self.disk.size(path) == self.config.segment_bytes:
                self._free.append(path)
            elif path.suffix in (".tmp", FREE_SUFFIX):
                self.disk.unlink(path)
        while len(self._free) > self.config.recycled_segments_max:
            self._dead.add(self._free.pop(), self.config.segment_bytes)

    def open_existing(self, segment: int) -> int:
        path = self.path(segment)
        descriptor = self.disk.open(path)
        self.descriptors[segment] = descriptor
        self.sizes[segment] = self.disk.size(path)
        self.next_id = max(self.next_id, segment + 1)
        return descriptor

    def create(self, bytes_needed: int, batches: int) -> ActiveSegment:
        """Make the next segment, durable and empty, to go on behind `batches` writes; OSError."""
        self._join_preparation()
        size = max(self.config.segment_bytes, bytes_needed)
        segment = self.next_id
        source, is_fresh, filled = self._source(size)
        descriptor = self.disk.open(source)
        identity = self.disk.identity(descriptor)
        salt = new_salt(self.disk)
        header = SegmentHeader(segment, size, salt, is_fresh, self.config.node_id, identity)
        self.disk.write(descriptor, records.encode_segment_header(header), 0)
        mark = records.encode_sync_mark(header, SyncMark(batches, records.SEGMENT_DATA_START))
        self.disk.write(descriptor, records.twice(mark), records.SYNC_MARK_AT)
        self.disk.sync(descriptor)
        self.disk.rename(source, self.path(segment))
        self.disk.sync_directory(self.directory)
        self.descriptors[segment] = descriptor
        self.sizes[segment] = size
        self.next_id = segment + 1
        self._prepare_next()
        return ActiveSegment(header, descriptor, records.SEGMENT_DATA_START, filled)

    def mark(self, mark: bytes) -> None:
        """Write down what was synced last, for the process after this one; OSError."""
        if self._marks < 0:
            path = self.directory / records.MARK_NAME
            self._marks = self.disk.open(path, create=not path.exists())
        self.disk.write(self._marks, mark, 0)

    def _source(self, size: int) -> tuple[Path, bool, int]:
        """Return a file of this size to become a segment, whether it is all zeros, and up to where
        it has been written once.
        """
        if size == self.config.segment_bytes:
            used = self._free.pop() if self._free else self._dead.take(size)
            if used is not None:
                return used, False, size
            if self._spare_ready:
                self._spare_ready = False
                return self.directory / SPARE_NAME, True, self._spare_filled
        path = self.directory / "large.tmp"
        return path, True, self._make(path, size)

    def _make(self, path: Path, size: int) -> int:
        """Make a file of zeros, durably; return up to where it has been written once; OSError."""
        if path.exists():
            self.disk.unlink(path)
        descriptor = self.disk.open(path, create=True)
        try:
            return self.disk.allocate(descriptor, size)
        finally:
            self.disk.close(descriptor)

    # ---- the next segment, in the background ----------------------------------------------------

    def _prepare_next(self) -> None:
        if self._free or self._spare_ready or not self.config.in_background or self._is_closing:
            return
        thread = threading.Thread(target=self._prepare, name="wal-spare", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The rotation makes one itself.
            self.report(f"cannot prepare the next log segment: {error}")
        else:
            self._preparing = thread

    def _prepare(self) -> None:
        try:
            self._spare_filled = self._make(self.directory / SPARE_NAME, self.config.segment_bytes)
            self._spare_ready = True
        except OSError as error:
            # No harm yet: the rotation tries again, and there a failure is fatal.
            self.report(f"cannot prepare the next log segment: {error}")

    def _join_preparation(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    # ---- reading and retiring -------------------------------------------------------------------

    def read(self, segment: int, offset: int, size: int) -> bytes:
        """Read raw bytes; nothing where the device refuses: the caller treats that as damage."""
        try:
            return self.disk.read(self.descriptors[segment], size, offset)
        except OSError:
            return b""

    def retire(self, segments: list[int]) -> None:
        """Take segments out of use, durably: keep some for recycling, have the others deleted."""
        for segment in segments:
            path = self.path(segment)
            self.disk.close(self.descriptors.pop(segment))
            size = self.sizes.pop(segment)
            is_regular = size == self.config.segment_bytes
            free = path.with_suffix(FREE_SUFFIX)
            self.disk.rename(path, free)
            if is_regular and len(self._free) < self.config.recycled_segments_max:
                self._free.append(free)
            else:
                self._dead.add(free, size)
        self.disk.sync_directory(self.directory)

    def bytes_on_disk(self) -> int:
        spare = self.config.segment_bytes if self._spare_ready else 0
        # list(): the writer thread may add a file meanwhile.
        used = sum(list(self.sizes.values())) + self.config.segment_bytes * len(self._free)
        return used + spare + self._dead.bytes_on_disk()

    def close(self) -> None:
        self._is_closing = True
        self.disk.stop_waiting()
        self._join_preparation()
        self._dead.close()
        for descriptor in self.descriptors.values():
            self.disk.close(descriptor)
        self.descriptors.clear()
        if self._marks >= 0:
            self.disk.close(self._marks)
            self._marks = -1
