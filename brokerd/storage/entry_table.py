"""Where a group's entries lie on disk: 16 bytes each, plus runs for segments and terms.  Pure.

For group_log.py and recovery.py.  Not thread-safe: the event loop owns it after recovery.
Indexes ascend strictly; above the group's snapshot without gaps, below it with gaps where
entries are no longer live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from brokerd.raft.messages import Entry
from brokerd.storage.records import HEADER_BYTES


class Runs:
    """A value per index, stored where it changes: (first index of the run, value)."""

    __slots__ = ("starts", "values")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.values: list[int] = []

    def append(self, index: int, value: int) -> None:
        if not self.values or self.values[-1] != value:
            self.starts.append(index)
            self.values.append(value)

    def get(self, index: int) -> int:
        return self.values[bisect_right(self.starts, index) - 1]

    def cut(self, index: int) -> None:
        """Forget everything from `index` on."""
        keep = bisect_left(self.starts, index)
        del self.starts[keep:]
        del self.values[keep:]

    def assign(self, low: int, high: int, value: int) -> None:
        """Set [low, high), which lies within what is known."""
        first = bisect_left(self.starts, low)
        last = bisect_left(self.starts, high)
        after = self.values[last - 1] if last else value
        starts, values = [low], [value]
        if last == len(self.starts) or self.starts[last] != high:
            starts.append(high)
            values.append(after)
        self.starts[first:last] = starts
        self.values[first:last] = values

    def keep_used(self, indexes: array[int]) -> None:
        """Drop runs that no index falls into."""
        starts, values = self.starts, self.values
        ends = [*starts[1:], 1 << 64]
        used = [
            number
            for number, start in enumerate(starts)
            if bisect_left(indexes, start) < bisect_left(indexes, ends[number])
        ]
        self.starts = [starts[number] for number in used]
        self.values = [values[number] for number in used]


#: A table, and each of its runs, with more is not packed.
PACKED_MAX = 64
#: (segment, bytes): live bytes that a change set free.
Freed = list[tuple[int, int]]


class EntryTable:
    """Index, offset and length per entry; segment and term by runs."""

    __slots__ = ("indexes", "lengths", "offsets", "segments", "terms")

    def __init__(self) -> None:
        self.indexes = array("Q")
        self.offsets = array("I")
        self.lengths = array("I")
        self.segments = Runs()
        self.terms = Runs()

    def __len__(self) -> int:
        return len(self.indexes)

    def packed(self) -> bytes:
        """Return all of it in a tenth of the room, where it is small; b"": it is not."""
        indexes, runs = self.indexes, (self.segments, self.terms)
        count, runs_counts = len(indexes), [len(each.starts) for each in runs]
        if count > PACKED_MAX or max(runs_counts) > PACKED_MAX:
            return b""
        columns = [column for each in runs for column in (each.starts, each.values)]
        return b"".join(
            (
                bytes((count, *runs_counts)),
                *(column.tobytes() for column in (indexes, self.offsets, self.lengths)),
                *(array("Q", column).tobytes() for column in columns),
            )
        )

    @classmethod
    def unpacked(cls, packed: bytes) -> EntryTable:
        """Return what was packed here."""
        table = cls()
        count, *runs_counts = packed[:3]
        at = 3
        for column in (table.indexes, table.offsets, table.lengths):
            end = at + count * column.itemsize
            column.frombytes(packed[at:end])
            at = end
        for runs, length in zip((table.segments, table.terms), runs_counts, strict=True):
            both = array("Q", packed[at : at + 16 * length])
            runs.starts, runs.values = both[:length].tolist(), both[length:].tolist()
            at += 16 * length
        return table

    def last(self) -> int:
        """Return the highest index, 0 when empty."""
        return self.indexes[-1] if self.indexes else 0

    def find(self, index: int) -> int:
        """Return the position of `index`, or -1."""
        indexes = self.indexes
        if not indexes:
            return -1
        # Without gaps behind it the position follows from the distance to the end.
        position = len(indexes) - 1 - (indexes[-1] - index)
        if not (0 <= position < len(indexes) and indexes[position] == index):
            position = bisect_left(indexes, index)
            if position == len(indexes) or indexes[position] != index:
                return -1
        return position

    def append(self, index: int, term: int, segment: int, offset: int, length: int) -> None:
        self.indexes.append(index)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.segments.append(index, segment)
        self.terms.append(index, term)

    def extend(self, entries: Sequence[Entry], segment: int, offset: int) -> int:
        """Append entries whose records lie back to back from `offset`; return the bytes."""
        start = offset
        self.indexes.extend([entry.index for entry in entries])
        for entry in entries:
            length = len(entry.data)
            self.offsets.append(offset)
            self.lengths.append(length)
            self.terms.append(entry.index, entry.term)
            offset += HEADER_BYTES + length
        self.segments.append(entries[0].index, segment)
        return offset - start

    def cut(self, index: int) -> Freed:
        """Remove everything from `index` on."""
        if not self.indexes or self.indexes[-1] < index:
            return []
        position = bisect_left(self.indexes, index)
        freed = self.usage(position, len(self.indexes))
        del self.indexes[position:], self.offsets[position:], self.lengths[position:]
        self.segments.cut(index)
        self.terms.cut(index)
        return freed

    def retain(self, upto: int, live: Iterable[tuple[int, int]]) -> Freed:
        """Of the entries <= upto keep those in the ascending [low, high) ranges `live`."""
        indexes = self.indexes
        border = bisect_right(indexes, upto)
        kept: list[tuple[int, int]] = []
        freed: Freed = []
        done = 0
        for low, high in live:
            first = max(done, bisect_left(indexes, low, 0, border))
            last = bisect_left(indexes, high, 0, border)
            if first >= last:
                continue
            if first > done:
                freed += self.usage(done, first)
            kept.append((first, last))
            done = last
        if done < border:
            freed += self.usage(done, border)
        if freed:
            kept.append((border, len(indexes)))
            self.indexes = _pick(self.indexes, kept)
            self.offsets = _pick(self.offsets, kept)
            self.lengths = _pick(self.lengths, kept)
            self.segments.keep_used(self.indexes)
            self.terms.keep_used(self.indexes)
        return freed

    def usage(self, first: int, last: int) -> Freed:
        """Return the bytes that the entries at positions [first, last) take, per segment."""
        return [
            (segment, sum(self.lengths[low:high]) + HEADER_BYTES * (high - low))
            for segment, low, high in self.spans(first, last)
        ]

    def spans(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return (segment, low, high) for the stretches of positions [first, last)."""
        spans = []
        starts, values = self.segments.starts, self.segments.values
        while first < last:
            run = bisect_right(starts, self.indexes[first]) - 1
            end = last
            if run + 1 < len(starts):
                end = min(last, bisect_left(self.indexes, starts[run + 1], first, last))
            spans.append((values[run], first, end))
            first = end
        return spans


def _pick(values: array[int], spans: Sequence[tuple[int, int]]) -> array[int]:
    result = array(values.typecode)
    for low, high in spans:
        result.extend(values[low:high])
    return result
