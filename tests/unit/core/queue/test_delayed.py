"""Messages that were returned and wait until they are due."""

from __future__ import annotations

from brokerd.core.queue.delayed import Delayed
from brokerd.core.queue.queue_spans import Entry, Span


def span(first: int, end: int, size: int = 5, index: int = 4) -> Span:
    """Return messages of this size, all of one entry."""
    return Span(Entry.of_equal_sizes(index, 0, 1_000, 100, size), first, end)


def test_delayed_messages_come_when_they_are_due_in_order_of_return() -> None:
    delayed = Delayed()
    assert delayed.next_due_ms() is None
    for first, due_ms in ((1, 30), (4, 20), (6, 20), (8, 40)):
        delayed.add(span(first, first + 2), due_ms)
    assert (delayed.count, delayed.size_bytes, delayed.next_due_ms()) == (8, 40, 20)
    assert [(due_ms, s.first) for due_ms, s in delayed] == [(20, 4), (20, 6), (30, 1), (40, 8)]
    assert delayed.pop_due(19, 9) == []
    assert [s.first for s in delayed.pop_due(20, 9)] == [4, 6]
    assert (delayed.count, delayed.size_bytes, delayed.next_due_ms()) == (4, 20, 30)
    assert [s.first for s in delayed.clear()] == [1, 8]
    assert (delayed.count, delayed.size_bytes, delayed.next_due_ms()) == (0, 0, None)
