"""A run of tests.operator.scale leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster_fixtures import require_binaries
from tests.operator.operator_process import wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

#: More than are made before a signal comes.
MANY = 100_000
FEW = 5
#: Of the API level, on two busy cores.
START_S = 180.0
CONTROLLER = "kube-controller-manager"


@contextmanager
def _run(folder: Path, count: int) -> Iterator[psutil.Popen]:
    """A run with folders of its own; what it left behind is ended."""
    require_binaries()
    with (folder / "said").open("wb") as said:
        process = psutil.Popen(
            [sys.executable, "-m", "tests.operator.scale", "--count", str(count)],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=said,
            stderr=said,
        )
        try:
            yield process
        finally:
            for left in (*_started(folder), process):
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()


def _started(folder: Path) -> list[psutil.Process]:
    """What this run started with something of its folder on its command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "name"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "etcd"),
        (signal.SIGINT, CONTROLLER),
        (signal.SIGKILL, "etcd"),
        (signal.SIGKILL, CONTROLLER),
    ],
)
def test_a_run_that_is_ended_by_a_signal_leaves_nothing_behind(
    number: int, moment: str, tmp_path: Path
) -> None:
    """While the API server starts, and when everything is there."""
    with _run(tmp_path, MANY) as run:
        wait_for(f"{moment} runs", lambda: moment in _names(tmp_path), START_S)
        run.send_signal(number)
        assert run.wait(START_S) in (128 + number, -number)
        _assert_nothing_is_left(tmp_path)


def test_a_run_whose_operator_ends_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with _run(tmp_path, FEW) as run:
        wait_for("operator runs", lambda: _operators(run), START_S)
        for operator in _operators(run):
            operator.kill()
        assert run.wait(START_S) == 1
        _assert_nothing_is_left(tmp_path)


def _names(folder: Path) -> set[str]:
    return {process.info["name"] for process in _started(folder)}


def _operators(run: psutil.Popen) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "ppid"])
        if process.info["ppid"] == run.pid
        and (process.info["cmdline"] or ())[-1:] == ["brokerd_operator"]
    ]


def _assert_nothing_is_left(folder: Path) -> None:
    wait_for("all has ended", lambda: not _started(folder))
    wait_for("the folder is gone", lambda: not list(folder.glob("scale-*")))
