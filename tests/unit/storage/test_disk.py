"""For how long a disk has not answered, as another thread sees it (ADR 68)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerd.storage.disk import Disk


class Silent:
    """Calls of the system that do not return until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        for name in names:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.begun.set()
            assert self.let_go.wait(60)
            return real(*arguments)

        return call


CALLS: dict[str, tuple[tuple[str, ...], Callable[[Disk, int, Path], object]]] = {
    "write": (("pwrite",), lambda disk, file, _: disk.write(file, b"data", 0)),
    "data_sync": (("fdatasync",), lambda disk, file, _: disk.data_sync(file)),
    "sync": (("fsync",), lambda disk, file, _: disk.sync(file)),
    "sync_directory": (("fsync",), lambda disk, _, path: disk.sync_directory(path.parent)),
    "allocate": (("posix_fallocate",), lambda disk, file, _: disk.allocate(file, 4096)),
    "truncate": (("ftruncate",), lambda disk, file, _: disk.truncate(file, 0)),
    "rename": (("rename",), lambda disk, _, path: disk.rename(path, path.with_name("b"))),
    "unlink": (("unlink",), lambda disk, _, path: disk.unlink(path)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_has_not_returned_is_seen_from_outside(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = Disk(), tmp_path / "a"
    file = disk.open(path, create=True)
    names, do = CALLS[call]
    assert disk.in_flight_s() == 0
    silent = Silent(monkeypatch, *names)
    thread = threading.Thread(target=do, args=(disk, file, path))
    thread.start()
    try:
        assert silent.begun.wait(60)
        assert disk.in_flight_s() > 0
    finally:
        silent.let_go.set()
        thread.join()
    assert disk.in_flight_s() == 0
    disk.close(file)


def test_a_call_that_fails_has_returned(tmp_path: Path) -> None:
    disk = Disk()
    with pytest.raises(FileNotFoundError):
        disk.unlink(tmp_path / "none")
    assert disk.in_flight_s() == 0
