"""Scenarios as text: a line that begins with "> " is given to a machine, the indented lines below
are what it answers.  For the runners and tests in the folders beside this file.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path


class Runner(ABC):
    """One machine, driven by lines."""

    def run(self, text: str) -> str:
        """Return the transcript with what really comes of its lines."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                lines.append(line)
                lines += [f"    {shown}" for shown in self.step(line[2:])]
                self.check()
            elif not line.startswith("    "):
                lines.append(line)
        return "\n".join(lines) + "\n"

    @abstractmethod
    def step(self, line: str) -> Sequence[str]:
        """Handle one line; return what came of it."""

    def check(self) -> None:
        """Hold the machine against its invariants, where it has some."""
        return


def found_in(test_file: str, at_least: int) -> list[Path]:
    """Return the scenarios beside a test; ValueError where some are missing."""
    found = sorted(Path(test_file).parent.glob("*.txt"))
    if len(found) < at_least:
        raise ValueError(f"{len(found)} scenarios beside {test_file}, there were {at_least}")
    return found


def assert_holds(path: Path, runner: Runner) -> None:
    """A scenario does what it says.

    BROKERD_REWRITE_TRANSCRIPTS=1 writes down what really happens; read the difference before it is
    committed.
    """
    text = path.read_text()
    found = runner.run(text)
    if os.environ.get("BROKERD_REWRITE_TRANSCRIPTS"):
        path.write_text(found)
        return
    assert found == text
