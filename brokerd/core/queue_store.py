"""Where a queue's messages are: log entries, spans of them, and the lanes of ready spans.

No rule about who gets what is here; the queue machine decides, this module keeps and counts.
The clean path has one span per log entry, whatever the entry's length; finer spans exist only
where messages differ (own TTL, priority, returned) or where a delivery ended within an entry.
Only `queue.py` and its parts use it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from enum import IntEnum

from brokerd.core import queue_commands
from brokerd.core.effects import Run
from brokerd.core.ranges import Pieces


class Entry:
    """One log entry that still holds messages of this queue.

    Message number n is at position n - first of the entry.  `first` may be negative when the
    front of the entry was a duplicate.
    Invariants: sizes are either all `size` (columns None), or the sums over `columns`, which are
    added up only when an entry is first cut; `live` counts the messages that are ready, checked
    out or waiting dead letters.
    """

    __slots__ = ("_sums", "columns", "count", "enqueued_ms", "first", "index", "live", "size")

    def __init__(
        self, index: int, first: int, enqueued_ms: int, count: int, columns: list[bytes]
    ) -> None:
        self.index = index
        self.first = first
        self.enqueued_ms = enqueued_ms
        self.count = count
        size = queue_commands.equal_size(columns)
        #: Of each message, or of all together if they differ.
        self.size = queue_commands.total_size(columns) if size is None else size
        self.columns = columns if size is None else None
        self._sums: array[int] | None = None
        self.live = 0

    def bytes_of(self, first: int, end: int) -> int:
        """Return the size of the messages [first, end)."""
        if self.columns is None:
            return self.size * (end - first)
        if end - first == self.count:
            return self.size
        sums = self._sums or self._add_up(self.columns)
        return sums[end - self.first] - sums[first - self.first]

    def fitting(self, first: int, end: int, room_bytes: int) -> int:
        """Return how many messages from `first` on have at most `room_bytes` together."""
        if room_bytes < 0:
            return 0
        if self.columns is None:
            return min(end - first, room_bytes // self.size) if self.size else end - first
        sums = self._sums or self._add_up(self.columns)
        start, stop = first - self.first, end - self.first
        return bisect_right(sums, sums[start] + room_bytes, start, stop + 1) - 1 - start

    def covering(self, first: int, end: int, excess_bytes: int) -> int:
        """Return how many messages from `first` on it takes to free `excess_bytes`."""
        if self.columns is None:
            return min(end - first, -(-excess_bytes // self.size)) if self.size else end - first
        sums = self._sums or self._add_up(self.columns)
        start, stop = first - self.first, end - self.first
        return min(bisect_left(sums, sums[start] + excess_bytes, start, stop + 1), stop) - start

    def _add_up(self, columns: list[bytes]) -> array[int]:
        self._sums = queue_commands.cumulative_sizes(columns)
        return self._sums


class Span:
    """Consecutive messages [first, end) of one entry that are alike in everything else."""

    __slots__ = (
        "acquired_count",
        "delivery_count",
        "end",
        "entry",
        "expires_ms",
        "first",
        "level",
        "taken_ms",
    )

    def __init__(
        self,
        entry: Entry,
        first: int,
        end: int,
        expires_ms: int | None = None,
        level: int = 0,
        acquired_count: int = 0,
        delivery_count: int = 0,
        taken_ms: int = 0,
    ) -> None:
        self.entry = entry
        self.first = first
        self.end = end
        #: Fixed at enqueue, kept across requeue (R-TTL-1).
        self.expires_ms = expires_ms
        #: Priority (R-PRI-1), 0 where the queue has none.
        self.level = level
        #: How often it came back after having been handed out (R-DL-2).
        self.acquired_count = acquired_count
        self.delivery_count = delivery_count
        #: When a consumer got them, rounded up (R-QQ-22); 0: nobody has them, or for as long as
        #: they like.
        self.taken_ms = taken_ms

    def part(self, first: int, end: int) -> Span:
        """Return a span of some of these messages."""
        return Span(
            self.entry,
            first,
            end,
            self.expires_ms,
            self.level,
            self.acquired_count,
            self.delivery_count,
            self.taken_ms,
        )

    def joins(self, following: Span) -> bool:
        """Return whether the two differ only in place."""
        return (
            self.entry is following.entry
            and self.acquired_count == following.acquired_count
            and self.delivery_count == following.delivery_count
            and self.expires_ms == following.expires_ms
            and self.level == following.level
            and self.taken_ms == following.taken_ms
        )

    def run(self) -> Run:
        """Return where these messages are, for effects and replies."""
        entry = self.entry
        return Run(
            self.first,
            self.end - self.first,
            entry.index,
            self.first - entry.first,
            self.acquired_count,
            self.delivery_count,
        )

    def size_bytes(self) -> int:
        """Return the accounted size."""
        return self.entry.bytes_of(self.first, self.end)


def runs_of(spans: list[Span]) -> list[Run]:
    """Return the runs of these spans in order, neighbours of one entry joined."""
    runs: list[Run] = []
    for span in spans:
        append_run(runs, span)
    return runs


def append_run(runs: list[Run], span: Span) -> None:
    """Append a span's run, or lengthen the last one by it."""
    run = span.run()
    if runs:
        last = runs[-1]
        alike = last.entry == run.entry and last[4:] == run[4:]
        if alike and last.first + last.length == run.first:
            runs[-1] = last._replace(length=last.length + run.length)
            return
    runs.append(run)


