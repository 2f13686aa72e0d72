"""Messages that wait: returned ones before they are ready again (delayed retry, R-QQ-24), and those
that an exchange of type x-delayed-message keeps.

Not ready, held by no consumer, and counted against the length limits (R-LEN-8).  How long each
waits is the queue machine's business; only it uses this.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from brokerd.core.message import Range
from brokerd.core.queue.queue_spans import Span, cut
from brokerd.core.ranges import RangeSet

#: When it is due, its first number, the messages and their key.
_Row: TypeAlias = tuple[int, int, Span, str | None]


class Waiting(NamedTuple):
    """Messages as `Delayed.add` takes them."""

    span: Span
    due_ms: int
    key: str | None = None


class Delayed:
    """Spans by the time at which they are due; equal times in the order of their numbers.

    Invariants: `count` and `size_bytes` are the sums over all; a key names the one message that has
    it.  What was taken by its key stays in the heap until its time, or until those are most of it.
    """

    __slots__ = ("_heap", "_keys", "_taken", "count", "size_bytes")

    def __init__(self) -> None:
        self._heap: list[_Row] = []
        self._keys: dict[str, _Row] = {}
        #: By first number.
        self._taken: set[int] = set()
        self.count = 0
        self.size_bytes = 0

    def add(self, span: Span, due_ms: int, key: str | None = None) -> None:
        """Let these messages wait; key: of one message, which none that waits has."""
        row = (due_ms, span.first, span, key)
        heapq.heappush(self._heap, row)
        if key is not None:
            self._keys[key] = row
        self.count += span.end - span.first
        self.size_bytes += span.size_bytes()

    def take(self, key: str) -> Span | None:
        """Remove the message with a key and return it; None: none that waits has it."""
        row = self._keys.pop(key, None)
        if row is None:
            return None
        self._taken.add(row[1])
        self._forget(row[2])
        if 2 * len(self._taken) > len(self._heap):
            self._heap = [row for row in self._heap if row[1] not in self._taken]
            heapq.heapify(self._heap)
            self._taken.clear()
        self._drop_taken_head()
        return row[2]

    def take_numbers(self, ranges: Iterable[Range]) -> list[Waiting]:
        """Remove messages by number and return them; what does not wait is passed over."""
        wanted = RangeSet(ranges)
        taken: list[Waiting] = []
        kept: list[_Row] = []
        for row in self._heap:
            due_ms, order, span, key = row
            if order in self._taken:
                continue
            found: list[Span] = []
            rest = cut(span, wanted, found)
            if not found:
                kept.append(row)
                continue
            kept += [(due_ms, part.first, part, key) for part in rest]
            for part in found:
                taken.append(Waiting(part, due_ms, key))
                self._forget(part)
            if key is not None:
                del self._keys[key]
        self._heap = kept
        heapq.heapify(self._heap)
        self._taken.clear()
        return taken

    def _forget(self, span: Span) -> None:
        self.count -= span.end - span.first
        self.size_bytes -= span.size_bytes()

    def _drop_taken_head(self) -> None:
        while self._taken and self._heap and self._heap[0][1] in self._taken:
            self._taken.discard(heapq.heappop(self._heap)[1])

    def next_due_ms(self) -> int | None:
        """Return when the next are due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int, spans_max: int) -> list[Span]:
        """Remove what is due and return it, in order; so many spans at most."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < spans_max:
            _, _, span, key = heapq.heappop(self._heap)
            if key is not None:
                del self._keys[key]
            self._forget(span)
            due.append(span)
            self._drop_taken_head()
        return due

    def clear(self) -> list[Span]:
        """Remove all and return them."""
        spans = [span for _, span in self]
        self._heap.clear()
        self._keys.clear()
        self._taken.clear()
        self.count = self.size_bytes = 0
        return spans

    def in_order(self) -> Iterator[tuple[int, Span]]:
        """Yield all as `__iter__` does, without sorting them: the first cost next to nothing."""
        heap = self._heap
        ahead = [(heap[0][0], heap[0][1], 0)] if heap else []
        while ahead:
            due_ms, order, at = heapq.heappop(ahead)
            if order not in self._taken:
                yield due_ms, heap[at][2]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child][0], heap[child][1], child))

    def rows(self) -> Iterator[tuple[Span, int, str | None]]:
        """Yield all in order, as `add` takes them."""
        for due_ms, order, span, key in sorted(self._heap, key=_in_order):
            if order not in self._taken:
                yield span, due_ms, key

    def __iter__(self) -> Iterator[tuple[int, Span]]:
        return ((due_ms, span) for span, due_ms, _ in self.rows())

    def check(self) -> None:
        """Assert what the class promises."""
        assert self.count == sum(span.end - span.first for _, span in self)
        assert self.size_bytes == sum(span.size_bytes() for _, span in self)
        keyed = [(key, span) for span, _, key in self.rows() if key is not None]
        assert len(keyed) == len(self._keys)
        assert all(self._keys[key][2] is span for key, span in keyed)
        assert all(span.end - span.first == 1 for _, span in keyed)
        assert not self._heap or self._heap[0][1] not in self._taken


def _in_order(row: _Row) -> tuple[int, int]:
    return row[0], row[1]
