"""Processes that are forks of one that has made the imports."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import Warm

PROGRAM = """
import os, signal, sys
what = sys.argv[1]
print(what, os.environ.get("SAID"), os.getcwd(), flush=True)
if what == "wait":
    signal.pause()
sys.exit({"number": 3, "text": "a reason", "nothing": None}[what])
"""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "program_of_a_test.py").write_text(PROGRAM)
    found = Warm(["json"], [tmp_path / "programs"], {})
    yield found
    found.close()


@pytest.mark.parametrize(("what", "status"), [("number", 3), ("text", 1), ("nothing", 0)])
def test_a_program_ends_with_its_own_status(
    warm: Warm, tmp_path: Path, what: str, status: int
) -> None:
    log = tmp_path / "log"
    process = warm.start(["program_of_a_test", what], {"SAID": "this"}, log, tmp_path)
    assert process.wait(60) == process.poll() == status
    reason = "a reason\n" if what == "text" else ""
    assert log.read_text() == f"{what} this {tmp_path}\n{reason}"


def test_an_unknown_exception_is_printed_and_fails(warm: Warm, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert warm.start(["program_of_a_test", "else"], {}, log, tmp_path).wait(60) == 70
    assert "KeyError: 'else'" in log.read_text()


def test_signals_reach_one_of_several(warm: Warm, tmp_path: Path) -> None:
    processes = [
        warm.start(["program_of_a_test", "wait"], {}, tmp_path / f"log{i}", tmp_path)
        for i in range(3)
    ]
    with pytest.raises(subprocess.TimeoutExpired):
        processes[0].wait(0.01)
    processes[1].kill()
    assert processes[1].wait(60) == -signal.SIGKILL
    assert processes[0].poll() is None
    for process in (processes[0], processes[2]):
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    # Somebody else may have its number by now.
    processes[1].kill()
