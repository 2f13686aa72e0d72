"""Writes telemetry rows to segment files from a thread of its own (design/telemetry.md §6).

The broker hands rows over and never waits: what does not fit the bounded buffer is dropped, oldest
first, and told in a `gap` event.  File format and sealing are in `segment_files.py`; what the rows
say is `counters.py`'s and `queue_rows.py`'s.  Used by the server.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from brokerd.telemetry import segment_files
from brokerd.telemetry.segment_files import Identity as Identity
from brokerd.telemetry.segment_files import OpenSegment, Row

log = logging.getLogger(__name__)

#: 8 MiB (design/telemetry.md §6.1) of rows of about 400 octets.
BUFFER_ROWS_MAX = 20_000
HOUR_US = 3_600_000_000
#: How long a caller of `seal_now` or `close` waits for the disk.
SEAL_TIMEOUT_S = 30.0
#: How often retention looks at the files when nothing is sealed.
IDLE_S = 60.0


class Settings(Protocol):
    """What is read of config.TelemetryConfig."""

    interval_ms: int
    segment_bytes: int
    segment_ms: int
    retention_bytes: int
    retention_hours: int


@dataclass(slots=True, frozen=True)
class SealedSegment:
    """A segment as it is listed: path below raw/v1."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class _Batch:
    stream: str
    rows: Sequence[Row]
    seq_first: int
    #: Of `SegmentWriter.skew_ms`, when they were handed over.
    skew_ms: int = 0


