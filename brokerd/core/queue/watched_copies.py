"""What became of copies that redrives sent to this queue: per job and group, within bounds.

Each copy says in its annotations which message of which job it is (core/annotations.py).  The
job's worker, at the source's leader, asks for the counts; nothing here is needed to deliver.  Part
of a queue's replicated state, so deterministic.  Only the queue machine and its snapshot use it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from brokerd.core.annotations import RedrivenFrom
from brokerd.core.message import Range
from brokerd.core.ranges import RangeSet

#: Jobs that are watched; another one takes the place of the oldest.
JOBS_MAX: Final = 8
#: Groups of a job; the last place counts all others, under this name.
GROUPS_MAX: Final = 256
OTHERS: Final = "others"
#: Of a group's name, a fingerprint of 12.
GROUP_CHARACTERS_MAX: Final = 64
#: Copies of all jobs that have not left (10 bytes each); what comes then is not counted.
ALIVE_MAX: Final = 1_000_000
#: Numbers of a source are kept as bits in pages of 512 bytes: 8,192 pages are 33 million numbers
#: that stand together.  What comes then is not counted.
PAGE_BITS: Final = 4_096
PAGES_MAX: Final = 8_192

#: A copy that has left stands in its row until rows are made again: then, or when half have.
_LEFT: Final = 0xFFFF
#: Rows below which it is not worth while.
_ROWS_MIN: Final = 1_024
_WIDTHS: Final = (8, 2)
_PAGE: Final = struct.Struct("<Q")


class Became(IntEnum):
    """Columns of a group's counts."""

    ACKNOWLEDGED = 0
    DIED_AGAIN = 1
    #: Purged, deleted with the queue, or taken out by a job.
    REMOVED = 2
    #: Alive: ready, with a consumer, delayed or held by a job.
    WAITING = 3
    #: Second copies of a message: not watched.
    DUPLICATE = 4


class JobKey(NamedTuple):
    """A job in the whole cluster."""

    #: Uid of its source queue.
    source: int
    job: int


class _WatchedJob:
    """One job.  Invariant: each page has PAGE_BITS bits; its groups' names are different."""

    __slots__ = ("counts", "key", "order", "pages", "place", "places")

    def __init__(self, key: JobKey, place: int, order: int) -> None:
        self.key = key
        #: In the table; free again when the job is forgotten.
        self.place = place
        #: Of its first copy among those of all jobs.
        self.order = order
        #: Of a group among the job's, by name.
        self.places: dict[str, int] = {}
        #: One row for each group, by `Became`.
        self.counts: list[list[int]] = []
        self.pages: dict[int, bytearray] = {}

    def group(self, name: str) -> int:
        """Return the place of a group, which it has from now on."""
        place = self.places.get(name)
        if place is None:
            if len(self.places) >= GROUPS_MAX - 1:
                name = OTHERS
            place = self.places.setdefault(name, len(self.places))
            if place == len(self.counts):
                self.counts.append([0] * len(Became))
        return place

    def see(self, number: int) -> Became | None:
        """Return how a copy of this message is counted, WAITING for the first; None: not at all."""
        at, bit = divmod(number, PAGE_BITS)
        page = self.pages.get(at)
        if page is None:
            if len(self.pages) >= PAGES_MAX:
                return None
            page = self.pages[at] = bytearray(PAGE_BITS // 8)
        byte, mask = bit >> 3, 1 << (bit & 7)
        if page[byte] & mask:
            return Became.DUPLICATE
        page[byte] |= mask
        return Became.WAITING


class WatchedCopies:
    """Invariants: message numbers ascend; a row's mark names a group of a job that is here, or
    _LEFT; a group's WAITING is the number of its rows; `_left` counts rows that are _LEFT.
    """

    __slots__ = ("_alive_max", "_jobs", "_left", "_marks", "_next_order", "_numbers")

    def __init__(self, alive_max: int = ALIVE_MAX) -> None:
        self._alive_max = alive_max
        #: By place.
        self._jobs: dict[int, _WatchedJob] = {}
        self._next_order = 0
        self._numbers = array("Q")
        #: Place of the job times GROUPS_MAX, plus place of the group.
        self._marks = array("H")
        self._left = 0

    # -- coming and going ------------------------------------------------------------------------

    def came(self, number: int, copy: RedrivenFrom) -> None:
        """A copy is in the queue, under this number, which is higher than all others."""
        job = self._job(JobKey(copy.source, copy.job))
        if len(self._numbers) - self._left >= self._alive_max:
            return
        counted = job.see(copy.number)
        if counted is None:
            return
        group = job.group(copy.group)
        job.counts[group][counted] += 1
        if counted is Became.WAITING:
            self._numbers.append(number)
            self._marks.append(job.place * GROUPS_MAX + group)

    def left(self, low: int, high: int, became: Became) -> None:
        """Messages [low, high) are not in the queue any more."""
        numbers = self._numbers
        at, size = bisect_left(numbers, low), len(numbers)
        while at < size and numbers[at] < high:
            mark = self._marks[at]
            if mark != _LEFT:
                counts = self._jobs[mark // GROUPS_MAX].counts[mark % GROUPS_MAX]
                counts[Became.WAITING] -= 1
                counts[became] += 1
                self._marks[at] = _LEFT
                self._left += 1
            at += 1
        self._compact()

    def only(self, remaining: Iterable[Range]) -> None:
        """All but these are gone: a purge."""
        for low, high in RangeSet(remaining).missing(0, 1 << 64):
            self.left(low, high, Became.REMOVED)

    def _job(self, key: JobKey) -> _WatchedJob:
        oldest: _WatchedJob | None = None
        for job in self._jobs.values():
            if job.key == key:
                return job
            if oldest is None or job.order < oldest.order:
                oldest = job
        if oldest is not None and len(self._jobs) >= JOBS_MAX:
            self._forget(oldest)
        place = min(set(range(JOBS_MAX)).difference(self._jobs))
        made = self._jobs[place] = _WatchedJob(key, place, self._next_order)
        self._next_order += 1
        return made

    def _forget(self, job: _WatchedJob) -> None:
        del self._jobs[job.place]
        for at, mark in enumerate(self._marks):
            if mark // GROUPS_MAX == job.place and mark != _LEFT:
                self._marks[at] = _LEFT
                self._left += 1
        self._compact()

    def _compact(self) -> None:
        rows = len(self._numbers)
        if self._left < rows and (self._left < _ROWS_MIN or 2 * self._left < rows):
            return
        if self._left:
            kept = [at for at, mark in enumerate(self._marks) if mark != _LEFT]
            self._numbers = array("Q", [self._numbers[at] for at in kept])
            self._marks = array("H", [self._marks[at] for at in kept])
            self._left = 0

    # -- questions -------------------------------------------------------------------------------

    def counts(self, key: JobKey) -> dict[str, list[int]] | None:
        """Return the counts of a job by group, each by `Became`; None: it is not known here."""
        for job in self._jobs.values():
            if job.key == key:
                return {name: list(job.counts[place]) for name, place in job.places.items()}
        return None

    def check(self) -> None:
        """Assert what the class promises."""
        numbers = list(self._numbers)
        assert numbers == sorted(set(numbers)), "copies out of order"
        assert len(numbers) == len(self._marks)
        assert self._left == sum(mark == _LEFT for mark in self._marks)
        assert len(numbers) - self._left <= self._alive_max
        assert len(self._jobs) <= JOBS_MAX
        waiting: dict[int, int] = {}
        for mark in self._marks:
            if mark != _LEFT:
                waiting[mark] = waiting.get(mark, 0) + 1
        for place, job in self._jobs.items():
            assert place == job.place < JOBS_MAX
            assert len(job.counts) == len(job.places) <= GROUPS_MAX
            assert len(job.pages) <= PAGES_MAX
            for group, counts in enumerate(job.counts):
                assert counts[Became.WAITING] == waiting.pop(place * GROUPS_MAX + group, 0)
                assert all(count >= 0 for count in counts)
        assert not waiting, "copies of a job that is not watched"

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Any], bytes]:
        """Return a part for JSON and one of bytes: numbers, marks, then each job's pages."""
        kept = [at for at, mark in enumerate(self._marks) if mark != _LEFT]
        numbers = array("Q", [self._numbers[at] for at in kept])
        marks = array("H", [self._marks[at] for at in kept])
        jobs: list[list[Any]] = []
        blobs = [_little(numbers), _little(marks)]
        for job in self._jobs.values():
            rows = [[name, *job.counts[place]] for name, place in job.places.items()]
            jobs.append([*job.key, job.place, job.order, len(job.pages), rows])
            for at, page in job.pages.items():
                blobs += [_PAGE.pack(at), bytes(page)]
        fields = {"rows": len(kept), "next_order": self._next_order, "jobs": jobs}
        return fields, b"".join(blobs)


def restored(fields: dict[str, Any], data: bytes) -> WatchedCopies:
    """Return what `snapshot` was of; KeyError, ValueError or struct.error for anything else."""
    made = WatchedCopies()
    rows = fields["rows"]
    made._next_order = fields["next_order"]
    at = _WIDTHS[0] * rows
    end = at + _WIDTHS[1] * rows
    made._numbers = _array("Q", data[:at])
    made._marks = _array("H", data[at:end])
    for source, number, place, order, pages, groups in fields["jobs"]:
        job = made._jobs[place] = _WatchedJob(JobKey(source, number), place, order)
        for name, *counts in groups:
            job.places[name] = len(job.counts)
            job.counts.append(counts)
        for _ in range(pages):
            (page,) = _PAGE.unpack_from(data, end)
            at, end = end + _PAGE.size, end + _PAGE.size + PAGE_BITS // 8
            job.pages[page] = bytearray(data[at:end])
    return made


def _array(code: Any, raw: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
