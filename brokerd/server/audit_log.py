"""The audit log: a JSON line for each change that somebody asked for, in a file of its own.

Of its own, since a thousand declares a second would drown the ordinary log, and since readers of
one need not have access to the other.  Written on a thread, what has come within a moment in one
write; older files are renamed and the oldest go, so that it has a bound.  A file that cannot be
written stops nothing: lines that are lost are counted, and the log says so.  What a record holds is
decided in server/catalog/audit.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd.server.access.limited_log import LimitedLog

if TYPE_CHECKING:
    from brokerd.config import AuditConfig
    from brokerd.server.catalog.audit import Author

log = logging.getLogger(__name__)
#: Where lines go that are to stand in the ordinary log.
lines_log = logging.getLogger("brokerd.audit")

#: Lines are written this long after the first of them.
WRITE_AFTER_S = 0.2
#: Lines that wait while the disk is slow; beyond that they are lost.
BUFFER_BYTES_MAX = 8 * 1024 * 1024


class AuditLog:
    """State: the lines that wait, the write under way."""

    def __init__(self, config: AuditConfig, data_dir: Path, clock_ms: Callable[[], int]) -> None:
        """clock_ms() is the wall clock."""
        self._destination = config.destination
        self._file = AuditFile(
            Path(config.path) if config.path else data_dir / "audit.log",
            config.file_bytes,
            config.files,
        )
        self._clock_ms = clock_ms
        self._lines: list[bytes] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._complaints = LimitedLog(log, "audit records that were lost")
        #: Since the start.
        self.records_total = self.lost_total = 0

    def write(self, author: Author, fields: Mapping[str, Any]) -> None:
        """Take a record; it is in the file after a moment."""
        if self._destination == "none":
            return
        self.records_total += 1
        time = datetime.fromtimestamp(self._clock_ms() / 1000, UTC)
        record = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "user": author.user,
            "door": author.door,
            "address": author.address,
            **fields,
        }
        # ASCII, so that no name can break a line or a terminal.
        line = json.dumps(record, separators=(",", ":"), default=str)
        if self._destination == "log":
            lines_log.info("%s", line)
            return
        raw = line.encode() + b"\n"
        if self._bytes + len(raw) > BUFFER_BYTES_MAX:
            self._lost(1, "the disk is too slow")
            return
        self._lines.append(raw)
        self._bytes += len(raw)
        if self._timer is None and self._work is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WRITE_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._work = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._lines:
            lines, self._lines, self._bytes = self._lines, [], 0
            try:
                await asyncio.to_thread(self._file.append, lines)
            except OSError as error:
                self._lost(len(lines), f"{error.filename or ''} {error.strerror}")
        self._work = None

    def _lost(self, count: int, why: str) -> None:
        self.lost_total += count
        self._complaints.write(logging.ERROR, f"{count} audit records are lost: {why}")

    async def close(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._work is not None:
            await self._work


class AuditFile:
    """A file and its older ones, `NAME.1` the newest of these; at most `files` in all."""

    def __init__(self, path: Path, file_bytes: int, files: int) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._files = files

    def append(self, lines: list[bytes]) -> None:
        """Write lines in one piece, to a new file if this one would become too large; OSError."""
        text = b"".join(lines)
        if self._size() + len(text) > self._file_bytes:
            self._rotate()
        # Opened each time: somebody else may have moved it.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            view = memoryview(text)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        if self._files == 1:
            self._path.unlink(missing_ok=True)
            return
        for number in range(self._files - 1, 0, -1):
            newer = self._older(number - 1)
            if newer.exists():
                newer.replace(self._older(number))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path