class SegmentWriter:
    """All segment files of one member.

    Invariants: `_lock` guards buffer, sequence numbers and requests; files belong to the thread,
    which alone opens, writes, seals and deletes for retention.  seq grows by one per row of a
    stream, also for rows that are dropped, so that readers see gaps.
    In one piece: one lock and one thread; segment_files.py has what needs neither.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        settings: Settings,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self.directory = directory
        #: By how much the times of rows are ahead of the other members' clocks; each row says so.
        self.skew_ms = 0
        self.identity = identity
        self._settings = settings
        self._clock_us = clock_us or (lambda: time.time_ns() // 1000)
        self._lock = threading.Condition()
        self._buffer: deque[_Batch] = deque()
        self._buffered_rows = 0
        self._next_seq = dict.fromkeys(segment_files.STREAMS, 0)
        self._dropped: dict[str, int] = {}
        self._seal_wanted = 0
        self._seals_done = 0
        self._is_closing = False
        self._open: dict[str, OpenSegment] = {}
        self._numbers = dict.fromkeys(segment_files.STREAMS, 0)
        self._digests: dict[str, tuple[int, str]] = {}
        self._thread: threading.Thread | None = None

    # ---- any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: the thread first seals what an earlier process left open."""
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        self._emit_boot("start")

    def emit(self, stream: str, rows: Sequence[Row]) -> None:
        """Hand rows over; they get their sequence numbers now.  Never waits for the disk."""
        if not rows:
            return
        with self._lock:
            first = self._next_seq[stream]
            self._next_seq[stream] = first + len(rows)
            self._buffer.append(_Batch(stream, rows, first, self.skew_ms))
            self._buffered_rows += len(rows)
            while self._buffered_rows > BUFFER_ROWS_MAX:
                self._drop_oldest(self._buffered_rows - BUFFER_ROWS_MAX)
            self._lock.notify_all()

    def seal_now(self) -> list[SealedSegment]:
        """Write and seal everything handed over so far; return all sealed segments.  Blocks."""
        if self._thread is not None and self._thread.is_alive():
            with self._lock:
                self._seal_wanted += 1
                wanted = self._seal_wanted
                self._lock.notify_all()
                done = self._lock.wait_for(lambda: self._seals_done >= wanted, SEAL_TIMEOUT_S)
            if not done:
                raise TimeoutError("the disk did not take the telemetry in time")
        return self.sealed()

    def sealed(self) -> list[SealedSegment]:
        """Return all sealed segments with size and sha256 of the file.  Blocks: reads new ones."""
        found = []
        known: dict[str, tuple[int, str]] = {}
        for path in segment_files.sealed_paths(self.directory):
            entry = self._digests.get(path)
            if entry is None:
                try:
                    data = self.path_of(path).read_bytes()
                except FileNotFoundError:
                    continue
                entry = (len(data), hashlib.sha256(data).hexdigest())
            known[path] = entry
            found.append(SealedSegment(path, *entry))
        self._digests = known
        return found

    def path_of(self, path: str) -> Path:
        """Return the file of a sealed segment; ValueError if that is no segment's path."""
        if not segment_files.SEGMENT_PATH.fullmatch(path) or "/../" in f"/{path}/":
            raise ValueError(f"'{path[:200]}' is no path of a segment")
        return self.directory / segment_files.RAW / path

    def release(self, path: str) -> bool:
        """Delete a segment that a job has taken over; False if it is not there (any more)."""
        try:
            self.path_of(path).unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Note the clean end, seal everything, end the thread.  Blocks."""
        thread = self._thread
        if thread is None:
            return
        self._emit_boot("end")
        with self._lock:
            self._is_closing = True
            self._lock.notify_all()
        thread.join(SEAL_TIMEOUT_S)
        self._thread = None

    def _emit_boot(self, state: str) -> None:
        now_us = self._clock_us()
        row = {"k": "boot", "t0": now_us, "t1": now_us, "state": state}
        self.emit("event", [row | {"broker_version": self.identity.broker_version}])

    def _drop_oldest(self, count: int) -> None:
        batch = self._buffer.popleft()
        dropped = min(count, len(batch.rows))
        self._buffered_rows -= dropped
        for row in batch.rows[:dropped]:
            kind = str(row.get("k", ""))
            self._dropped[kind] = self._dropped.get(kind, 0) + 1
        if dropped < len(batch.rows):
            rest = replace(batch, rows=batch.rows[dropped:], seq_first=batch.seq_first + dropped)
            self._buffer.appendleft(rest)

    # ---- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        self._recover()
        self._retain()
        while True:
            with self._lock:
                self._lock.wait_for(self._has_work, self._patience_s())
                batches = list(self._buffer)
                self._buffer.clear()
                self._buffered_rows = 0
                wanted, is_closing = self._seal_wanted, self._is_closing
            written = [self._guarded(partial(self._write, batch), batch) for batch in batches]
            if any(written):
                # Only what reaches the disk can tell of what did not.
                self._tell_dropped()
            self._seal_due(is_closing or wanted > self._seals_done)
            with self._lock:
                self._seals_done = wanted
                self._lock.notify_all()
                if is_closing and not self._buffer:
                    return

    def _has_work(self) -> bool:
        return bool(self._buffer) or self._seal_wanted > self._seals_done or self._is_closing

    def _patience_s(self) -> float:
        """Return how long to sleep: until the next segment is due."""
        now_us = self._clock_us()
        due = [min(self._due_us(segment), now_us + int(IDLE_S * 1e6)) - now_us
               for segment in self._open.values()]  # fmt: skip
        return max(0.01, min(due) / 1e6) if due else IDLE_S

    def _due_us(self, segment: OpenSegment) -> int:
        return min(segment.opened_us + self._settings.segment_ms * 1000, segment.hour_us + HOUR_US)

    def _write(self, batch: _Batch) -> None:
        skew = {"skew_ms": batch.skew_ms} if batch.skew_ms else {}
        lines = [
            segment_files.encode({"v": 1, "seq": batch.seq_first + offset, **row, **skew})
            for offset, row in enumerate(batch.rows)
        ]
        at = 0
        while at < len(lines):
            segment = self._segment(batch.stream)
            end, room = at, self._settings.segment_bytes - segment.size_bytes
            while end < len(lines) and (room > 0 or end == at):
                room -= len(lines[end])
                end += 1
            segment.write(lines[at:end], batch.seq_first + at, batch.seq_first + end - 1)
            at = end
            if segment.size_bytes >= self._settings.segment_bytes:
                self._seal(batch.stream)

    def _segment(self, stream: str) -> OpenSegment:
        segment = self._open.get(stream)
        now_us = self._clock_us()
        if segment is not None and now_us >= self._due_us(segment):
            self._seal(stream)
            segment = None
        if segment is None:
            number = self._numbers[stream]
            self._numbers[stream] = number + 1
            segment = self._open[stream] = segment_files.open_segment(
                self.directory, self.identity, stream, number, now_us, self._settings.interval_ms
            )
        return segment

    def _seal_due(self, all_of_them: bool) -> None:
        now_us = self._clock_us()
        for stream, segment in list(self._open.items()):
            if all_of_them or now_us >= self._due_us(segment):
                self._guarded(partial(self._seal, stream), None)

    def _seal(self, stream: str) -> None:
        segment = self._open.pop(stream)
        segment_files.seal(self.directory, self.identity, segment)
        self._retain()

    def _guarded(self, step: Callable[[], object], batch: _Batch | None) -> bool:
        """Do one thing with the disk; when that fails telemetry has a gap, and goes on."""
        try:
            step()
        except OSError as error:
            log.warning("telemetry could not be written error=%s", error)
            if batch is not None:
                segment = self._open.pop(batch.stream, None)
                if segment is not None:
                    # What is complete in it is sealed as recovered by the next start.
                    segment.close()
                with self._lock:
                    self._dropped["disk"] = self._dropped.get("disk", 0) + len(batch.rows)
            return False
        return True

    def _tell_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, {}
        if dropped:
            rows = self._gap_rows("dropped", dropped)
            with self._lock:
                first = self._next_seq["event"]
                self._next_seq["event"] = first + len(rows)
            batch = _Batch("event", rows, first, self.skew_ms)
            self._guarded(partial(self._write, batch), batch)

    def _recover(self) -> None:
        try:
            for path in segment_files.left_open(self.directory):
                sealed = segment_files.recover(self.directory, path)
                log.info("telemetry left open by an earlier run recovered=%s", sealed is not None)
        except OSError as error:
            log.warning("telemetry of an earlier run could not be sealed error=%s", error)

    def _retain(self) -> None:
        """Delete the oldest segments beyond the limits (design/telemetry.md §6.3)."""
        raw = self.directory / segment_files.RAW
        oldest_us = self._clock_us() - self._settings.retention_hours * HOUR_US
        sizes = []
        for path in segment_files.sealed_paths(self.directory):
            try:
                status = (raw / path).stat()
            except FileNotFoundError:
                continue
            sizes.append((status.st_mtime_ns // 1000, path, status.st_size))
        sizes.sort()
        total = sum(size for _, _, size in sizes)
        lost: dict[str, int] = {}
        for modified_us, path, size in sizes:
            if total <= self._settings.retention_bytes and modified_us >= oldest_us:
                break
            (raw / path).unlink(missing_ok=True)
            total -= size
            match = segment_files.SEGMENT_PATH.fullmatch(path)
            assert match is not None
            stream = match["stream"]
            lost[stream] = lost.get(stream, 0) + int(match["rows"])
        if lost:
            self._tell_gap("retention", lost)

    def _tell_gap(self, cause: str, lost: dict[str, int]) -> None:
        self.emit("event", self._gap_rows(cause, lost))

    def _gap_rows(self, cause: str, lost: dict[str, int]) -> list[Row]:
        log.warning("telemetry lost cause=%s rows=%s", cause, lost)
        now_us = self._clock_us()
        return [
            {"k": "gap", "t0": now_us, "t1": now_us, "cause": cause, "kind": kind, "rows": count}
            for kind, count in sorted(lost.items())
        ]
