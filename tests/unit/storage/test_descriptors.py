"""The log's files when the process has no descriptor left."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.storage import descriptors
from brokerd.storage.descriptors import RESERVE_MAX, Reserve
from brokerd.storage.disk import Disk


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


def test_without_a_reserve_it_waits_and_then_fails(
    tmp_path: Path, no_descriptor_left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve()
    monkeypatch.setattr(descriptors, "PATIENCE_S", 0.1)
    use_up(no_descriptor_left)
    with pytest.raises(OSError, match="Too many open files"):
        reserve.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)

    def somebody_closes_one(_: float | None = None) -> bool:
        os.close(no_descriptor_left.pop())
        return False

    monkeypatch.setattr(reserve, "_wait", somebody_closes_one)
    monkeypatch.setattr(descriptors, "PATIENCE_S", 10.0)
    os.close(reserve.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))


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