class Place(IntEnum):
    """Where a returned message goes."""

    #: Classic: as near to where it was as possible (R-ACK-5).
    ORIGINAL = 0
    #: Quorum with a delivery limit: before everything else, in order of return (R-QQ-14).
    RETURNS = 1
    #: Quorum without a delivery limit: the back (R-DL-7).
    BACK = 2


class _Level:
    """The ready messages of one priority.

    Within a level messages are handed out in order, so that whatever came back to its original
    place has a lower number than everything fresh.
    """

    __slots__ = ("back", "fresh")

    def __init__(self) -> None:
        self.back: Pieces[Span] = Pieces()
        self.fresh: deque[Span] = deque()

    def head(self) -> Span | None:
        return self.back.first() or (self.fresh[0] if self.fresh else None)

    def pop(self, limit: int) -> Span:
        return self.back.pop(limit) if self.back else _pop(self.fresh, limit)


def _pop(lane: deque[Span], limit: int) -> Span:
    span = lane[0]
    if span.end - span.first <= limit:
        return lane.popleft()
    cut = span.first + limit
    popped = span.part(span.first, cut)
    span.first = cut
    return popped


def _append(lane: deque[Span], span: Span) -> None:
    if lane and lane[-1].end == span.first and lane[-1].joins(span):
        lane[-1].end = span.end
    else:
        lane.append(span)


