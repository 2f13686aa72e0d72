"""`make test` runs parts side by side: what one of them prints stays together, and ends in time."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "test_part.sh"


def run_part(
    folder: Path,
    pytest_program: str,
    part: str,
    minutes: str = "1",
    options: str = "--randomly-seed=7",
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
        "PYTEST_OPTIONS": options,
        "PURE_TESTS": "tests/unit/raft",
    }
    return subprocess.run(
        ["bash", str(SCRIPT), part], cwd=folder, env=env, text=True, capture_output=True, timeout=60
    )


def test_each_test_is_in_one_part() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^PARTS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert found is not None
    parts = shlex.split(found[1].replace("\\\n", " "))
    paths = [path for part in parts for name in part.split() for path in ROOT.glob(name)]
    for file in ROOT.glob("tests/**/test_*.py"):
        is_in = [path for path in paths if file == path or path in file.parents]
        assert len(is_in) == 1, f"{file.relative_to(ROOT)} is in {len(is_in)} parts"


def test_a_part_that_passes_shows_what_it_printed(tmp_path: Path) -> None:
    done = run_part(tmp_path, 'echo "$@"', "tests/one.py tests/two")
    assert done.returncode == 0
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith("== tests/one.py tests/two: begins")
    assert second.startswith("== tests/one.py tests/two: passed in ")
    cache = "-o cache_dir=logs/cache-tests-one-py"
    assert rest == [f"-q {cache} --randomly-seed=7 --ignore=tests/unit/raft tests/one.py tests/two"]


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
  *) echo "FAILED tests/a.py::test_a[b - c] - AssertionError: 1"; exit 1 ;;
esac"""
#: Two tests, of which one fails again.
FAILS_AGAIN = """
case "$*" in
  *--last-failed*) echo "ERROR tests/a.py::test_b - at its end"; exit 1 ;;
  *) echo "FAILED tests/a.py::test_a - once"; echo "FAILED tests/a.py::test_b - 1"; exit 1 ;;
esac"""
#: `make coverage` runs again by itself what failed.
FAILS_ONCE_UNDER_COVERAGE = """test-compiled:
coverage:
\t@echo "FAILED tests/a.py::test_a - once"
\t@echo "== coverage: what failed: run again by themselves"
"""


def last_lines(folder: Path) -> list[str]:
    """What `make test` says after all its parts."""
    command = ["bash", str(SCRIPT), "second-tries"]
    env = os.environ | {"PART_LOGS": "logs"}
    return subprocess.check_output(command, cwd=folder, env=env, text=True).splitlines()


def test_a_failure_is_run_again_by_itself_and_stands_in_the_last_lines(tmp_path: Path) -> None:
    """With the order of the tests, in which it may fail each time."""
    done = run_part(tmp_path, FAILS_ONCE, "tests/integration")
    assert done.returncode == 0
    assert "1 failed: run again by themselves\nagain\n" in done.stdout
    head, *tries = last_lines(tmp_path)
    assert head.startswith("== second tries: 1, ")
    line = "FAILED tests/a.py::test_a[b - c] - AssertionError: 1 (--randomly-seed=7)"
    assert tries == [line]


def test_each_part_has_an_order_that_can_be_had_again(tmp_path: Path) -> None:
    run_part(tmp_path, FAILS_ONCE, "tests/integration", options="-x")
    (line,) = last_lines(tmp_path)[1:]
    assert re.search(r" \(--randomly-seed=\d+\)$", line)
    again = run_part(tmp_path / "fixed", 'echo "$@"', "tests/one.py", options="-p no:randomly")
    assert "seed" not in again.stdout


def test_a_run_without_second_tries_says_so(tmp_path: Path) -> None:
    run_part(tmp_path, "exit 0", "tests/integration")
    assert last_lines(tmp_path) == ["== second tries: none"]


def test_of_a_part_that_fails_what_failed_once_only_is_told_too(tmp_path: Path) -> None:
    assert run_part(tmp_path, FAILS_AGAIN, "tests/integration").returncode == 1
    assert last_lines(tmp_path)[1:] == ["FAILED tests/a.py::test_a - once (--randomly-seed=7)"]


def test_what_coverage_runs_again_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(FAILS_ONCE_UNDER_COVERAGE)
    assert run_part(tmp_path, "exit 9", "coverage").returncode == 0
    assert last_lines(tmp_path)[1:] == ["FAILED tests/a.py::test_a - once (--randomly-seed=7)"]


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
    assert last_lines(tmp_path) == ["== second tries: none"]


def test_make_test_ends_with_the_second_tries() -> None:
    """And `make coverage` says that it runs something again in the words that are looked for."""
    makefile = (SCRIPT.parents[1] / "Makefile").read_text()
    recipe = re.search(r"^test: .*?\n\n", makefile, re.MULTILINE | re.DOTALL)
    assert recipe is not None
    assert recipe[0].rstrip().endswith("bash tools/test_part.sh second-tries; exit $$status")
    assert ': run again by themselves"' in makefile
