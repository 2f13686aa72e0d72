"""The log's files when the process has no descriptor left."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.raft.messages import Configuration, NodeId, Snapshot
from brokerd.storage import snapshots
from brokerd.storage.descriptors import RESERVE_MAX, Reserve, reserve
from brokerd.storage.disk import Disk
from brokerd.storage.errors import NoDescriptor
from brokerd.storage.group_log import EntryCache, GroupLog

CREATE = os.O_RDWR | os.O_CREAT


@pytest.fixture
def no_descriptor_left() -> Iterator[list[int]]:
    """A reserve that was filled before, and then a process that has none left."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, limits[1]))
    try:
        yield taken
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def use_up(taken: list[int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))


def test_a_file_is_opened_with_one_of_the_reserve(
    tmp_path: Path, no_descriptor_left: list[int]
) -> None:
    """A member took EMFILE for a failed disk, and ended."""
    disk = Disk()
    disk.close(disk.open(tmp_path / "first", create=True))
    use_up(no_descriptor_left)
    descriptor = disk.open(tmp_path / "second", create=True)
    disk.sync_directory(tmp_path)
    disk.close(descriptor)


def test_without_a_reserve_it_waits_until_somebody_closes_one(
    tmp_path: Path, no_descriptor_left: list[int]
) -> None:
    """It failed after ten seconds, and the member ended (the log took it for its disk)."""
    reserve = Reserve()
    use_up(no_descriptor_left)
    with pytest.raises(OSError, match="Too many open files"):
        reserve.open(tmp_path / "file", CREATE)
    assert reserve.waiting_s() is None

    class Over(threading.Event):
        """Time that passes: with the third look a descriptor is free."""

        looks = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert reserve.waiting_s() is not None
            self.looks += 1
            if self.looks == 3:
                os.close(no_descriptor_left.pop())
            return self.is_set()

    os.close(reserve.wait_open(tmp_path / "file", CREATE, over := Over()))
    assert over.looks == 3
    assert reserve.waiting_s() is None


def test_nobody_waits_at_the_end(tmp_path: Path, no_descriptor_left: list[int]) -> None:
    reserve = Reserve()
    use_up(no_descriptor_left)
    over = threading.Event()
    over.set()
    with pytest.raises(OSError, match="Too many open files"):
        reserve.wait_open(tmp_path / "file", CREATE, over)
    assert reserve.waiting_s() is None


def test_other_errors_are_not_waited_for(tmp_path: Path, no_descriptor_left: list[int]) -> None:
    reserve, nowhere = Reserve(), tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError):
        reserve.wait_open(nowhere, os.O_RDONLY, threading.Event())
    use_up(no_descriptor_left)

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            os.close(no_descriptor_left.pop())
            return False

    with pytest.raises(FileNotFoundError):
        reserve.wait_open(nowhere, os.O_RDONLY, Over())
    assert reserve.waiting_s() is None


def test_a_snapshot_that_cannot_be_opened_now_is_not_damaged(
    tmp_path: Path, no_descriptor_left: list[int]
) -> None:
    """A leader that sent a snapshot then took its own replica for damaged, and stopped it."""
    disk = Disk()
    snapshot = Snapshot(5, 1, Configuration((NodeId("a"),), ()), b"state")
    path = snapshots.write(disk, tmp_path, 7, snapshot, None)
    use_up(no_descriptor_left)
    while reserve._give_one_up():
        no_descriptor_left.append(os.open(os.devnull, os.O_RDONLY))
    with pytest.raises(NoDescriptor):
        snapshots.read(disk, path)

    def read_snapshot(uid: int, index: int, term: int) -> Snapshot:
        return snapshots.read(disk, path).snapshot

    log = GroupLog(7, lambda *_: b"", read_snapshot, EntryCache(1000), lambda _: Configuration())
    log.snapshot_index, log.snapshot_term = 5, 1
    assert log.snapshot() is None
    assert not log.damaged
    os.close(no_descriptor_left.pop())
    assert log.snapshot() is not None


def test_the_reserve_fills_again_and_other_errors_are_the_disks(tmp_path: Path) -> None:
    reserve = Reserve()
    with pytest.raises(FileNotFoundError):
        reserve.open(tmp_path / "nowhere", os.O_RDONLY)
    os.close(reserve.open(tmp_path, os.O_RDONLY))
    before = len(os.listdir("/proc/self/fd"))
    assert reserve._give_one_up()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    os.close(reserve.open(tmp_path, os.O_RDONLY))
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(RESERVE_MAX):
        assert reserve._give_one_up()
    assert not reserve._give_one_up()
