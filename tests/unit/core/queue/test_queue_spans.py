"""Log entries of messages and spans of them: sizes to the byte, runs of what is alike."""

from __future__ import annotations

from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_spans import Entry, Span, runs_of


def entry_of(*sizes: int, index: int = 4, first: int = 10) -> Entry:
    """Return an entry whose messages 10, 11, ... have these sizes."""
    columns = [size.to_bytes(4, "little") for size in sizes]
    return Entry(index, first, 1_000, len(sizes), [b"".join(columns)])


def test_sizes_within_an_entry_are_exact() -> None:
    entry = entry_of(3, 1, 4, 1, 5)
    assert [entry.bytes_of(10, end) for end in range(10, 16)] == [0, 3, 4, 8, 9, 14]
    assert entry.bytes_of(12, 14) == 5
    assert [entry.fitting(11, 15, room) for room in (-1, 0, 1, 4, 5, 6, 10, 11, 99)] == [
        *(0, 0, 1, 1, 2, 3, 3, 4, 4)
    ]
    assert [entry.covering(11, 15, excess) for excess in (1, 2, 5, 6, 7, 11, 99)] == [
        *(1, 2, 2, 3, 4, 4, 4)
    ]


def test_sizes_of_equal_messages_are_exact() -> None:
    entry = Entry.of_equal_sizes(4, 10, 1_000, 5, 3)
    assert entry.bytes_of(11, 13) == 6
    assert [entry.fitting(11, 15, room) for room in (-1, 0, 2, 3, 5, 6, 99)] == [
        *(0, 0, 0, 1, 1, 2, 4)
    ]
    assert [entry.covering(11, 15, excess) for excess in (1, 3, 4, 99)] == [1, 1, 2, 4]
    empty = Entry.of_equal_sizes(4, 10, 1_000, 5, 0)
    assert (empty.fitting(11, 15, 0), empty.covering(11, 15, 7)) == (4, 4)


def test_neighbours_become_one_run_only_where_they_are_alike() -> None:
    entry = Entry.of_equal_sizes(4, 10, 1_000, 20, 3)
    spans = [
        Span(entry, 10, 12),
        Span(entry, 12, 14),
        Span(entry, 15, 16),
        Span(entry, 16, 17, acquired_count=1),
        Span(entry, 17, 18, acquired_count=1, delivery_count=1),
        Span(Entry.of_equal_sizes(5, 18, 1_000, 20, 3), 18, 19, acquired_count=1, delivery_count=1),
    ]
    assert runs_of(spans) == [
        Run(10, 4, 4, 0, 0, 0),
        Run(15, 1, 4, 5, 0, 0),
        Run(16, 1, 4, 6, 1, 0),
        Run(17, 1, 4, 7, 1, 1),
        Run(18, 1, 5, 0, 1, 1),
    ]
