"""The memory that recent entries of all groups may take, and when it is given back."""

from __future__ import annotations

from brokerd.raft.messages import Entry, EntryKind
from brokerd.storage.group_log import ENTRY_OVERHEAD_BYTES, STALE_MAX, EntryCache

COST = 100 + ENTRY_OVERHEAD_BYTES


def entries(first: int, count: int) -> list[Entry]:
    return [Entry(index, 1, EntryKind.COMMAND, bytes(100)) for index in range(first, first + count)]


def test_the_oldest_of_all_groups_make_room() -> None:
    cache = EntryCache(3 * COST)
    one: dict[int, Entry] = {}
    other: dict[int, Entry] = {}
    cache.add(one, entries(1, 2))
    cache.add(other, entries(1, 2))
    assert sorted(one) == [2]
    assert sorted(other) == [1, 2]
    assert cache.used_bytes == 3 * COST


def test_a_group_that_is_gone_leaves_nothing_behind() -> None:
    """Deleted queues kept 64 MiB until as much of others had come."""
    cache = EntryCache(100 * COST)
    one: dict[int, Entry] = {}
    other: dict[int, Entry] = {}
    cache.add(one, entries(1, 10))
    cache.add(other, entries(1, 5))
    cache.drop_all(one)
    assert not one
    assert cache.used_bytes == 5 * COST
    assert cache.count == 5


def test_an_entry_that_is_overwritten_counts_once() -> None:
    cache = EntryCache(100 * COST)
    recent: dict[int, Entry] = {}
    cache.add(recent, entries(1, 3))
    cache.drop(recent, 3)
    cache.drop(recent, 3)
    cache.add(recent, entries(2, 2))
    assert sorted(recent) == [1, 2, 3]
    assert (cache.used_bytes, cache.count) == (3 * COST, 3)
    cache.limit(0)
    assert (recent, cache.used_bytes, cache.count) == ({}, 0, 0)


def test_names_of_entries_that_are_gone_are_bounded() -> None:
    """A group that lives on stands before them in the line, for ever."""
    cache = EntryCache(100 * COST)
    lasting: dict[int, Entry] = {}
    cache.add(lasting, entries(1, 1))
    for _ in range(3 * STALE_MAX // 10):
        passing: dict[int, Entry] = {}
        cache.add(passing, entries(1, 10))
        cache.drop_all(passing)
    assert sorted(lasting) == [1]
    assert len(cache.order) <= STALE_MAX + 2
