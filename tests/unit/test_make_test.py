"""`make test` runs parts side by side: what one of them prints stays together, and ends in time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "test_part.sh"


def run_part(
    folder: Path, pytest_program: str, part: str, minutes: str = "1"
) -> subprocess.CompletedProcess[str]:
    """One part whose pytest is a program of ours."""
    program = folder / ".venv" / "bin" / "pytest"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/usr/bin/env bash\n{pytest_program}\n")
    program.chmod(0o755)
    (folder / "logs").mkdir()
    env = os.environ | {
        "PART_LOGS": "logs",
        "PART_MINUTES": minutes,
        "PYTEST_OPTIONS": "--some-option",
        "PURE_TESTS": "tests/unit/raft",
    }
    return subprocess.run(
        ["bash", str(SCRIPT), part], cwd=folder, env=env, text=True, capture_output=True, timeout=60
    )


def test_a_part_that_passes_shows_what_it_printed(tmp_path: Path) -> None:
    done = run_part(tmp_path, 'echo "$@"', "tests/one.py tests/two")
    assert done.returncode == 0
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith("== tests/one.py tests/two: begins")
    assert second.startswith("== tests/one.py tests/two: passed in ")
    cache = "-o cache_dir=logs/cache-tests-one-py"
    assert rest == [f"-q {cache} --some-option --ignore=tests/unit/raft tests/one.py tests/two"]


@pytest.mark.parametrize("status", [1, 2, 255])
def test_a_part_that_fails_says_so_and_the_others_go_on(tmp_path: Path, status: int) -> None:
    """xargs ends everything at 255."""
    done = run_part(tmp_path, f"echo what failed; exit {status}", "tests/one.py")
    assert done.returncode == 1
    assert f"== tests/one.py: FAILED ({status}) in " in done.stdout
    assert done.stdout.endswith("what failed\n")


def test_a_part_that_takes_too_long_is_interrupted_and_says_where_it_was(tmp_path: Path) -> None:
    program = "trap 'echo was here; exit 2' INT; while :; do sleep 0.1; done"
    done = run_part(tmp_path, program, "tests/one.py", minutes="0.02")
    assert done.returncode == 1
    assert "was here\n" in done.stdout
    assert "interrupted after 0.02 minutes (PART_MINUTES)" in done.stdout


def test_failures_on_real_nodes_are_few_before_they_are_told(tmp_path: Path) -> None:
    done = run_part(tmp_path, 'echo "$@"', "tests/e2e")
    assert "--maxfail=3" in done.stdout


#: Fails until it is asked for what failed last.
FAILS_ONCE = """
case "$*" in
  *--last-failed*) echo again; exit 0 ;;
  *) echo "FAILED tests/a.py::test_a"; exit 1 ;;
esac"""


def test_a_failure_is_run_again_by_itself_and_told(tmp_path: Path) -> None:
    done = run_part(tmp_path, FAILS_ONCE, "tests/integration")
    assert done.returncode == 0
    assert "1 failed, and are run again by themselves\nagain\n" in done.stdout
    assert (tmp_path / "logs" / "second-try").read_text() == "FAILED tests/a.py::test_a\n"


@pytest.mark.parametrize(
    ("part", "program"),
    [
        ("tests/integration", "echo 'FAILED tests/a.py::test_a'; exit 1"),
        ("tests/integration", "for t in a b c; do echo FAILED tests/a.py::$t; done; exit 1"),
        ("tests/integration", "echo 'FAILED tests/a.py::test_a'; exit 2"),
    ],
    ids=["again", "many", "interrupted"],
)
def test_other_failures_fail_the_part(tmp_path: Path, part: str, program: str) -> None:
    done = run_part(tmp_path, program, part)
    assert done.returncode == 1
    assert not (tmp_path / "logs" / "second-try").exists()
