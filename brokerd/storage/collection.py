"""Giving disk space back: dead segments go, thinly used ones are rewritten.

For wal.py.  Three steps like every other change: `choose` on the event loop (which knows what is
live), `execute` in the writer thread, `settle` on the event loop.  Each call is bounded.
A moved entry keeps its place of birth, so at recovery a stale copy never wins over a newer entry,
and before a segment goes the state of every group in it is repeated, so that nothing that only it
knew (a truncation, a vote, a removal) is forgotten.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from brokerd.storage import records
from brokerd.storage.config import WalConfig
from brokerd.storage.entry_table import Freed
from brokerd.storage.group_log import GroupLog
from brokerd.storage.records import HEADER, HEADER_BYTES, place
from brokerd.storage.writer import LogWriter, Record

#: Entries that one call moves at most: settling costs about a microsecond each on the loop.
MOVES_MAX = 5_000
#: Segments that one call drops at most.
DROPS_MAX = 16


@dataclass(slots=True)
class Move:
    """Live entries of one group that lie in a segment to be emptied."""

    uid: int
    segment: int
    indexes: array[int]
    offsets: array[int]
    lengths: array[int]
    #: Where they went; filled in by the writer.  A missing one could not be read.
    moved: list[tuple[int, int] | None] = field(default_factory=list)


@dataclass(slots=True)
class Collection:
    """One bounded piece of work; treat as opaque between the three calls."""

    drop: list[int] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)


class Ledger:
    """Live bytes per segment, as the event loop knows them."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.members: dict[int, set[int]] = {}
        #: Placements that the event loop has taken over from the writer.
        self.seen: dict[int, int] = {}

    def add(self, uid: int, segment: int, size: int) -> None:
        self.live[segment] = self.live.get(segment, 0) + size
        self.members.setdefault(segment, set()).add(uid)

    def removed(self, uid: int, freed: Freed) -> None:
        """A group is no more: its number would keep the memory around it (removed_groups.py)."""
        self.free(freed)
        for members in self.members.values():
            members.discard(uid)

    def free(self, freed: Freed) -> None:
        for segment, size in freed:
            self.live[segment] -= size
            assert self.live[segment] >= 0, "more was freed than was live"

    def note_seen(self, segment: int) -> None:
        self.seen[segment] = self.seen.get(segment, 0) + 1

    def drop(self, segment: int) -> None:
        for table in (self.live, self.members, self.seen):
            table.pop(segment, None)


def choose(
    ledger: Ledger, groups: dict[int, GroupLog], writer: LogWriter, config: WalConfig
) -> Collection | None:
    """Event loop: pick what to do next; None: nothing is worth it."""
    active = writer.active.segment
    most_share = config.rewrite_below_percent / 100
    found: dict[int, float] = {}
    for segment, size in sorted(writer.files.sizes.copy().items()):
        # A sealed segment gets no more placements; all it got must have been taken over here.
        is_settled = writer.issued.get(segment, 0) == ledger.seen.get(segment, 0)
        share = ledger.live.get(segment, 0) / max(1, size - records.SEGMENT_DATA_START)
        if segment < active and is_settled and (not share or share < most_share):
            found[segment] = share
    # To look through ten thousand groups takes 10 ms, so only where it matters.
    for segment in _pinned(groups) if found else ():
        found.pop(segment, None)
    work = Collection([segment for segment, share in found.items() if not share][:DROPS_MAX])
    thin = [segment for segment, share in found.items() if share]
    if thin:
        victim = min(thin, key=found.__getitem__)
        work.moves = _moves(ledger, groups, victim, config.collect_bytes_max)
    return work if work.drop or work.moves else None


def _pinned(groups: dict[int, GroupLog]) -> set[int]:
    """Return the segments in which something is lost: what is left there stays as it is."""
    found: set[int] = set()
    for group in groups.values():
        if group.damaged:
            found.update(where >> 32 for where in (*group.lost, *group.unreadable.values()))
    return found


def _moves(ledger: Ledger, groups: dict[int, GroupLog], victim: int, bytes_max: int) -> list[Move]:
    moves: list[Move] = []
    count = size = 0
    for uid in sorted(ledger.members.get(victim, ())):
        group = groups.get(uid)
        if group is None:
            continue
        table = group.table
        for segment, low, high in table.spans(0, len(table)):
            if segment != victim:
                continue
            end = low
            while end < high and count < MOVES_MAX and (size < bytes_max or not count):
                size += table.lengths[end] + HEADER_BYTES
                count += 1
                end += 1
            if end > low:
                moves.append(
                    Move(
                        uid,
                        victim,
                        table.indexes[low:end],
                        table.offsets[low:end],
                        table.lengths[low:end],
                    )
                )
    return moves


