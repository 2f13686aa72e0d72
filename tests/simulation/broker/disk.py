"""A disk for the real write-ahead log: forgets, tears, fails and flips bits on purpose.

Adds to storage/faults.py what only a simulated power cut needs: creations, renames and deletions
that no sync of the directory has followed may be undone, the newest first, as a journal would.
The files are real ones in a directory in memory; nothing is ever really synced.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.storage.faults import FaultyDisk

SECTOR_BYTES = 512


@dataclass(slots=True)
class _Operation:
    """A change of a directory: what stands where, and what stood there before."""

    path: Path
    #: Where it came from (rename), or where the deleted file was put aside; None: created.
    before: Path | None
    #: What a rename replaced, put aside.
    replaced: Path | None = None


@dataclass(slots=True)
class SimDisk(FaultyDisk):
    """One member's disk; outlives the member's processes."""

    trash: Path = field(default_factory=Path)
    #: What is random in the log; one for all members, so that no two draw the same.
    salts: random.Random = field(default_factory=random.Random)
    _operations: list[_Operation] = field(default_factory=list)
    _number: int = 0
    #: Number of the file by what the real file system calls it, so that runs are alike.
    _files: dict[int, int] = field(default_factory=dict)

    def random_bytes(self, size: int) -> bytes:
        return self.salts.randbytes(size)

    def identity(self, descriptor: int) -> tuple[int, int]:
        return self._number_of(os.fstat(descriptor).st_ino), 1

    def identity_of(self, path: Path) -> tuple[int, int]:
        """Return which file stands there."""
        return self._number_of(path.stat().st_ino), 1

    def identify(self, path: Path, identity: tuple[int, int]) -> None:
        """Let a file pass for another one."""
        self._files[path.stat().st_ino] = identity[0]

    def _number_of(self, file: int) -> int:
        return self._files.setdefault(file, len(self._files) + 1)

    def forget(self) -> None:
        """What stands there is on disk, whoever put it there."""
        self.unsynced.clear()
        self._operations.clear()

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = FaultyDisk.open(self, path, create=create)
        if create:
            self._operations.append(_Operation(path, None))
        return descriptor

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        space_bytes = self.faults.space_bytes
        if space_bytes is not None and space_bytes < len(data):
            # A device takes whole sectors.
            self.faults.space_bytes = max(0, (offset + space_bytes) // 512 * 512 - offset)
        return FaultyDisk.write_some(self, descriptor, data, offset)

    def rename(self, old: Path, new: Path) -> None:
        replaced = self._put_aside(new) if new.exists() else None
        FaultyDisk.rename(self, old, new)
        self._operations.append(_Operation(new, old, replaced))

    def unlink(self, path: Path) -> None:
        self._operations.append(_Operation(path, self._put_aside(path)))
        self.unsynced.pop(str(path), None)

    def sync_directory(self, path: Path) -> None:
        self._operations.clear()

    def _put_aside(self, path: Path) -> Path:
        self._number += 1
        aside = self.trash / str(self._number)
        os.rename(path, aside)
        return aside

    def cut_power(self, rng: random.Random) -> int:
        """Lose what was not synced, all of it, none, or sector by sector; return lost sectors."""
        mode = rng.choice(("all", "none", "some", "tail"))
        border = rng.randrange(1 << 14)

        def is_lost(path: Path, offset: int) -> bool:
            if mode == "some":
                return rng.random() < 0.5
            return mode == "all" or (mode == "tail" and offset % (1 << 14) >= border)

        lost = self.crash(is_lost, SECTOR_BYTES)
        for _ in range(rng.randrange(len(self._operations) + 1)):
            self._undo(self._operations.pop())
        self._operations.clear()
        self.paths.clear()
        return lost

    def _undo(self, operation: _Operation) -> None:
        path, before = operation.path, operation.before
        if before is None:
            path.unlink()
            return
        if before.parent != self.trash:
            os.rename(path, before)
            if operation.replaced is not None:
                os.rename(operation.replaced, path)
            return
        os.rename(before, path)

    def repair(self) -> None:
        """The device works again."""
        self.faults.write_fails_at = self.faults.sync_fails_at = 0
        self.faults.space_bytes = None


def flip_bit(directory: Path, rng: random.Random, header_bytes: int) -> str | None:
    """Flip one bit of something written behind a file's header; return where, None: nothing."""
    paths = sorted(path for path in directory.iterdir() if path.suffix in (".log", ".snap"))
    rng.shuffle(paths)
    for path in paths:
        data = path.read_bytes()
        used = len(data.rstrip(b"\0"))
        first = header_bytes if path.suffix == ".log" else 0
        if used <= first:
            continue
        at = rng.randrange(first, used)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes((data[at] ^ 1 << rng.randrange(8),)))
        return f"{path.name}+{at}"
    return None
