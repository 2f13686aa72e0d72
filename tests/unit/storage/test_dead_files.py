"""Segments that nobody needs any more are deleted beside the writes, and never instead of them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from brokerd.storage.disk import Disk
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import entry, everything, open_log, put_range, save, small

SIZE = 16384


class Reluctant(Disk):
    """Deletes nothing until it is told to, or refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.may_delete = threading.Event()
        self.asked = threading.Event()
        self.deleted: list[str] = []
        self.refuses = False

    def unlink(self, path: Path) -> None:
        if path.suffix == ".free":
            self.asked.set()
            assert self.may_delete.wait(30)
            if self.refuses:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.deleted.append(path.name)
        super().unlink(path)

    def data_sync(self, descriptor: int) -> None:
        """Quickly."""


BACKGROUND = {"in_background": True, "recycled_segments_max": 1}


def retire_many(directory: Path, disk: Disk, notes: list[str] | None = None) -> WriteAheadLog:
    """Return a log in which a dozen segments have just been taken out of use."""
    log = open_log(directory, small(**BACKGROUND), notes, disk=disk)
    put_range(log, 5, 1, 130, size=700)
    save(log, 5, 129, [])
    work = log.collect()
    assert work is not None
    assert len(work.drop) > 10
    log.collect_write(work)
    log.collected(work)
    return log


def test_writes_do_not_wait_for_files_that_are_deleted(tmp_path: Path) -> None:
    disk = Reluctant()
    log = retire_many(tmp_path, disk)
    assert disk.asked.wait(30)
    before = log.stats.bytes_on_disk
    put_range(log, 5, 130, 132)
    assert disk.deleted == []
    # What is still there counts.
    dead = list(tmp_path.glob("*.free"))
    assert before > len(dead) * SIZE > 10 * SIZE
    disk.may_delete.set()
    log._files._dead.join()
    # The one that is kept for the next segment stays.
    assert len(list(tmp_path.glob("*.free"))) == 1
    assert len(disk.deleted) == len(dead) - 1
    assert log.stats.bytes_on_disk == before - len(disk.deleted) * SIZE
    # And again, with a thread of its own.
    put_range(log, 5, 132, 260, size=700)
    save(log, 5, 259, [])
    while (work := log.collect()) is not None:
        log.collect_write(work)
        log.collected(work)
    log._files._dead.join()
    assert len(list(tmp_path.glob("*.free"))) == 1
    log.close()


def test_a_log_that_is_closed_leaves_the_rest_to_its_next_start(tmp_path: Path) -> None:
    disk = Reluctant()
    log = retire_many(tmp_path, disk)
    put_range(log, 5, 130, 132)
    assert disk.asked.wait(30)
    threading.Timer(0.05, disk.may_delete.set).start()
    log.close()
    assert len(disk.deleted) == 1
    assert len(list(tmp_path.glob("*.free"))) > 10
    notes: list[str] = []
    again = open_log(tmp_path, small(**BACKGROUND), notes)
    again._files._dead.join()
    # The one that was kept is the segment that it goes on with.
    assert list(tmp_path.glob("*.free")) == []
    assert again.log(5).last_index() == 131
    assert (again.log(5).damaged, notes) == (False, [])
    again.close()


def test_a_file_that_cannot_be_deleted_is_told_and_the_others_go(tmp_path: Path) -> None:
    disk, notes = Reluctant(), []
    disk.refuses = True
    disk.may_delete.set()
    log = retire_many(tmp_path, disk, notes)
    log._files._dead.join()
    put_range(log, 5, 130, 132)
    left = len(list(tmp_path.glob("*.free")))
    assert left > 10
    assert len(notes) == left - 1
    assert "of which nothing is needed: [Errno 5] Input/output error" in notes[0]
    log.close()


def test_where_no_thread_is_to_be_had_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of processes is no fault of the disk."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk, notes = Reluctant(), []
    disk.may_delete.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        log = retire_many(tmp_path, disk, notes)
        put_range(log, 5, 130, 180, size=700)
    assert set(notes) == {
        "files that nothing needs stay for now: can't start new thread",
        "cannot prepare the next log segment: can't start new thread",
    }
    # With the next ones that nothing needs those before go, too.
    save(log, 5, 179, [])
    work = log.collect()
    assert work is not None
    log.collect_write(work)
    log.collected(work)
    log._files._dead.join()
    assert len(list(tmp_path.glob("*.free"))) == 1
    log.close()


class Full(Reluctant):
    """Has room for nothing new."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def allocate(self, descriptor: int, size: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().allocate(descriptor, size)


def test_a_disk_that_is_full_until_they_are_deleted_has_room_for_the_next_segment(
    tmp_path: Path,
) -> None:
    disk = Full()
    log = retire_many(tmp_path, disk)
    assert disk.asked.wait(30)
    log._files._join_preparation()
    disk.is_full = True
    # More than the segment in use, the one that is kept and the one that is prepared have room for.
    put_range(log, 5, 130, 180, size=700)
    assert log.stats.segments > 4
    disk.may_delete.set()
    log.close()
    notes: list[str] = []
    again = open_log(tmp_path, small(**BACKGROUND), notes)
    assert again.log(5).last_index() == 179
    assert everything(again, 5) == [entry(index, size=700) for index in range(130, 180)]
    assert (again.log(5).damaged, notes) == (False, [])
    again.close()
