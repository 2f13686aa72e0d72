"""Runs mutmut over one room in a copy of the tree, and gives the survivors a second chance.

For the mutation run only.  mutmut makes the mutants, runs for each the tests that reach the
function, and keeps the exit codes; sampling, the thorough tests and the report are ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutation.changes import Change, read_changes
from tools.mutation.rooms import Room

#: What a test run needs of the tree.
COPIED = ("brokerd", "tests", "tools", "bench", "docs", "operator", "telemetry", "crds", "protos")
#: Seconds for the thorough tests of one mutant: about ten times what they take.
THOROUGH_SECONDS = 600
#: Names that go to one mutmut command; bounded by the length of a command line.
NAMES_MAX = 200
#: Exit codes by which mutmut says that no test failed: survived, none collected, none reaches it.
_ALIVE = {0: "survived", 5: "no test", 33: "no test"}
#: A mutant that hangs is noticed, and counted apart.
_TIMED_OUT = {24, -24, 36, 152, 255}


class RunError(Exception):
    """The tests fail without any mutant, or mutmut did not do what it was asked for."""


@dataclass(slots=True)
class Mutant:
    """One mutant and what became of it: killed, timed out, survived, no test."""

    name: str
    change: Change
    verdict: str


class RoomRun:
    """A copy of the tree in `folder` with one room's mutants."""

    def __init__(self, root: Path, folder: Path, room: Room, jobs: int, only: str = "") -> None:
        self.room = room
        self.folder = folder
        self.mutants = folder / "mutants"
        self._jobs = jobs
        _copy(root, folder)
        (folder / "pyproject.toml").write_text(
            (root / "pyproject.toml").read_text() + _settings(room, folder, only)
        )

    def generate(self) -> dict[str, Change]:
        """Make all mutants of the room; return those that change what the code does."""
        # The second name matches nothing: mutants, the map of tests, and a clean run.
        first = self._mutmut("none")
        files = self._files()
        if not files or "matches" not in first.stdout + first.stderr:
            raise RunError(f"mutmut made no mutants of {self.room.name}:\n{_end(first)}")
        found: dict[str, Change] = {}
        for file in files:
            found |= read_changes(self.mutants, file)
        return {
            name: change
            for name, change in found.items()
            if not change.is_wording and not change.is_oracle
        }

    def run(
        self, wanted: dict[str, Change], report: Callable[[str], None], *, is_thorough: bool
    ) -> Iterator[Mutant]:
        """Try the wanted mutants; yield each with its verdict."""
        names = sorted(wanted)
        for start in range(0, len(names), NAMES_MAX):
            chunk = names[start : start + NAMES_MAX]
            done = self._mutmut(*chunk)
            codes = self._exit_codes()
            if any(codes.get(name) is None for name in chunk):
                raise RunError(f"mutmut did not try all mutants:\n{_end(done)}")
            alive = sum(codes[name] in _ALIVE for name in chunk)
            report(f"{self.room.name}: {start + len(chunk)} of {len(names)} tried, {alive} alive")
            for name in chunk:
                code = codes[name]
                verdict = "timed out" if code in _TIMED_OUT else _ALIVE.get(code, "killed")
                if is_thorough and code in _ALIVE and self._is_killed_thoroughly(name):
                    verdict = "killed"
                yield Mutant(name, wanted[name], verdict)

    def _is_killed_thoroughly(self, name: str) -> bool:
        if not self.room.thorough_tests:
            return False
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly"]
        command += ["-p", "no:cacheprovider", *self.room.thorough_tests]
        environment = {**_environment(self.mutants), "MUTANT_UNDER_TEST": name}
        try:
            done = subprocess.run(
                command,
                cwd=self.mutants,
                env=environment,
                capture_output=True,
                timeout=THOROUGH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0

    def _mutmut(self, *names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(self._jobs), *names]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(self.folder),
            capture_output=True,
            text=True,
            check=False,
        )

    def _files(self) -> list[str]:
        folder = self.mutants / self.room.folder
        metas = [path.relative_to(self.mutants) for path in sorted(folder.rglob("*.py.meta"))]
        return [meta.as_posix().removesuffix(".meta") for meta in metas]

    def _exit_codes(self) -> dict[str, int]:
        codes: dict[str, int] = {}
        for file in self._files():
            meta = json.loads((self.mutants / f"{file}.meta").read_text())
            codes |= meta["exit_code_by_key"]
        return codes


def _copy(root: Path, folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.png")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=ignored, dirs_exist_ok=True)


def _settings(room: Room, folder: Path, only: str) -> str:
    def items(values: Sequence[str]) -> str:
        return json.dumps(list(values))

    sources = [
        name
        for name in _expanded(room.sources, folder)
        if any(part in name for part in only.split(","))
    ]
    tests = _expanded(room.quick_tests, folder)
    arguments = ["-p", "no:randomly", "-p", "no:cacheprovider", "--timeout", "0"]
    for name in room.left_out:
        arguments += ["--deselect", name]
    copied = [name for name in COPIED if (folder / name).is_dir()]
    return (
        "\n[tool.mutmut]\n"
        f"source_paths = {items([room.folder])}\n"
        f"only_mutate = {items(sources)}\n"
        f"also_copy = {items(copied)}\n"
        f"pytest_add_cli_args_test_selection = {items(tests)}\n"
        f"pytest_add_cli_args = {items(arguments)}\n"
        "use_git_change_detection = false\n"
        "track_dependencies = false\n"
        # Seconds of patience beyond what the tests took: the machine may be busy.
        "timeout_constant = 3.0\n"
    )


def _expanded(patterns: Sequence[str], folder: Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    ]


def _environment(folder: Path) -> dict[str, str]:
    paths = [folder, folder / "operator", folder / "telemetry"]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    found.pop("MUTANT_UNDER_TEST", None)
    return found


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((done.stdout + done.stderr).splitlines()[-30:])
