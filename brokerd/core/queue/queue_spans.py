"""Log entries that hold messages of a queue, and spans of them.

The clean path has one span per log entry, whatever the entry's length; finer spans exist only
where messages differ (own TTL, priority, returned) or where a delivery ended within an entry.
Only `queue_machine.py` and its parts use it, by way of `queue_store.py`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.effects import Run
from brokerd.core.ranges import RangeSet


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
        self,
        index: int,
        first: int,
        enqueued_ms: int,
        count: int,
        columns: list[bytes],
        equal_size: int | None = None,
    ) -> None:
        self.index = index
        self.first = first
        self.enqueued_ms = enqueued_ms
        self.count = count
        size = enqueue_commands.equal_size(columns) if equal_size is None else equal_size
        #: Of each message, or of all together if they differ.
        self.size = enqueue_commands.total_size(columns) if size is None else size
        self.columns = columns if size is None else None
        self._sums: array[int] | None = None
        self.live = 0

    @classmethod
    def of_equal_sizes(
        cls, index: int, first: int, enqueued_ms: int, count: int, size: int
    ) -> Entry:
        """Return an entry whose messages are all `size` bytes large."""
        return cls(index, first, enqueued_ms, count, [], size)

    def bytes_of(self, first: int, end: int) -> int:
        """Return the size of the messages [first, end)."""
        if self.columns is None:
            return self.size * (end - first)
        if end - first == self.count:
            return self.size
        sums = self._sums or self._add_up(self.columns)
        return sums[end - self.first] - sums[first - self.first]

    def size_of(self, number: int) -> int:
        """Return the size of one message; nothing is added up for it."""
        if self.columns is None:
            return self.size
        at = 4 * (number - self.first)
        return sum([int.from_bytes(column[at : at + 4], "little") for column in self.columns])

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
        self._sums = enqueue_commands.cumulative_sizes(columns)
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
        "is_late",
        "level",
        "since_ms",
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
        is_late: bool = False,
        since_ms: int = 0,
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
        #: When a consumer got them, rounded up (R-QQ-22); 0: no consumer has them, or for
        #: as long as it likes.
        self.taken_ms = taken_ms
        #: They waited for their time in a queue and were never out since: what came behind them
        #: may stand before them.
        self.is_late = is_late
        #: When a consumer got them, for what is said at a death; 0: no consumer has them, or
        #: nothing will be said.
        self.since_ms = since_ms

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
            self.is_late,
            self.since_ms,
        )

    @property
    def standing(self) -> int:
        """Return `acquired_count`, and -1 for late ones: 0 is for those in order of number."""
        return -1 if self.is_late and not self.acquired_count else self.acquired_count

    def joins(self, following: Span) -> bool:
        """Return whether the two differ only in place."""
        return (
            self.entry is following.entry
            and self.standing == following.standing
            and self.delivery_count == following.delivery_count
            and self.expires_ms == following.expires_ms
            and self.level == following.level
            and self.taken_ms == following.taken_ms
            and self.since_ms == following.since_ms
        )

    def run(self) -> Run:
        """Return where these messages are, for effects and replies."""
        entry = self.entry
        # As Run(...), which is a function in Python: one for each get and each delivery.
        return tuple.__new__(
            Run,
            (
                self.first,
                self.end - self.first,
                entry.index,
                self.first - entry.first,
                self.acquired_count,
                self.delivery_count,
            ),
        )

    def size_bytes(self) -> int:
        """Return the accounted size."""
        return self.entry.bytes_of(self.first, self.end)


def cut(span: Span, wanted: RangeSet, taken: list[Span]) -> list[Span]:
    """Add what is wanted of a span to `taken`, and return the rest of it."""
    rest = wanted.missing(span.first, span.end)
    if rest and rest[0] == (span.first, span.end):
        return [span]
    low = span.first
    for first, end in [*rest, (span.end, span.end)]:
        if low < first:
            taken.append(span.part(low, first))
        low = end
    return [span.part(first, end) for first, end in rest]


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
