"""Log lines bear a priority where stderr is systemd's journal, and nowhere else."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.config import LogConfig
from brokerd.server import logs


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, whose handlers and level come back."""
    found = logging.getLogger()
    handlers, level = list(found.handlers), found.level
    yield found
    found.handlers[:] = handlers
    found.setLevel(level)


@pytest.mark.parametrize("is_journal", [True, False])
def test_lines_of_the_journal_bear_a_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: logging.Logger, is_journal: bool
) -> None:
    file = tmp_path / "stderr"
    with file.open("w") as stream:
        found = os.fstat(stream.fileno())
        inode = found.st_ino if is_journal else found.st_ino + 1
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{inode}")
        monkeypatch.setattr(sys, "stderr", stream)
        logs.set_up(LogConfig(level="debug"))
        for level in (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG):
            root.log(level, "first\nsecond")
    lines = file.read_text().splitlines()
    assert [line.rpartition("] ")[2] for line in lines[::2]] == ["first"] * 4
    starts = [line[:3] for line in lines]
    wanted = [f"<{number}>" for number in (3, 3, 4, 4, 6, 6, 7, 7)]
    assert (starts == wanted) is is_journal
    assert is_journal or not any(line.startswith("<") for line in lines)
