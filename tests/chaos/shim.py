"""Builds and drives shim.c, which makes a member's disk and clock misbehave.

Needs gcc at run time; nothing built is kept.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


class NoShim(Exception):
    """It cannot be built here; the message says why."""


def build(folder: Path) -> Path:
    """Compile the library into `folder`."""
    if shutil.which("gcc") is None:
        raise NoShim("gcc is not installed (apt-get install gcc libc6-dev)")
    made = folder / "shim.so"
    done = subprocess.run(
        ["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NoShim(f"gcc: {done.stderr[-500:]}")
    return made


class Control:
    """The five numbers of one member, in a file that its process has mapped."""

    def __init__(self, library: Path, control: Path, data: Path) -> None:
        self._path = control
        self.calm()
        #: What the member's process is started with.
        self.environment = {
            "LD_PRELOAD": str(library),
            "CHAOS_CONTROL": str(control),
            "CHAOS_DATA": str(data),
        }

    def set(
        self,
        *,
        sync_delay_ms: int = 0,
        sync_errno: int = 0,
        write_errno: int = 0,
        clock_offset_ms: int = 0,
        sync_stalls: bool = False,
    ) -> None:
        """Misbehave from now on, in this way and in no other."""
        numbers = struct.pack(
            "=5q", sync_delay_ms, sync_errno, write_errno, clock_offset_ms, sync_stalls
        )
        # In place: another file of the same name would not be the mapped one.
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(numbers)

    def calm(self) -> None:
        """Behave."""
        self.set()
