"""Sets of unsigned 64-bit numbers kept as ranges, and disjoint numbered pieces in order.

Pure data structures for message numbers, delivery tags, publish sequence numbers and log indexes:
everything that mostly comes in order and is mostly settled in order.  They know nothing of queues.
Used by the queue machine, the confirm and unacked trackers and all that must say which numbers they
hold.  Not for single values in random order: a range per value is dearer than a set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, Self, TypeVar

from brokerd.core.message import Range

#: Consumed places at the front of a list are dropped once there are more of them than this (and
#: than half of the list), so that settling in order costs no memory move per step.
_SLACK = 64


def normalize(ranges: Iterable[Range]) -> list[Range]:
    """Return the same numbers as ascending, disjoint, non-adjacent, non-empty ranges."""
    result: list[Range] = []
    for low, high in sorted(ranges):
        if low >= high:
            continue
        if result and low <= result[-1][1]:
            if high > result[-1][1]:
                result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return result


def count_of(ranges: Iterable[Range]) -> int:
    """Return how many numbers disjoint ranges hold."""
    return sum(high - low for low, high in ranges)


class RangeSet:
    """A set of numbers as ascending ranges that neither touch nor overlap.

    Invariant: lows[i] < highs[i] < lows[i + 1].  Adding at the end and removing anywhere near the
    ends is cheap; in the middle it costs a move of two lists of integers.
    """

    __slots__ = ("_highs", "_lows")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        pairs = normalize(ranges) if ranges else ()
        self._lows = [low for low, _ in pairs]
        self._highs = [high for _, high in pairs]

    def add(self, low: int, high: int) -> None:
        """Add [low, high)."""
        if low >= high:
            return
        if not self._highs or low > self._highs[-1]:
            # What comes in order.
            self._lows.append(low)
            self._highs.append(high)
            return
        # All ranges that touch [low, high] melt into one.
        start = bisect_left(self._highs, low)
        stop = bisect_right(self._lows, high)
        if start < stop:
            low = min(low, self._lows[start])
            high = max(high, self._highs[stop - 1])
        self._lows[start:stop] = [low]
        self._highs[start:stop] = [high]

    def remove(self, low: int, high: int) -> int:
        """Take [low, high) out; return how many numbers of it were there."""
        if low >= high:
            return 0
        start = bisect_right(self._highs, low)
        stop = bisect_left(self._lows, high)
        if start >= stop:
            return 0
        removed = 0
        lows: list[int] = []
        highs: list[int] = []
        for i in range(start, stop):
            first, end = self._lows[i], self._highs[i]
            removed += min(end, high) - max(first, low)
            if first < low:
                lows.append(first)
                highs.append(low)
            if high < end:
                lows.append(high)
                highs.append(end)
        self._lows[start:stop] = lows
        self._highs[start:stop] = highs
        return removed

    def first_from(self, low: int) -> int | None:
        """Return the smallest number of the set that is not below `low`."""
        i = bisect_right(self._highs, low)
        return max(low, self._lows[i]) if i < len(self._lows) else None

    def missing(self, low: int, high: int) -> list[Range]:
        """Return the parts of [low, high) that are not in the set."""
        result: list[Range] = []
        i = bisect_right(self._highs, low)
        while low < high:
            if i == len(self._lows) or self._lows[i] >= high:
                result.append((low, high))
                break
            if low < self._lows[i]:
                result.append((low, self._lows[i]))
            low = self._highs[i]
            i += 1
        return result

    def merge_lowest(self) -> None:
        """Make the two lowest ranges one, so that the set takes less room and holds more."""
        if len(self._lows) > 1:
            del self._lows[1]
            del self._highs[0]

    def ranges(self) -> list[Range]:
        """Return the ranges, ascending."""
        return list(zip(self._lows, self._highs, strict=True))

    def take_all(self) -> list[Range]:
        """Remove everything and return it as ranges, ascending."""
        if not self._lows:
            return []
        found = list(zip(self._lows, self._highs, strict=True))
        self._lows.clear()
        self._highs.clear()
        return found

    def count(self) -> int:
        """Return how many numbers are in the set."""
        return sum(self._highs) - sum(self._lows)

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self._lows, number) - 1
        return i >= 0 and number < self._highs[i]

    def __len__(self) -> int:
        """Return the number of ranges (not of numbers)."""
        return len(self._lows)

    def __bool__(self) -> bool:
        return bool(self._lows)


class Piece(Protocol):
    """Something that covers the numbers [first, end) and can be cut."""

    first: int
    end: int

    def part(self, first: int, end: int) -> Self:
        """Return a new piece for [first, end), which lies within this one."""
        ...

    def joins(self, following: Self) -> bool:
        """Return whether `following`, which begins at `end`, differs in nothing but its place."""
        ...


P = TypeVar("P", bound=Piece)


class Pieces(Generic[P]):
    """Disjoint pieces in ascending order; neighbours that join become one.

    Owns its pieces: one that has been added must not be used by anyone else afterwards.
    Invariants: `_firsts[i] == _pieces[i].first` from `_head` on; what is before `_head` is gone;
    `count` is the sum of the lengths.  Adding at the end, popping the first and taking a range
    at the front cost no move of memory.
    """

    __slots__ = ("_firsts", "_head", "_pieces", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._pieces: list[P] = []
        self._head = 0
        self.count = 0

    def add(self, piece: P) -> None:
        """Put a piece that overlaps none in its place."""
        pieces = self._pieces
        first = piece.first
        self.count += piece.end - first
        if self._head == len(pieces) or first >= pieces[-1].end:
            at = len(pieces)
        else:
            at = bisect_left(self._firsts, first, self._head)
        if at > self._head:
            left = pieces[at - 1]
            if left.end == first and left.joins(piece):
                left.end = piece.end
                if at < len(pieces) and left.end == pieces[at].first and left.joins(pieces[at]):
                    left.end = pieces[at].end
                    del pieces[at], self._firsts[at]
                return
        if at < len(pieces) and piece.end == pieces[at].first and piece.joins(pieces[at]):
            # What a snapshot brings back in order must look like this.
            # The left one stays: what a piece says of its first number (an offset, say) is true.
            piece.end = pieces[at].end
            pieces[at] = piece
            self._firsts[at] = first
            return
        if at == len(pieces):
            pieces.append(piece)
            self._firsts.append(first)
        elif at == self._head and at > 0:
            # The freed places in front are used again.
            self._head = at - 1
            pieces[at - 1] = piece
            self._firsts[at - 1] = first
        else:
            pieces.insert(at, piece)
            self._firsts.insert(at, first)

    def take(self, low: int, high: int) -> list[P]:
        """Remove [low, high) and return what was there, in order."""
        pieces, firsts, head = self._pieces, self._firsts, self._head
        size = len(pieces)
        if head == size or low >= high:
            return []
        i = head if low <= firsts[head] else bisect_right(firsts, low, head) - 1
        if pieces[i].end <= low:
            i += 1
        start = i
        taken: list[P] = []
        kept: list[P] = []
        while i < size and firsts[i] < high:
            piece = pieces[i]
            first, end = piece.first, piece.end
            if low <= first and end <= high:
                taken.append(piece)
            else:
                cut_low, cut_high = max(first, low), min(end, high)
                taken.append(piece.part(cut_low, cut_high))
                if first < cut_low:
                    kept.append(piece.part(first, cut_low))
                if cut_high < end:
                    kept.append(piece.part(cut_high, end))
            i += 1
        for piece in taken:
            self.count -= piece.end - piece.first
        if start == head and len(kept) <= 1 and i > head:
            if kept:
                i -= 1
                pieces[i] = kept[0]
                firsts[i] = kept[0].first
            self._drop_to(i)
        elif i > start:
            pieces[start:i] = kept
            firsts[start:i] = [piece.first for piece in kept]
        return taken

    def pop(self, limit: int) -> P:
        """Remove up to `limit` numbers of the first piece and return them (never empty here)."""
        head = self._head
        piece = self._pieces[head]
        first = piece.first
        if piece.end - first <= limit:
            self.count -= piece.end - first
            self._drop_to(head + 1)
            return piece
        cut = first + limit
        popped = piece.part(first, cut)
        piece.first = self._firsts[head] = cut
        self.count -= limit
        return popped

    def find(self, number: int) -> P | None:
        """Return the piece that covers this number."""
        i = bisect_right(self._firsts, number, self._head) - 1
        if i < self._head or self._pieces[i].end <= number:
            return None
        return self._pieces[i]

    def starting_at(self, number: int) -> Iterator[P]:
        """Yield the pieces from the one that covers this number, or the next one, on."""
        i = max(self._head, bisect_right(self._firsts, number, self._head) - 1)
        if i < len(self._pieces) and self._pieces[i].end <= number:
            i += 1
        while i < len(self._pieces):
            yield self._pieces[i]
            i += 1

    def backward(self) -> Iterator[P]:
        """Yield the pieces, the last one first."""
        i = len(self._pieces)
        while i > self._head:
            i -= 1
            yield self._pieces[i]

    def first(self) -> P | None:
        """Return the first piece, which stays."""
        return self._pieces[self._head] if self._head < len(self._pieces) else None

    def clear(self) -> list[P]:
        """Remove everything and return it."""
        pieces = self._pieces[self._head :]
        self._firsts, self._pieces, self._head, self.count = [], [], 0, 0
        return pieces

    def _drop_to(self, head: int) -> None:
        if head == len(self._pieces):
            self._pieces.clear()
            self._firsts.clear()
            head = 0
        elif head > _SLACK and 2 * head > len(self._pieces):
            del self._pieces[:head]
            del self._firsts[:head]
            head = 0
        self._head = head

    def __iter__(self) -> Iterator[P]:
        return iter(self._pieces[self._head :])

    def __bool__(self) -> bool:
        return self._head < len(self._pieces)

    def __len__(self) -> int:
        """Return the number of pieces (not of numbers)."""
        return len(self._pieces) - self._head

    def check(self) -> None:
        """Assert the invariants."""
        end = -(1 << 63)
        count = 0
        for first, piece in zip(
            self._firsts[self._head :], self._pieces[self._head :], strict=True
        ):
            assert first == piece.first, "index and piece disagree"
            assert end <= piece.first < piece.end, "pieces overlap or are empty"
            end = piece.end
            count += piece.end - piece.first
        assert count == self.count, f"{count} numbers, {self.count} counted"
