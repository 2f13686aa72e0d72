"""The writing half of the write-ahead log: everything here runs in one thread at a time.

Only wal.py uses it.  Owns the active segment and, per group, the state that GROUP records repeat;
shares nothing with the event loop but values handed over through wal.py.  The lock is not for the
hot path: it only keeps a caller that is not the writer thread (bootstrap at start-up) from mixing
its record into a write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from brokerd.raft.messages import Entry, HardState
from brokerd.storage import records
from brokerd.storage.config import SEGMENT_BYTES_MAX
from brokerd.storage.errors import StorageError, StorageFailed
from brokerd.storage.promises import Promises
from brokerd.storage.records import (
    BODY,
    FRONT,
    HEADER_BYTES,
    MARK_EVERY_BATCHES,
    GroupState,
    SyncMark,
    crc,
    crc_extend,
)
from brokerd.storage.removed_groups import RemovedGroups, SegmentGroups
from brokerd.storage.segments import ActiveSegment, SegmentFiles

#: A write into space that is only reserved takes zeros along for those that follow it; who writes
#: so much at once gains nothing.
ZEROS_AHEAD = bytes(256 * 1024)
PADDED_MAX = 64 * 1024


@dataclass(slots=True)
class GroupWrite:
    """One Persist action.  `segment` and `offset` are filled in by write() for written()."""

    uid: int
    hard_state: HardState | None
    entries: list[Entry]
    segment: int = 0
    offset: int = 0


@dataclass(slots=True)
class Record:
    """One record of the slow path; `segment` and `offset` are filled in."""

    kind: int
    uid: int
    index: int = 0
    term: int = 0
    data: bytes = b""
    entry_kind: int = 0
    birth: int = 0
    flags: int = 0
    segment: int = 0
    offset: int = 0


@dataclass(slots=True)
class WriterCounts:
    """What the writer has done; read by anyone."""

    syncs: int = 0
    bytes_written: int = 0
    last_sync_ms: float = 0.0
    rotations: int = 0


@dataclass(slots=True)
class WriterState:
    """What recovery hands over."""

    groups: dict[int, GroupState] = field(default_factory=dict)
    #: Removed groups and the segment of the record that says so.
    removed: RemovedGroups = field(default_factory=RemovedGroups)
    #: Places where records of unknown groups were lost.
    lost: list[int] = field(default_factory=list)
    #: Such places that an operator has accepted as gone.
    accepted: set[int] = field(default_factory=set)
    #: Groups with any record in a segment: what must be repeated before the segment goes.
    segment_groups: SegmentGroups = field(default_factory=SegmentGroups)
    batches: int = 0
    #: How far this log and those of others were synced.
    promises: Promises = field(default_factory=Promises)


class LogWriter:
    """Appends to the active segment; one write and one fdatasync per call."""

    def __init__(self, files: SegmentFiles, state: WriterState, active: ActiveSegment) -> None:
        self.files = files
        self.state = state
        self.active = active
        self.counts = WriterCounts()
        self.lock = threading.Lock()
        self.failure: StorageFailed | None = None
        #: Number of placements handed to the event loop, by segment.
        self.issued: dict[int, int] = {}
        #: Number of the last write with entries or votes that was synced: what others relied on.
        self.promised = state.batches
        #: The mark of the last write is not durable.
        self.is_mark_loose = False
        self._marked_batch = state.batches

    # ---- the hot path ---------------------------------------------------------------------------

    def write(self, writes: Sequence[GroupWrite]) -> None:
        """Append hard states and entries of all groups: one buffer, one write, one fdatasync."""
        with self.lock:
            size = 0
            for write in writes:
                hard_state = write.hard_state
                if hard_state is not None:
                    size += HEADER_BYTES + len((hard_state.vote or "").encode())
                for entry in write.entries:
                    size += HEADER_BYTES + len(entry.data)
            parts, position = self._begin(size)
            active = self.active
            seed, front = active.header.seed, active.header.salt
            members = self.state.segment_groups.of(active.segment)
            for write in writes:
                members.add(write.uid)
                position = self._pack(write, parts, position, seed, front)
            self._commit(parts, position)
            self.promised = self.state.batches

    def _pack(
        self, write: GroupWrite, parts: list[bytes], position: int, seed: int, salt: int
    ) -> int:
        uid = write.uid
        state = self.state.groups.get(uid)
        if state is None:
            state = GroupState()
            # A write that was under way while the group was removed leaves no trace.
            if uid not in self.state.removed:
                self.state.groups[uid] = state
        hard_state = write.hard_state
        if hard_state is not None:
            state.hard_state = hard_state
            record = _hard_state_record(uid, hard_state)
            parts.append(self._encode(record, position))
            position += len(parts[-1])
        entries = write.entries
        if not entries:
            return position
        write.segment = self.active.segment
        write.offset = position
        self.issued[write.segment] = self.issued.get(write.segment, 0) + 1
        pack, pack_front = BODY.pack, FRONT.pack
        for entry in entries:
            data = entry.data
            length = len(data)
            body = pack(
                crc(data), length, uid, entry.index, entry.term, 0, position, 2, entry.kind, 0
            )
            parts += (pack_front(salt, crc_extend(seed, body)), body, data)
            position += HEADER_BYTES + length
        state.tail = entries[-1].index
        return position

    # ---- the slow path --------------------------------------------------------------------------

    def append(self, batch: Sequence[Record]) -> None:
        """Append records of any kind and sync; the caller holds the lock."""
        parts, position = self._begin(sum(HEADER_BYTES + len(record.data) for record in batch))
        for record in batch:
            if record.kind == records.REMOVE:
                self.state.removed.add(record.uid, self.active.segment)
                self.state.segment_groups.removed(record.uid)
            elif record.uid:
                self.state.segment_groups.of(self.active.segment).add(record.uid)
            record.segment, record.offset = self.active.segment, position
            if record.kind in records.ENTRY_KINDS:
                self.issued[record.segment] = self.issued.get(record.segment, 0) + 1
            parts.append(self._encode(record, position))
            position += len(parts[-1])
        self._commit(parts, position)

    def group_record(self, uid: int, *, reset: bool = False) -> Record:
        """Return a record that repeats all the writer knows of a group."""
        state = self.state.groups[uid]
        data = records.encode_group_state(state, reset=reset)
        return Record(records.GROUP, uid, state.tail, state.hard_state.term, data)

    def promises_record(self) -> Record:
        """Return a record of how far this log and others were synced."""
        return Record(records.PROMISES, 0, data=self.state.promises.encode())

    def segments_record(self, without: Sequence[int] = ()) -> Record:
        """Return a record of the segment files that must exist from here on."""
        ids = sorted(set(self.files.descriptors) - set(without))
        return Record(records.SEGMENTS, 0, data=records.encode_numbers(ids))

    def lost_records(self) -> list[Record]:
        """Return records that repeat where something of unknown groups was lost."""
        state = self.state
        return [
            Record(records.LOST, 0, is_accepted, data=records.encode_numbers(sorted(places)))
            for is_accepted, places in ((0, state.lost), (1, state.accepted))
            if places
        ]

    def seal(self, next_segment: int) -> None:
        """Write the end mark of the active segment and sync it."""
        record = self._encode(Record(records.SEAL, 0, next_segment), self.active.end)
        self._store(record)

    def settle(self) -> None:
        """Make the mark of the last write durable, for a log that has come to rest."""
        with self.lock:
            if self.is_mark_loose and self.failure is None:
                self._write_mark(self._current_mark())
                self._sync()
                self.is_mark_loose = False

    # ---- common ---------------------------------------------------------------------------------

    def _encode(self, record: Record, position: int) -> bytes:
        header = self.active.header
        return records.encode_record(
            seed=header.seed,
            salt=header.salt,
            offset=position,
            kind=record.kind,
            uid=record.uid,
            index=record.index,
            term=record.term,
            data=record.data,
            entry_kind=record.entry_kind,
            birth=record.birth,
            flags=record.flags,
        )

    def _begin(self, size: int) -> tuple[list[bytes], int]:
        """Make room for `size` bytes of records; return the parts so far and the position."""
        if self.failure is not None:
            raise self.failure
        # The batch's own record, the list of segments if this opens a segment, and the seal.
        overhead = 3 * HEADER_BYTES + 8 * (len(self.files.descriptors) + 1)
        if size + overhead > SEGMENT_BYTES_MAX:
            raise StorageError(f"a write of {size} bytes exceeds the largest segment")
        if self.active.end + size + overhead > self.active.header.size:
            self._rotate(records.SEGMENT_DATA_START + size + overhead)
        start = self.active.end
        extra = b""
        if start == records.SEGMENT_DATA_START:
            extra = self._encode(self.segments_record(), start + HEADER_BYTES)
        self.state.batches += 1
        total = HEADER_BYTES + len(extra) + size
        batch = self._encode(
            Record(records.BATCH, 0, self.state.batches, birth=total), self.active.end
        )
        return [batch, extra], start + HEADER_BYTES + len(extra)

    def _commit(self, parts: list[bytes], position: int) -> None:
        image = b"".join(parts)
        assert self.active.end + len(image) == position, "a record's size was miscounted"
        self._store(image)
        self._mark()

    def _store(self, image: bytes) -> None:
        self._write(self._with_zeros(image), self.active.end)
        self._sync()
        self.counts.bytes_written += len(image)
        self.active.end += len(image)

    def _with_zeros(self, image: bytes) -> bytes:
        """Return what is written, with zeros behind it where the file is only reserved.

        There a sync has the file system note each time what was written: 240 microseconds instead
        of 200 for 1.5 KB while two others sync, 350 instead of 290 for 30 KB.
        """
        active = self.active
        end = active.end + len(image)
        if end <= active.filled:
            return image
        if len(image) <= PADDED_MAX:
            image += ZEROS_AHEAD[: active.header.size - end]
        active.filled = active.end + len(image)
        return image

    def _mark(self) -> None:
        """Write down what was synced, before anybody hears of it."""
        mark = self._current_mark()
        try:
            self.files.mark(mark)
        except OSError as error:
            raise self._fail_writing(error) from error
        if self.state.batches - self._marked_batch >= MARK_EVERY_BATCHES:
            # The next sync takes it along.
            self._write_mark(mark)
        self.is_mark_loose = True

    def _current_mark(self) -> bytes:
        mark = SyncMark(self.state.batches, self.active.end)
        return records.encode_sync_mark(self.active.header, mark)

    def _write_mark(self, mark: bytes) -> None:
        self._write(records.twice(mark), records.SYNC_MARK_AT)
        self._marked_batch = self.state.batches

    def _write(self, image: bytes, offset: int) -> None:
        try:
            self.files.disk.write(self.active.descriptor, image, offset)
        except OSError as error:
            raise self._fail_writing(error) from error

    def _sync(self) -> None:
        started = time.perf_counter()
        try:
            self.files.disk.data_sync(self.active.descriptor)
        except OSError as error:
            raise self._fail_writing(error) from error
        self.counts.last_sync_ms = (time.perf_counter() - started) * 1e3
        self.counts.syncs += 1

    def _fail_writing(self, error: OSError) -> StorageFailed:
        return self.fail(f"cannot write the log {self.files.path(self.active.segment)}", error)

    def _rotate(self, bytes_needed: int) -> None:
        try:
            following = self.files.create(bytes_needed, self.state.batches)
        except OSError as error:
            raise self.fail("cannot create the next log segment", error) from error
        self.seal(following.segment)
        self.active = following
        self.counts.rotations += 1

    def fail(self, what: str, error: OSError) -> StorageFailed:
        """Remember the first failure: nothing is written after it, for any caller."""
        self.failure = StorageFailed(f"{what}: {error}")
        return self.failure


def _hard_state_record(uid: int, hard_state: HardState) -> Record:
    vote = hard_state.vote
    return Record(
        records.HARD_STATE,
        uid,
        hard_state.commit,
        hard_state.term,
        b"" if vote is None else vote.encode(),
        int(vote is not None),
    )
