"""The few file operations the room is built on, in one place, so that tests can make them fail.

`Disk` is the real thing; `faults.FaultyDisk` fails, tears and forgets on purpose.  Only this room
uses it.  Nothing here retries: what failed has failed (design/replication.md §1); that the process
has no descriptor left is no failure of the disk (descriptors.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

from brokerd.storage.birth_time import birth_time_ns
from brokerd.storage.descriptors import reserve
from brokerd.storage.errors import DirectoryLocked

ZEROS = bytes(256 << 10)
LOCK_NAME = "LOCK"

#: What file systems and C libraries say that cannot reserve space.
CANNOT_RESERVE = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))


class _InFlight:
    """Since when the call that the disk is at has not returned; None: it is at none (ADR 68).

    The thread that calls writes it, any thread reads it.
    """

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        self.since_s: float | None = None

    def __enter__(self) -> None:
        self.since_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.since_s = None


class Disk:
    """File operations by descriptor and offset; every method raises OSError as the kernel does.

    One thread changes files, once a log is open.
    """

    def __init__(self) -> None:
        #: Set when no caller waits any more for what is written.
        self._is_over = threading.Event()
        self._in_flight = _InFlight()

    def in_flight_s(self) -> float:
        """Return for how long the disk has not answered the change that it is at; 0: none."""
        since_s = self._in_flight.since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open for reading and writing; `create` makes a new file and refuses an existing one.

        Waits while there is no descriptor, unless stop_waiting() was called.
        """
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        return reserve.wait_open(path, flags, self._is_over)

    def open_now(self, path: Path) -> int:
        """Open an existing file without waiting for a descriptor: for the event loop."""
        return reserve.open(path, os.O_RDWR)

    def stop_waiting(self) -> None:
        """Nothing waits for descriptors from here on: who has none fails."""
        self._is_over.set()

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Write at `offset`; may write less than given, like pwrite(2)."""
        with self._in_flight:
            return os.pwrite(descriptor, data, offset)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`."""
        done = self.write_some(descriptor, data, offset)
        while done < len(data):
            step = self.write_some(descriptor, memoryview(data)[done:], offset + done)
            if step <= 0:
                raise OSError(5, "the device accepted no bytes")
            done += step

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a new file and sync it; its name is not durable yet."""
        descriptor = self.open(path, create=True)
        try:
            self.write(descriptor, data, 0)
            self.sync(descriptor)
        finally:
            self.close(descriptor)

    def allocate(self, descriptor: int, size: int) -> int:
        """Give an empty file this size and its space, durably; it reads as zeros.

        Return how much of it is written; the rest is reserved.
        """
        written = 0
        try:
            with self._in_flight:
                os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in CANNOT_RESERVE:
                raise
            self.zero(descriptor, size)
            written = size
        self.sync(descriptor)
        return written

    def zero(self, descriptor: int, size: int) -> None:
        """Write `size` zeros."""
        for offset in range(0, size, len(ZEROS)):
            self.write(descriptor, ZEROS[: min(len(ZEROS), size - offset)], offset)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; less only at the end of the file."""
        data = os.pread(descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def data_sync(self, descriptor: int) -> None:
        with self._in_flight:
            os.fdatasync(descriptor)

    def sync(self, descriptor: int) -> None:
        with self._in_flight:
            os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        with self._in_flight:
            os.ftruncate(descriptor, size)

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return which file this is: a copy is another one, whatever stands in it.

        Its number and when it was made, in nanoseconds (0 where the file system does not say); a
        number alone is given again as soon as the file it belonged to is gone.
        """
        return os.fstat(descriptor).st_ino, birth_time_ns(descriptor)

    def random_bytes(self, size: int) -> bytes:
        """Return bytes that no other draw repeats."""
        return os.urandom(size)

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def rename(self, old: Path, new: Path) -> None:
        with self._in_flight:
            os.rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._in_flight:
            os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and deletions in `path` durable."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        descriptor = reserve.wait_open(path, flags, self._is_over)
        try:
            with self._in_flight:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock(directory: Path) -> int:
    """Keep other processes out, for as long as the descriptor is open; DirectoryLocked."""
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise DirectoryLocked(
            f"{directory} is in use by another process (pid {holder or 'unknown'})"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor
