"""Suspicions about a whole log: it is a copy, or it has forgotten what it had promised to others.

For wal.py; the parts of the writer thread, each with one sync.  A suspicion is a place
(records.COPIED, records.BEHIND) at which any group may have lost something: until it is over, or
a leader has refilled the group, the member has no vote in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.storage import records
from brokerd.storage.disk import Disk
from brokerd.storage.group_log import NOTHING_LOST, GroupLog
from brokerd.storage.promises import Promises
from brokerd.storage.writer import LogWriter, WriterState


def begin_run(state: WriterState, disk: Disk) -> None:
    """Note that the log was opened once more."""
    promises = state.promises
    if not promises.log:
        promises.log = random_mark(disk)
    promises.begin(random_mark(disk), state.batches)


def random_mark(disk: Disk) -> int:
    """Return a number that no other draw repeats; not 0."""
    return int.from_bytes(disk.random_bytes(7), "little") + 1


class SuspectedRegressions:
    """The two halves of every change, as in wal.py: w = by the writer thread, with one sync."""

    def __init__(self, writer: LogWriter, groups: dict[int, GroupLog], lost: set[int]) -> None:
        """groups, lost: the log's own, which belong to the event loop."""
        self._writer = writer
        self._groups = groups
        self._lost = lost

    def promises(self) -> Promises:
        """Return what the log knew of itself and of others at the start; the caller's own."""
        return self._writer.state.promises.copy()

    def places(self) -> list[int]:
        """Return the suspicions that stand."""
        return sorted(where for where in self._lost if records.is_suspicion(where))

    def pass_over(self, uid: int) -> None:
        """The group began after the suspicions: it has no past that could be forgotten here."""
        log = self._groups[uid]
        log.lost = log.lost.difference(self.places()) or NOTHING_LOST

    def begin(self) -> int:
        """Take every group for damaged until it is refilled; return the suspicion, for `write`."""
        segment = self._writer.active.segment
        count = sum(where >> 32 == segment for where in self._lost)
        offset = min(records.BEHIND + count, records.SEGMENT_HEADER_COPY - 1)
        where = records.place(segment, offset)
        self._lost.add(where)
        for log in self._groups.values():
            log.lost |= {where}
        return where

    def write(self, where: int, promises: Promises) -> None:
        """w: Make a suspicion last, with the promises that it comes from."""
        writer = self._writer
        with writer.lock:
            state = writer.state
            state.promises = promises
            state.lost = sorted({*state.lost, where})
            batch = [writer.promises_record(), *writer.lost_records()]
            for uid, group in state.groups.items():
                group.lost = tuple(sorted({*group.lost, where}))
                batch.append(writer.group_record(uid))
            writer.append(batch)

    def write_end(self, places: Sequence[int]) -> None:
        """w: Note that suspicions are over."""
        writer = self._writer
        with writer.lock:
            state = writer.state
            state.accepted.update(places)
            state.lost = [where for where in state.lost if where not in places]
            batch = writer.lost_records()
            for uid, group in state.groups.items():
                if any(where in group.lost for where in places):
                    group.lost = tuple(where for where in group.lost if where not in places)
                    group.healed = tuple(sorted({*group.healed, *places}))
                    batch.append(writer.group_record(uid))
            writer.append(batch)

    def ended(self, places: Sequence[int]) -> None:
        """Groups without other damage are whole."""
        self._lost.difference_update(places)
        for log in self._groups.values():
            log.lost = log.lost.difference(places) or NOTHING_LOST

    def keep(self, promises: Promises) -> None:
        """w: Make durable what the log knows of itself and of others."""
        writer = self._writer
        with writer.lock:
            writer.state.promises = promises
            writer.append([writer.promises_record()])
