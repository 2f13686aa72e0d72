"""Ports that tests are given (tests/ports.py) are nobody else's, test runs beside it included."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.members import REPOSITORY
from tests.ports import free_ports

#: More than one block.
COUNT = 150
PROGRAM = f"""
from tests.ports import free_ports
print(*free_ports({COUNT}), flush=True)
input()
"""


def test_no_two_test_runs_are_given_the_same_port() -> None:
    """One of a member that is stopped for a moment was taken by a member of another part."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    given = free_ports(COUNT)
    for run in runs:
        assert run.stdout is not None
        given += map(int, run.stdout.readline().split())
    for run in runs:
        run.communicate("\n")
        assert run.returncode == 0
    assert len(set(given)) == len(given) == 3 * COUNT
