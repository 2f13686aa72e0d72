"""Clusters of the benches as processes: started, killed, started again, and nothing left."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from bench import processes
from bench.processes import BenchError, Nodes

#: It says that it runs, with a child that would outlive it, and stays.
PROGRAM = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"])
open(sys.argv[1], "w").write("ready")
print("these were its words", flush=True)
child.wait()
"""
BROKEN = "import sys; sys.exit('no such setting')"


class Programs(Nodes):
    """Two of them."""

    def __init__(self, program: str) -> None:
        super().__init__("test")
        self._program = program
        self.seen: Path | None = None

    def start(self) -> None:
        with self.starting():
            self.seen = self.folder
            for number in range(2):
                self.start_again(number)
            for number in range(2):
                self.wait_for_node(number, self.is_ready)

    def start_again(self, number: int) -> None:
        command = [sys.executable, "-c", self._program, str(self.folder / f"ready{number}")]
        self.run_node(number, command)

    def is_ready(self, number: int) -> bool:
        return (self.folder / f"ready{number}").exists()


def alive(pids: list[int]) -> list[int]:
    """Those that run; one that has ended may still wait for init to take notice of it."""
    return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends this process is pytest's business."""
    monkeypatch.setattr(processes.signal, "signal", lambda *_: None)


def test_a_killed_node_is_started_again_in_its_place_and_in_the_end_nothing_is_left() -> None:
    cluster = Programs(PROGRAM)
    cluster.start()
    try:
        folder, first = cluster.folder, cluster.pids()
        assert len(first) == 4
        cluster.kill(0)
        assert len(alive(first)) == 2
        (folder / "ready0").unlink()
        cluster.start_again(0)
        cluster.wait_for_node(0, cluster.is_ready)
        second = cluster.pids()
        assert len(second) == 4
        assert len(set(first) & set(second)) == 2
        assert (folder / "n0.log").read_text() == "these were its words\n" * 2
    finally:
        cluster.stop()
    # The last signal to a session is not awaited.
    deadline = time.monotonic() + 30
    while alive(first + second):
        assert time.monotonic() < deadline
    assert not folder.exists()
    assert cluster.pids() == []


def test_a_start_that_fails_says_what_the_node_said_and_leaves_nothing() -> None:
    cluster = Programs(BROKEN)
    with pytest.raises(BenchError, match="test n0 ended with status 1 while starting") as caught:
        cluster.start()
    assert "n0.log: ...no such setting" in caught.value.__notes__[0]
    assert cluster.seen is not None
    assert not cluster.seen.exists()
    assert cluster.pids() == []
