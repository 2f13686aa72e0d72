"""Messages that wait: returned ones before they are ready again (delayed retry, R-QQ-24), and those
that an exchange of type x-delayed-message keeps.

Not ready, held by no consumer, and counted against the length limits (R-LEN-8).  How long each
waits is the queue machine's business; only it uses this.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from brokerd.core.queue.queue_store import Span


class Delayed:
    """Spans by the time at which they are due; equal times in the order in which they came.

    Invariants: `count` and `size_bytes` are the sums over all.
    """

    __slots__ = ("_heap", "_order", "count", "size_bytes")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Span]] = []
        self._order = 0
        self.count = 0
        self.size_bytes = 0

    def add(self, span: Span, due_ms: int) -> None:
        """Let these messages wait."""
        heapq.heappush(self._heap, (due_ms, self._order, span))
        self._order += 1
        self.count += span.end - span.first
        self.size_bytes += span.size_bytes()

    def next_due_ms(self) -> int | None:
        """Return when the next are due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int, spans_max: int) -> list[Span]:
        """Remove what is due and return it, in order; so many spans at most."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < spans_max:
            span = heapq.heappop(self._heap)[2]
            self.count -= span.end - span.first
            self.size_bytes -= span.size_bytes()
            due.append(span)
        return due

    def clear(self) -> list[Span]:
        """Remove all and return them."""
        spans = [span for _, span in self]
        self._heap.clear()
        self.count = self.size_bytes = 0
        return spans

    def in_order(self) -> Iterator[tuple[int, Span]]:
        """Yield all as `__iter__` does, without sorting them: the first cost next to nothing."""
        heap = self._heap
        ahead = [(heap[0][0], heap[0][1], 0)] if heap else []
        while ahead:
            due_ms, _, at = heapq.heappop(ahead)
            yield due_ms, heap[at][2]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child][0], heap[child][1], child))

    def __iter__(self) -> Iterator[tuple[int, Span]]:
        return ((due_ms, span) for due_ms, _, span in sorted(self._heap, key=_in_order))

    def check(self) -> None:
        """Assert what the class promises."""
        assert self.count == sum(span.end - span.first for _, span in self)
        assert self.size_bytes == sum(span.size_bytes() for _, span in self)


def _in_order(row: tuple[int, int, Span]) -> tuple[int, int]:
    return row[0], row[1]
