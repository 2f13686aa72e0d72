"""Where a queue's messages are: the entries that are alive, and the FIFOs of ready spans.

No rule about who gets what is here; the queue machine decides, this module keeps and counts.
Entries and spans themselves are in `queue_spans.py`, what is far from both ends in
`queue_fifos.py`.  Only `queue_machine.py` and its parts use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum

from brokerd.core.message import Range
from brokerd.core.queue.queue_spans import Entry, Span, append_run, cut, runs_of
from brokerd.core.queue.ready_spans import Block, ReadySpans
from brokerd.core.ranges import Pieces, RangeSet

__all__ = ["Block", "Entry", "Place", "Span", "Store", "append_run", "runs_of"]

#: An entry with its span, and its place in the dict; a row of a block (ready_spans.py); a row of
#: the table of the log (storage/entry_table.py).
ENTRY_BYTES = 380
PACKED_BYTES = 40
TABLE_ROW_BYTES = 16


class Place(IntEnum):
    """Where a returned message goes."""

    #: Classic: as near to where it was as possible (R-ACK-5).  Every queue, of what was not sent to
    #: a client and had not come back before.
    ORIGINAL = 0
    #: Quorum with a delivery limit: before everything else, in order of return (R-QQ-14).
    RETURNS = 1
    #: Quorum without a delivery limit: the back (R-DL-7).
    BACK = 2
    #: Quorum that serves returns first, of what was not sent to a client: before all of them.
    FRONT = 3


class _Level:
    """The ready messages of one priority.

    Within a level messages are handed out in order, so that whatever came back to its original
    place has a lower number than everything fresh that was never handed out.  Invariant: `count` is
    the sum over both.
    """

    __slots__ = ("back", "count", "fresh")

    def __init__(self, priority: int, entries: dict[int, Entry]) -> None:
        self.count = 0
        self.back: Pieces[Span] = Pieces()
        self.fresh = ReadySpans(priority, entries)

    def head(self) -> Span | None:
        return self.back.first() or (self.fresh.head[0] if self.fresh else None)

    def pop(self, limit: int) -> Span:
        span = self.back.pop(limit) if self.back else self.fresh.pop(limit)
        self.count -= span.end - span.first
        return span


def _pop(fifo: deque[Span], limit: int) -> Span:
    span = fifo[0]
    if span.end - span.first <= limit:
        return fifo.popleft()
    cut = span.first + limit
    popped = span.part(span.first, cut)
    span.first = cut
    return popped


def _append(fifo: deque[Span], span: Span) -> None:
    if fifo and fifo[-1].end == span.first and fifo[-1].joins(span):
        fifo[-1].end = span.end
    else:
        fifo.append(span)


def _prepend(fifo: deque[Span], span: Span) -> None:
    if fifo and span.end == fifo[0].first and span.joins(fifo[0]):
        fifo[0].first = span.first
    else:
        fifo.appendleft(span)


class Store:
    """The entries that are alive, and the ready messages in their FIFOs.

    Invariants: `ready` and `ready_bytes` are the sums over all FIFOs; `entries` holds by log index
    exactly the entries with live > 0 that are not packed into a block of a FIFO; `_live` has the
    indexes of both; `_order` holds exactly the levels that are not empty, highest first;
    `expiring` counts the ready messages that have an expiry instant; `_returns` is None while it
    would be empty.
    """

    __slots__ = (
        "_levels",
        "_live",
        "_order",
        "_returns",
        "entries",
        "expiring",
        "ready",
        "ready_bytes",
    )

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._live = RangeSet()
        self.ready = 0
        self.ready_bytes = 0
        self._returns: deque[Span] | None = None
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self.expiring = 0

    def add_entry(self, entry: Entry) -> None:
        """Take over an entry that has become alive."""
        self.entries[entry.index] = entry
        self._live.add(entry.index, entry.index + 1)

    def live_indexes(self) -> list[Range]:
        """Return the log indexes of all entries that are alive; kept, not gathered."""
        return self._live.ranges()

    def level_counts(self) -> list[tuple[int, int]]:
        """Return how many messages are ready in each priority, highest first, without those that
        have come back and are served before all of them.
        """
        return [(priority, self._levels[priority].count) for priority in self._order]

    def returned(self) -> deque[Span]:
        """Return what came back and is served before all levels; to be looked at only."""
        return self._returns or deque()

    def back(self, priority: int) -> Pieces[Span]:
        """Return what of a level came back to where it was; to be looked at only."""
        return self._levels[priority].back

    def fresh(self, priority: int) -> ReadySpans:
        """Return all else of a level; to be looked at only."""
        return self._levels[priority].fresh

    def memory_bytes(self) -> int:
        """Estimate what entries and their spans take, and their rows in the log's table."""
        alive = self._live.count()
        unpacked = len(self.entries)
        return alive * (PACKED_BYTES + TABLE_ROW_BYTES) + unpacked * (ENTRY_BYTES - PACKED_BYTES)

    def release(self, span: Span) -> None:
        """These messages have left the queue for good."""
        entry = span.entry
        entry.live -= span.end - span.first
        if not entry.live:
            del self.entries[entry.index]
            self._live.remove(entry.index, entry.index + 1)

    def add(self, span: Span, place: Place | None = None) -> None:
        """Make messages ready: new ones (place None) or returned ones."""
        self.ready += span.end - span.first
        self.ready_bytes += span.size_bytes()
        if span.expires_ms is not None:
            self.expiring += span.end - span.first
        if place is Place.RETURNS or place is Place.FRONT:
            if self._returns is None:
                self._returns = deque()
            (_append if place is Place.RETURNS else _prepend)(self._returns, span)
            return
        level = self._level(span.level)
        level.count += span.end - span.first
        if place is Place.ORIGINAL:
            level.back.add(span)
        else:
            level.fresh.append(span)

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level(priority, self.entries)
            self._order = sorted(self._levels, reverse=True)
        return level

    def head(self) -> Span | None:
        """Return the span with the next message to be handed out or dropped (R-PRI-4)."""
        if self._returns:
            return self._returns[0]
        return self._levels[self._order[0]].head() if self._order else None

    def pop(self, limit: int) -> Span:
        """Remove up to `limit` messages of the head span."""
        if self._returns:
            span = _pop(self._returns, limit)
            self._returns = self._returns or None
        else:
            span = self._pop_level(self._order[0], limit)
        self._forget(span)
        return span

    def take(self, ranges: Sequence[Range]) -> list[Span]:
        """Remove messages by number, wherever they stand, and return them; what is not ready is
        passed over.  ranges: ascending, disjoint.
        """
        wanted = RangeSet(ranges)
        taken = self._take_returns(wanted) if self._returns else []
        for priority in list(self._order):
            level = self._levels[priority]
            found: list[Span] = []
            for low, high in ranges:
                found += level.back.take(low, high)
            found += level.fresh.take(wanted)
            level.count -= sum([span.end - span.first for span in found])
            if not level.fresh and not level.back:
                del self._levels[priority]
                self._order.remove(priority)
            taken += found
        for span in taken:
            self._forget(span)
        return taken

    def _take_returns(self, wanted: RangeSet) -> list[Span]:
        taken: list[Span] = []
        left: deque[Span] = deque()
        for span in self._returns or ():
            left.extend(cut(span, wanted, taken))
        self._returns = left or None
        return taken

    def put_back(self, span: Span) -> None:
        """Make messages ready that `take` removed, at their numbers in their level."""
        self.ready += span.end - span.first
        self.ready_bytes += span.size_bytes()
        if span.expires_ms is not None:
            self.expiring += span.end - span.first
        level = self._level(span.level)
        level.count += span.end - span.first
        at = level.fresh.find_from(span.first, 0)
        if at:
            level.fresh.insert(at, span)
        else:
            # Before all that was never handed out, as what came back to where it was is.
            level.back.add(span)

    def pop_expired(self, now_ms: int, every_fifo: bool) -> list[Span]:
        """Remove the messages that have expired at the heads of the FIFOs.

        every_lane: quorum looks at the head of the returns FIFO and of each level (R-TTL-4);
        classic stops at the first level whose head is alive (R-PRI-5).
        """
        expired: list[Span] = []
        returns = self._returns
        while returns and _is_over(returns[0], now_ms):
            expired.append(returns.popleft())
        self._returns = returns or None
        for priority in list(self._order):
            while True:
                level = self._levels.get(priority)
                head = level.head() if level else None
                if head is None or not _is_over(head, now_ms):
                    break
                expired.append(self._pop_level(priority, head.end - head.first))
            if head is not None and not every_fifo:
                break
        for span in expired:
            self._forget(span)
        return expired

    def next_expiry_ms(self, every_fifo: bool) -> int | None:
        """Return when pop_expired will next find something, as far as is known now."""
        if not self.expiring:
            return None
        heads = [self._returns[0]] if self._returns else []
        for priority in self._order if every_fifo else self._order[:1]:
            head = self._levels[priority].head()
            assert head is not None, "empty level kept"
            heads.append(head)
        return min((head.expires_ms for head in heads if head.expires_ms is not None), default=None)

    def purge(self) -> int:
        """Remove all ready messages for good; return how many there were."""
        count = self.ready
        for level in self._levels.values():
            for block in level.fresh.blocks():
                for low, high in _ranges(block):
                    self._live.remove(low, high)
            for item in [*level.back, *level.fresh.items()]:
                if isinstance(item, Span):
                    self.release(item)
        for span in self._returns or ():
            self.release(span)
        self.ready = self.ready_bytes = self.expiring = 0
        self._returns = None
        self._levels.clear()
        self._order.clear()
        return count

    def forget(self) -> None:
        """Remove everything, also what consumers hold: the queue has ended."""
        self.purge()
        self.entries.clear()
        self._live = RangeSet()

    def _pop_level(self, priority: int, limit: int) -> Span:
        level = self._levels[priority]
        span = level.pop(limit)
        if not level.fresh and not level.back:
            del self._levels[priority]
            self._order.remove(priority)
        return span

    def _forget(self, span: Span) -> None:
        self.ready -= span.end - span.first
        self.ready_bytes -= span.size_bytes()
        if span.expires_ms is not None:
            self.expiring -= span.end - span.first

    def items(self) -> Iterator[tuple[Place | None, int, Span | Block]]:
        """Return what `restore` needs, in its order: place, level, spans and blocks."""
        for span in self._returns or ():
            yield Place.RETURNS, span.level, span
        for priority in self._order:
            level = self._levels[priority]
            for span in level.back:
                yield Place.ORIGINAL, priority, span
            for item in level.fresh.items():
                yield None, priority, item

    def restore(self, items: list[tuple[Place | None, int, Span | Block]]) -> None:
        """Fill a store without ready messages; the entries of the spans are there already."""
        fifos: dict[int, list[Span | Block]] = {}
        for place, priority, item in items:
            if place is None:
                fifos.setdefault(priority, []).append(item)
            else:
                assert isinstance(item, Span), "a block in a FIFO of returned messages"
                self.add(item, place)
        for priority, fifo in fifos.items():
            before = self.ready
            for item in fifo:
                if isinstance(item, Block):
                    self._restore_block(item)
                else:
                    self.ready += item.end - item.first
                    self.ready_bytes += item.size_bytes()
                    if item.expires_ms is not None:
                        self.expiring += item.end - item.first
            level = self._level(priority)
            level.count += self.ready - before
            level.fresh.restore(fifo)

    def _restore_block(self, block: Block) -> None:
        block.check()
        self.ready += block.messages()
        self.ready_bytes += block.size_bytes()
        self.expiring += block.expiring()
        for low, high in _ranges(block):
            self._live.add(low, high)

    def __iter__(self) -> Iterator[Span]:
        """Yield all ready spans; those of packed entries are made for the occasion."""
        for _, priority, item in self.items():
            if isinstance(item, Block):
                yield from item.spans(priority)
            else:
                yield item

    def check(self) -> None:
        """Assert what the class promises."""
        assert self.ready == sum(span.end - span.first for span in self)
        assert self.ready_bytes == sum(span.size_bytes() for span in self)
        assert self._order == sorted(self._levels, reverse=True)
        expiring = [span for span in self if span.expires_ms is not None]
        assert self.expiring == sum(span.end - span.first for span in expiring)
        for priority, level in self._levels.items():
            level.back.check()
            spans = [*level.back]
            for item in level.fresh.items():
                spans += item.spans(priority) if isinstance(item, Block) else [item]
            assert level.count == sum(span.end - span.first for span in spans)
            last = max((span.end for span in level.back), default=None)
            if last is not None and level.fresh:
                first = level.fresh.head[0]
                assert last <= first.first or first.standing
            assert level.fresh or level.back, "empty level kept"
            level.fresh.check()
        live = [index for low, high in self._live.ranges() for index in range(low, high)]
        packed = [index for block in self._blocks() for index in block.indexes]
        assert live == sorted([*self.entries, *packed]), "the live indexes are not those here"

    def _blocks(self) -> Iterator[Block]:
        return (block for level in self._levels.values() for block in level.fresh.blocks())

    def holds(self, entry: Entry) -> bool:
        """Return whether an entry is here, for checks: itself, or packed."""
        known = self.entries.get(entry.index)
        return known is entry or (known is None and entry.index in self._live)


def _is_over(span: Span, now_ms: int) -> bool:
    return span.expires_ms is not None and span.expires_ms <= now_ms


def _ranges(block: Block) -> list[Range]:
    """Return the log indexes of a block; nearly always they are one range."""
    indexes = block.indexes
    if indexes[-1] - indexes[0] + 1 == len(indexes):
        return [(indexes[0], indexes[-1] + 1)]
    return [(index, index + 1) for index in indexes]
