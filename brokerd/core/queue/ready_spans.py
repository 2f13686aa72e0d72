"""Ready messages in order of arrival, at a few bytes each between the two ends of a queue.

A span and its entry cost about 300 bytes, which only those near the two ends of a FIFO need to
be.  In between, stretches of entries that are ready as a whole, never handed out and with messages
of equal size are `Block`s of numbers (design/hot-path.md, "Scale": 150 bytes per ready message).
What is packed and when follows from the commands alone, and a snapshot says it.
Only `queue_store.py` and `queue_snapshot.py` use it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import mul
from typing import TypeAlias, cast

from brokerd.core.queue.queue_spans import Entry, Span, cut
from brokerd.core.ranges import RangeSet

#: Spans per block: the arrays' own size must not count, and unpacking one must not be felt.
BLOCK_SPANS = 256
#: So many spans at the front of a FIFO stay as they are, so that a queue whose consumers keep up
#: packs nothing.
UNPACKED_MIN = 512

#: Stands for "does not expire".
_NEVER = -1

Entries: TypeAlias = dict[int, Entry]


class Block:
    """Whole entries, one row each; invariant: all columns have the same length, which is not 0."""

    __slots__ = ("counts", "enqueued", "expiries", "firsts", "indexes", "sizes")

    def __init__(
        self,
        indexes: array[int],
        firsts: array[int],
        enqueued: array[int],
        expiries: array[int],
        counts: array[int],
        sizes: array[int],
    ) -> None:
        self.indexes = indexes
        self.firsts = firsts
        self.enqueued = enqueued
        #: When the messages expire, _NEVER if they do not.
        self.expiries = expiries
        self.counts = counts
        #: Bytes of each message of the entry.
        self.sizes = sizes

    @classmethod
    def of(cls, spans: list[Span]) -> Block:
        """Pack spans that `is_plain` holds for."""
        entries = [span.entry for span in spans]
        return cls(
            array("q", [entry.index for entry in entries]),
            array("q", [entry.first for entry in entries]),
            array("q", [entry.enqueued_ms for entry in entries]),
            array("q", [_NEVER if s.expires_ms is None else s.expires_ms for s in spans]),
            array("I", [entry.count for entry in entries]),
            array("I", [entry.size for entry in entries]),
        )

    def columns(self) -> tuple[array[int], ...]:
        """Return the columns in the order of the constructor."""
        return self.indexes, self.firsts, self.enqueued, self.expiries, self.counts, self.sizes

    def spans(self, level: int) -> Iterator[Span]:
        """Yield the spans anew, each with an entry of its own."""
        for index, first, enqueued_ms, expires_ms, count, size in zip(*self.columns(), strict=True):
            entry = Entry.of_equal_sizes(index, first, enqueued_ms, count, size)
            entry.live = count
            expiry = None if expires_ms == _NEVER else expires_ms
            yield Span(entry, first, first + count, expiry, level)

    def rows(self, start: int, stop: int) -> Block:
        """Return a block of some of the entries; at least one."""
        return Block(*[column[start:stop] for column in self.columns()])

    def messages(self) -> int:
        """Return how many messages there are."""
        return sum(self.counts)

    def size_bytes(self) -> int:
        """Return the size of all of them."""
        return sum(map(mul, self.counts, self.sizes))

    def expiring(self) -> int:
        """Return how many of them have an expiry instant."""
        pairs = zip(self.counts, self.expiries, strict=True)
        return sum(count for count, expires_ms in pairs if expires_ms != _NEVER)

    def __len__(self) -> int:
        return len(self.indexes)

    def check(self) -> None:
        """Assert what the class promises; ValueError otherwise, since a snapshot may be wrong."""
        if not self.indexes or len({len(column) for column in self.columns()}) != 1:
            raise ValueError("columns of a block differ in length")
        if not all(low < high for low, high in pairwise(self.indexes)):
            raise ValueError("entries of a block are out of order")
        ends = (first + count for first, count in zip(self.firsts, self.counts, strict=True))
        if self.firsts[0] < 0 or not all(
            end <= first for end, first in zip(ends, self.firsts[1:], strict=False)
        ):
            raise ValueError("messages of a block overlap")
        if not all(self.counts):
            raise ValueError("an entry of a block holds nothing")


def is_plain(span: Span) -> bool:
    """Return whether a span is all of an entry whose messages are alike and were never out."""
    entry = span.entry
    return (
        entry.columns is None
        and span.first == entry.first
        and span.end - span.first == entry.count == entry.live
        and not span.acquired_count
        and not span.delivery_count
        and not span.taken_ms
        and not span.is_late
    )


def _was_out(item: Span | Block) -> bool:
    return isinstance(item, Span) and bool(item.standing)


def _first_of(item: Span | Block) -> int:
    return item.first if isinstance(item, Span) else item.firsts[0]


def _is_before(item: Span | Block, number: int, since_ms: int) -> bool:
    """Return whether all messages of an item are lower or came earlier."""
    if isinstance(item, Span):
        return item.end <= number or item.entry.enqueued_ms < since_ms
    return item.firsts[-1] + item.counts[-1] <= number or item.enqueued[-1] < since_ms


def _insert(fifo: deque[Span | Block], at: int, span: Span) -> None:
    """Put a span before the item at a position, joined with its neighbours where it joins them."""
    left = fifo[at - 1] if at else None
    right = fifo[at] if at < len(fifo) else None
    if isinstance(left, Span) and left.end == span.first and left.joins(span):
        left.end = span.end
        if isinstance(right, Span) and left.end == right.first and left.joins(right):
            left.end = right.end
            del fifo[at]
    elif isinstance(right, Span) and span.end == right.first and span.joins(right):
        right.first = span.first
    else:
        fifo.insert(at, span)


class ReadySpans:
    """First in, first out: `head`, then `middle`, then `tail`.

    Invariants: `head` is not empty if anything is here; `middle` is empty or ends with a block;
    while it is empty so is `tail`, and what comes goes behind `head`.  Entries are in `entries`
    (shared, of the whole queue) exactly while their span is not in a block.
    """

    __slots__ = ("_entries", "_out", "_plain", "head", "level", "middle", "tail")

    def __init__(self, level: int, entries: Entries) -> None:
        self.level = level
        self.head: deque[Span] = deque()
        self.middle: deque[Span | Block] = deque()
        self.tail: deque[Span] = deque()
        self._entries = entries
        #: So many spans at the end, at least, are plain.
        self._plain = 0
        #: Messages here that have come back, or are late.
        self._out = 0

    def append(self, span: Span) -> None:
        """Put a span behind the last one."""
        if span.standing:
            self._out += span.end - span.first
        fifo = self.tail if self.middle else self.head
        if fifo and fifo[-1].end == span.first and fifo[-1].joins(span):
            fifo[-1].end = span.end
            self._plain = 0
            return
        fifo.append(span)
        self._plain = self._plain + 1 if is_plain(span) else 0
        if self._plain >= BLOCK_SPANS and (self.middle or len(fifo) >= BLOCK_SPANS + UNPACKED_MIN):
            self._pack(fifo)

    def _pack(self, fifo: deque[Span]) -> None:
        """Make a block of the last spans."""
        packed = [fifo.pop() for _ in range(BLOCK_SPANS)]
        packed.reverse()
        for span in packed:
            del self._entries[span.entry.index]
        if fifo is self.tail:
            self.middle.extend(fifo)
            fifo.clear()
        self.middle.append(Block.of(packed))
        self._plain = 0

    def pop(self, limit: int) -> Span:
        """Remove up to `limit` messages of the first span."""
        span = self.head[0]
        if span.standing:
            self._out -= min(limit, span.end - span.first)
        if span.end - span.first > limit:
            middle = span.first + limit
            popped = span.part(span.first, middle)
            span.first = middle
            return popped
        self.head.popleft()
        if not self.head and self.middle:
            self._refill()
        return span

    def _refill(self) -> None:
        item = self.middle.popleft()
        if isinstance(item, Block):
            for span in item.spans(self.level):
                self._entries[span.entry.index] = span.entry
                self.head.append(span)
        else:
            self.head.append(item)
        if not self.middle:
            self.head.extend(self.tail)
            self.tail.clear()

    def restore(self, items: list[Span | Block]) -> None:
        """Fill an empty FIFO as it was when `items` yielded this."""
        last = max((at for at, item in enumerate(items) if isinstance(item, Block)), default=-1)
        for at, item in enumerate(items):
            if isinstance(item, Block):
                self.middle.append(item)
            elif at > last and self.middle:
                self.tail.append(item)
            elif self.middle:
                self.middle.append(item)
            else:
                self.head.append(item)
        if not self.head and self.middle:
            raise ValueError("a FIFO begins with a block")
        out = [span for span in self.items() if isinstance(span, Span) and span.standing]
        self._out = sum([span.end - span.first for span in out])
        self._count_plain()

    def _count_plain(self) -> None:
        self._plain = 0
        ending = reversed(self.tail if self.middle else self.head)
        for span in islice(ending, BLOCK_SPANS):
            if not is_plain(span):
                break
            self._plain += 1

    # ---- by number ------------------------------------------------------------------------------

    def take(self, wanted: RangeSet) -> list[Span]:
        """Remove these messages and return them; what is not here is passed over.

        Those that were never out are found by their number.  Those that came back are looked for
        from the first one on, only where some are here and not all that is wanted was found.
        """
        ranges = wanted.ranges()
        if not ranges or not self.head:
            return []
        taken: list[Span] = []
        self._take_from(self.find_from(ranges[0][0], 0), ranges[-1][1], wanted, taken)
        count = sum([span.end - span.first for span in taken])
        out = sum([span.end - span.first for span in taken if span.standing])
        if self._out > out and count < wanted.count():
            again: list[Span] = []
            self._take_from(0, None, wanted, again)
            out += sum([span.end - span.first for span in again])
            taken += again
        if taken:
            self._out -= out
            self._settle_ends()
        return taken

    def _take_from(self, at: int, high: int | None, wanted: RangeSet, taken: list[Span]) -> None:
        """Look from a position on, up to the first message of a higher number that was never out;
        high: None: to the end.
        """
        fifos = (self.head, self.middle, self.tail)
        for fifo in fifos:
            size = len(fifo)
            if at >= size:
                at -= size
                continue
            items = cast("deque[Span | Block]", fifo)
            items.rotate(-at)
            kept: list[Span | Block] = []
            is_over = False
            for _ in range(size - at):
                item = items[0]
                is_over = high is not None and not _was_out(item) and _first_of(item) >= high
                if is_over:
                    break
                kept += self._rest(items.popleft(), wanted, taken)
            items.extendleft(reversed(kept))
            items.rotate(at)
            if is_over:
                return
            at = 0

    def _rest(self, item: Span | Block, wanted: RangeSet, taken: list[Span]) -> list[Span | Block]:
        """Add what is wanted of an item to `taken`, and return what is left of it."""
        rest: list[Span | Block] = []
        if isinstance(item, Span):
            rest += cut(item, wanted, taken)
            return rest
        done = 0
        for row, first in enumerate(item.firsts):
            next_wanted = wanted.first_from(first)
            if next_wanted is None:
                break
            if next_wanted >= first + item.counts[row]:
                continue
            if done < row:
                rest.append(item.rows(done, row))
            for span in item.rows(row, row + 1).spans(self.level):
                self._entries[span.entry.index] = span.entry
                rest += cut(span, wanted, taken)
            done = row + 1
        if not done:
            return [item]
        if done < len(item):
            rest.append(item.rows(done, len(item)))
        return rest

    def _settle_ends(self) -> None:
        """Something in between has gone, or come: the invariants hold again."""
        while self.middle:
            last = self.middle[-1]
            if isinstance(last, Block):
                break
            self.tail.appendleft(last)
            self.middle.pop()
        if not self.middle:
            self.head.extend(self.tail)
            self.tail.clear()
        while self.middle and not self.head:
            self._refill()
        self._count_plain()

    def insert(self, at: int, span: Span) -> None:
        """Put a span back where `find_from` found its number."""
        self._out += (span.end - span.first) * (span.standing != 0)
        head, middle = len(self.head), len(self.middle)
        item = self._at(at) if at < head + middle else None
        if isinstance(item, Block) and item.firsts[0] < span.first:
            self._insert_into(at - head, item, span)
        elif at <= head:
            _insert(cast("deque[Span | Block]", self.head), at, span)
        elif at < head + middle:
            _insert(self.middle, at - head, span)
        else:
            _insert(cast("deque[Span | Block]", self.tail), at - head - middle, span)
        self._settle_ends()

    def _insert_into(self, at: int, block: Block, span: Span) -> None:
        row = bisect_left(block.firsts, span.first)
        self.middle[at] = block.rows(row, len(block))
        self.middle.insert(at, span)
        self.middle.insert(at, block.rows(0, row))

    def items(self) -> Iterator[Span | Block]:
        """Yield spans and blocks in order."""
        yield from self.head
        yield from self.middle
        yield from self.tail

    # Messages that were never out stand in order of their numbers, and of the time at which they
    # came.  One that came back, or is late, stands behind them: its number is lower than those
    # before it.

    def find_from(self, number: int, since_ms: int) -> int:
        """Return where to look for messages from a number and a time on: before it is none."""
        low, high = 0, len(self.head) + len(self.middle) + len(self.tail)
        while low < high:
            middle = (low + high) // 2
            at = middle
            while at < high and _was_out(self._at(at)):
                at += 1
            if at == high:
                high = middle
            elif _is_before(self._at(at), number, since_ms):
                low = at + 1
            else:
                high = middle
        return low

    def find(self, number: int, standing: int) -> int:
        """Return where a message stands that had come back so often (Span.standing); if it has
        gone: 0, since all before it have.
        """
        if standing:
            spans = ((at, item) for at, item in enumerate(self.items()) if isinstance(item, Span))
            for at, span in spans:
                is_same = span.standing == standing
                if is_same and span.first <= number < span.end:
                    return at
            return 0
        start = at = self.find_from(number, 0)
        size = len(self.head) + len(self.middle) + len(self.tail)
        while at < size and _was_out(self._at(at)):
            at += 1
        return at if at < size and _first_of(self._at(at)) <= number else start

    def items_from(self, at: int) -> Iterator[Span | Block]:
        """Yield what `items` does, from one of them on."""
        for fifo in (self.head, self.middle, self.tail):
            yield from islice(fifo, min(at, len(fifo)), None)
            at = max(0, at - len(fifo))

    def items_backward(self) -> Iterator[Span | Block]:
        """Yield what `items` does, the last one first."""
        for fifo in (self.tail, self.middle, self.head):
            yield from reversed(fifo)

    def _at(self, at: int) -> Span | Block:
        for fifo in (self.head, self.middle):
            if at < len(fifo):
                return fifo[at]
            at -= len(fifo)
        return self.tail[at]

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order."""
        return (item for item in self.middle if isinstance(item, Block))

    def __bool__(self) -> bool:
        return bool(self.head)

    def check(self) -> None:
        """Assert what the class promises."""
        assert self.head or not (self.middle or self.tail), "the head of a FIFO is empty"
        assert self.middle or not self.tail, "a tail behind nothing"
        out = [span for span in self.items() if isinstance(span, Span) and span.standing]
        assert self._out == sum([span.end - span.first for span in out])
        assert not self.middle or isinstance(self.middle[-1], Block), "the middle ends in a span"
        for block in self.blocks():
            block.check()
            assert not any(index in self._entries for index in block.indexes), "packed, yet here"