class Store:
    """The entries that are alive, and the ready messages in their lanes.

    Invariants: `ready` and `ready_bytes` are the sums over all lanes; `entries` holds exactly the
    entries with live > 0, by log index, ascending; `_order` holds exactly the levels that are not
    empty, highest first; `_expiring` counts the ready messages that have an expiry instant.
    """

    __slots__ = ("_expiring", "_levels", "_order", "_returns", "entries", "ready", "ready_bytes")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.ready = 0
        self.ready_bytes = 0
        self._returns: deque[Span] = deque()
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self._expiring = 0

    def add_entry(self, entry: Entry) -> None:
        """Take over an entry that has become alive; indexes only ever rise."""
        self.entries[entry.index] = entry

    def release(self, span: Span) -> None:
        """These messages have left the queue for good."""
        entry = span.entry
        entry.live -= span.end - span.first
        if not entry.live:
            del self.entries[entry.index]

    def add(self, span: Span, place: Place | None = None) -> None:
        """Make messages ready: new ones (place None) or returned ones."""
        self.ready += span.end - span.first
        self.ready_bytes += span.size_bytes()
        if span.expires_ms is not None:
            self._expiring += span.end - span.first
        if place is Place.RETURNS:
            _append(self._returns, span)
            return
        level = self._levels.get(span.level)
        if level is None:
            level = self._levels[span.level] = _Level()
            self._order = sorted(self._levels, reverse=True)
        if place is Place.ORIGINAL:
            level.back.add(span)
        else:
            _append(level.fresh, span)

    def head(self) -> Span | None:
        """Return the span with the next message to be handed out or dropped (R-PRI-4)."""
        if self._returns:
            return self._returns[0]
        return self._levels[self._order[0]].head() if self._order else None

    def pop(self, limit: int) -> Span:
        """Remove up to `limit` messages of the head span."""
        if self._returns:
            span = _pop(self._returns, limit)
        else:
            span = self._pop_level(self._order[0], limit)
        self._forget(span)
        return span

    def pop_expired(self, now_ms: int, every_lane: bool) -> list[Span]:
        """Remove the messages that have expired at the heads of the lanes.

        every_lane: quorum looks at the head of the returns lane and of each level (R-TTL-4);
        classic stops at the first level whose head is alive (R-PRI-5).
        """
        expired: list[Span] = []
        if not self._expiring:
            return expired
        while self._returns and _is_over(self._returns[0], now_ms):
            expired.append(self._returns.popleft())
        for priority in list(self._order):
            while True:
                level = self._levels.get(priority)
                head = level.head() if level else None
                if head is None or not _is_over(head, now_ms):
                    break
                expired.append(self._pop_level(priority, head.end - head.first))
            if head is not None and not every_lane:
                break
        for span in expired:
            self._forget(span)
        return expired

    def next_expiry_ms(self, every_lane: bool) -> int | None:
        """Return when pop_expired will next find something, as far as is known now."""
        if not self._expiring:
            return None
        heads = [self._returns[0]] if self._returns else []
        for priority in self._order if every_lane else self._order[:1]:
            head = self._levels[priority].head()
            assert head is not None, "empty level kept"
            heads.append(head)
        return min((head.expires_ms for head in heads if head.expires_ms is not None), default=None)

    def clear(self) -> list[Span]:
        """Remove all ready messages and return them; their entries are not released."""
        spans = list(self)
        self.ready = self.ready_bytes = self._expiring = 0
        self._returns.clear()
        self._levels.clear()
        self._order.clear()
        return spans

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
            self._expiring -= span.end - span.first

    def lanes(self) -> Iterator[tuple[Place | None, Span]]:
        """Return all ready spans with the place that `add` needs to bring them back there."""
        for span in self._returns:
            yield Place.RETURNS, span
        for priority in self._order:
            level = self._levels[priority]
            for span in level.back:
                yield Place.ORIGINAL, span
            for span in level.fresh:
                yield None, span

    def __iter__(self) -> Iterator[Span]:
        return (span for _, span in self.lanes())

    def check(self) -> None:
        """Assert what the class promises."""
        assert self.ready == sum(span.end - span.first for span in self)
        assert self.ready_bytes == sum(span.size_bytes() for span in self)
        assert self._order == sorted(self._levels, reverse=True)
        expiring = [span for span in self if span.expires_ms is not None]
        assert self._expiring == sum(span.end - span.first for span in expiring)
        for level in self._levels.values():
            level.back.check()
            last = max((span.end for span in level.back), default=None)
            assert last is None or not level.fresh or last <= level.fresh[0].first
            assert level.fresh or level.back, "empty level kept"
        indexes = list(self.entries)
        assert indexes == sorted(indexes), "entries out of order"


def _is_over(span: Span, now_ms: int) -> bool:
    return span.expires_ms is not None and span.expires_ms <= now_ms
