"""The next segment is there before it is needed; what is only reserved gets zeros as it is used."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.storage import disk as disks
from brokerd.storage.disk import Disk
from brokerd.storage.segments import SegmentFiles
from brokerd.storage.writer import PADDED_MAX, ZEROS_AHEAD
from tests.unit.storage.builders import entry, open_log, put, small

SIZE = 16384
LARGE = 2 * 1024 * 1024


class Watched(Disk):
    """Notes what is written to the log's segments."""

    def __init__(self) -> None:
        super().__init__()
        self.segments: set[int] = set()
        #: (offset, bytes) of each write into a segment in use, but for its head.
        self.written: list[tuple[int, int]] = []

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        if path.name in ("spare.tmp", "large.tmp") and not create:
            self.segments.add(descriptor)
        return descriptor

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        if descriptor in self.segments and len(data) > 512:
            self.written.append((offset, len(data)))
        return super().write_some(descriptor, data, offset)


class NoSpares(Disk):
    """Has no room for what nobody needs yet."""

    def open(self, path: Path, *, create: bool = False) -> int:
        if path.name == "spare.tmp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create)


def test_a_segment_is_there_before_it_is_needed(tmp_path: Path) -> None:
    notes: list[str] = []
    config = small(in_background=True, recycled_segments_max=0)
    files = SegmentFiles(tmp_path, config, Disk(), notes.append)
    first = files.create(0, 0)
    files._join_preparation()
    assert (tmp_path / "spare.tmp").read_bytes() == bytes(SIZE)
    second = files.create(0, 1)
    assert (first.segment, second.segment, second.header.fresh) == (1, 2, True)
    assert os.path.getsize(files.path(2)) == SIZE
    files.close()
    assert notes == []


def test_a_segment_that_could_not_be_prepared_is_made_when_it_is_needed(tmp_path: Path) -> None:
    notes: list[str] = []
    config = small(in_background=True, recycled_segments_max=0)
    files = SegmentFiles(tmp_path, config, NoSpares(), notes.append)
    files.create(0, 0)
    files.create(0, 1)
    assert files.path(2).exists()
    files.close()
    assert set(notes) == {"cannot prepare the next log segment: [Errno 28] No space left on device"}


def test_small_writes_take_zeros_along_for_those_behind_them(tmp_path: Path) -> None:
    disk = Watched()
    log = open_log(tmp_path, small(segment_bytes=LARGE, in_background=False), disk=disk)
    disk.written.clear()
    for index in range(1, 300):
        put(log, 5, entry(index, size=1000))
    # Opening the log wrote zeros for the first 256 KiB; one of these needs more.
    padded = [size for _, size in disk.written if size > 3000]
    assert [size > len(ZEROS_AHEAD) for size in padded] == [True]
    disk.written.clear()
    # Whoever writes much at once has no use for them.
    for index in range(300, 303):
        put(log, 5, entry(index, size=5 * PADDED_MAX))
    assert 0 < sum(size for _, size in disk.written) - 15 * PADDED_MAX < 1000
    log.close()
    again = open_log(tmp_path, small(segment_bytes=LARGE, in_background=False))
    assert again.log(5).last_index() == 302
    again.close()


def test_the_last_of_a_segment_takes_no_more_than_there_is(tmp_path: Path) -> None:
    disk = Watched()
    log = open_log(tmp_path, small(segment_bytes=SIZE, in_background=False), disk=disk)
    for index in range(1, 60):
        put(log, 5, entry(index, size=1000))
    assert log.stats.segments > 2
    assert {path.stat().st_size for path in tmp_path.glob("wal-*.log")} == {SIZE}
    assert max(offset + size for offset, size in disk.written) == SIZE
    log.close()


def test_space_is_reserved_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "ZEROS", bytes(4096))
    size = SIZE + 100
    disk = Disk()
    reserved = disk.open(tmp_path / "reserved", create=True)
    assert disk.allocate(reserved, size) == 0
    assert (tmp_path / "reserved").read_bytes() == bytes(size)
    disk.close(reserved)

    def refuse(number: int) -> Callable[..., None]:
        def fallocate(*_: int) -> None:
            raise OSError(number, os.strerror(number))

        return fallocate

    # A file system, or a C library, that knows nothing of it.
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    written = disk.open(tmp_path / "written", create=True)
    assert disk.allocate(written, size) == size
    assert (tmp_path / "written").read_bytes() == bytes(size)
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(written, 2 * size)
    disk.close(written)