def execute(writer: LogWriter, work: Collection) -> None:
    """Writer thread: re-append, repeat group states, sync; then retire the dropped files."""
    with writer.lock:
        batch: list[Record] = []
        for move in work.moves:
            batch += _copy(writer, move)
        drop = [segment for segment in work.drop if segment in writer.files.descriptors]
        if drop:
            batch += _repeated(writer, drop)
        if batch:
            writer.append(batch)
        copies = iter(record for record in batch if record.kind in records.ENTRY_KINDS)
        for move in work.moves:
            for number, moved in enumerate(move.moved):
                if moved is not None:
                    copy = next(copies)
                    move.moved[number] = (copy.segment, copy.offset)
        if drop:
            try:
                writer.files.retire(drop)
            except OSError as error:
                raise writer.fail("cannot retire log segments", error) from error


def _copy(writer: LogWriter, move: Move) -> list[Record]:
    batch: list[Record] = []
    disk, descriptor = writer.files.disk, writer.files.descriptors[move.segment]
    for index, offset, length in zip(move.indexes, move.offsets, move.lengths, strict=True):
        try:
            image = disk.read(descriptor, HEADER_BYTES + length, offset)
        except OSError:
            image = b""
        data = image[HEADER_BYTES:]
        if len(data) != length or len(image) < HEADER_BYTES:
            move.moved.append(None)
            continue
        (_, _, checksum, _, uid, found, term, birth, _, kind, entry_kind, flags) = (
            HEADER.unpack_from(image)
        )
        if (uid, found) != (move.uid, index) or records.crc(data) != checksum:
            move.moved.append(None)
            continue
        birth = birth or place(move.segment, offset)
        batch.append(
            Record(
                kind=kind,
                uid=uid,
                index=index,
                term=term,
                data=data,
                entry_kind=entry_kind,
                birth=birth,
                flags=flags,
            )
        )
        move.moved.append((0, 0))
    return batch


def _repeated(writer: LogWriter, drop: list[int]) -> list[Record]:
    """Repeat what the segments to be dropped may have been the last to say."""
    state = writer.state
    concerned: set[int] = set()
    for segment in drop:
        concerned |= state.segment_groups.drop(segment)
    batch: list[Record] = []
    for uid in sorted(concerned):
        if uid in state.groups:
            batch.append(writer.group_record(uid))
    said = state.removed.said_in(drop)
    left = state.segment_groups.of_removed() if said else set()
    for uid in said:
        if uid in left:
            batch.append(Record(records.REMOVE, uid))
        else:
            state.removed.discard(uid)
    batch += writer.lost_records()
    batch.append(writer.promises_record())
    batch.append(writer.segments_record(without=drop))
    return batch


def settle(ledger: Ledger, groups: dict[int, GroupLog], work: Collection) -> None:
    """Event loop: from now on read the moved entries at their new places."""
    for segment in work.drop:
        ledger.drop(segment)
    for move in work.moves:
        group = groups.get(move.uid)
        for at, moved in enumerate(move.moved):
            if moved is not None:
                ledger.note_seen(moved[0])
            if group is not None:
                _settle_entry(ledger, group, move, at, moved)
        if group is not None:
            group.let_go(again=True)


def _settle_entry(
    ledger: Ledger, group: GroupLog, move: Move, at: int, moved: tuple[int, int] | None
) -> None:
    index = move.indexes[at]
    table = group.table
    position = table.find(index)
    if (
        position < 0
        or table.offsets[position] != move.offsets[at]
        or table.segments.get(index) != move.segment
    ):
        # Overwritten or no longer live since `choose`: the copy is garbage already.
        return
    if moved is None:
        group.lost |= {place(move.segment, move.offsets[at])}
        return
    segment, offset = moved
    size = move.lengths[at] + HEADER_BYTES
    ledger.free([(move.segment, size)])
    ledger.add(group.uid, segment, size)
    table.offsets[position] = offset
    table.segments.assign(index, index + 1, segment)
