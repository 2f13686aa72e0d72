"""The next segment is there before it is needed, and better the longer there is time for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.storage import disk as disks
from brokerd.storage.disk import Disk
from brokerd.storage.segments import SegmentFiles
from tests.unit.storage.builders import small

SIZE = 16384


class Watched(Disk):
    """Tells when it is asked for zeros in pieces, and how far it got."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.fails: OSError | None = None

    def zero(
        self, descriptor: int, size: int, is_over: Callable[[float], bool] | None = None
    ) -> None:
        if is_over is None:
            super().zero(descriptor, size)
            return
        self.begun.set()
        if self.fails is not None:
            raise self.fails
        # As if a piece had taken ten seconds: only who is waited for goes on.
        assert is_over(10.0)


def files_of(tmp_path: Path, disk: Disk, notes: list[str]) -> SegmentFiles:
    config = small(prepare_ahead=True, recycled_segments_max=0)
    return SegmentFiles(tmp_path, config, disk, notes.append)


def test_a_segment_is_taken_before_its_zeros_are_written(tmp_path: Path) -> None:
    disk, notes = Watched(), list[str]()
    files = files_of(tmp_path, disk, notes)
    first = files.create(0, 0)
    assert disk.begun.wait(10)
    assert (tmp_path / "spare.tmp").read_bytes() == bytes(SIZE)
    second = files.create(0, 1)
    assert (first.segment, second.segment, second.header.fresh) == (1, 2, True)
    assert os.path.getsize(files.path(2)) == SIZE
    files.close()
    assert notes == []


def test_a_segment_whose_zeros_fail_is_made_anew(tmp_path: Path) -> None:
    disk, notes = Watched(), list[str]()
    disk.fails = OSError(errno.EIO, os.strerror(errno.EIO))
    files = files_of(tmp_path, disk, notes)
    files.create(0, 0)
    files.create(0, 1)
    assert files.path(2).exists()
    files.close()
    assert set(notes) == {
        "cannot prepare the next log segment: [Errno 5] Input/output error",
    }


def test_zeros_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "ZEROS", bytes(4096))
    disk, pieces = Disk(), list[float]()
    (tmp_path / "file").write_bytes(b"x" * 20_000)

    def is_over(seconds: float) -> bool:
        pieces.append(seconds)
        return len(pieces) == 2

    descriptor = disk.open(tmp_path / "file")
    disk.zero(descriptor, 20_000, is_over)
    assert disk.read(descriptor, 20_000, 0) == bytes(8192) + b"x" * 11_808
    disk.zero(descriptor, 20_000, is_over)
    assert disk.read(descriptor, 20_000, 0) == bytes(20_000)
    assert len(pieces) == 2 + 5
    assert all(seconds > 0 for seconds in pieces)
    disk.close(descriptor)


def test_space_is_reserved_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    reserved = disk.open(tmp_path / "reserved", create=True)
    disk.allocate(reserved, SIZE)
    assert (tmp_path / "reserved").read_bytes() == bytes(SIZE)
    disk.close(reserved)

    def refuse(number: int) -> Callable[..., None]:
        def fallocate(*_: int) -> None:
            raise OSError(number, os.strerror(number))

        return fallocate

    # A file system, or a C library, that knows nothing of it.
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    written = disk.open(tmp_path / "written", create=True)
    disk.allocate(written, SIZE)
    assert (tmp_path / "written").read_bytes() == bytes(SIZE)
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(written, 2 * SIZE)
    disk.close(written)
