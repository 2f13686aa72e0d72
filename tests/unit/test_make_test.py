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
    assert rest == ["-q --some-option --ignore=tests/unit/raft tests/one.py tests/two"]


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
