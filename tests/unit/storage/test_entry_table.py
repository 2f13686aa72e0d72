"""The index of entries: runs, truncation, gaps, and what a change sets free."""

from __future__ import annotations

import random

import pytest

from brokerd.storage.entry_table import EntryTable, Runs
from brokerd.storage.records import HEADER_BYTES


def test_runs_store_a_value_where_it_changes() -> None:
    runs = Runs()
    for index, value in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 1)]:
        runs.append(index, value)
    assert runs.starts == [1, 3, 5]
    assert [runs.get(index) for index in range(1, 6)] == [1, 1, 2, 2, 1]
    runs.cut(4)
    assert (runs.starts, runs.values) == ([1, 3], [1, 2])


@pytest.mark.parametrize("seed", range(30))
def test_table_equals_a_dict_over_random_changes(seed: int) -> None:
    chance = random.Random(seed)
    table, model, base, segment, offset = EntryTable(), {}, 0, 1, 0
    for _ in range(300):
        step = chance.randrange(10)
        last = table.last()
        if step < 6:
            if chance.random() < 0.1:
                segment += 1
            length = chance.randrange(100)
            index = max(last, base) + 1
            table.append(index, segment // 3, segment, offset, length)
            model[index] = (segment, offset, length, segment // 3)
            offset += HEADER_BYTES + length
        elif step < 7:
            index = chance.randint(base + 1, max(last, base) + 1)
            freed = table.cut(index)
            assert total(freed) == total_of(model, lambda at, low=index: at >= low)
            model = {at: place for at, place in model.items() if at < index}
        elif step < 8:
            base = chance.randint(base, max(last, base))
            live = [(at, at + chance.randint(1, 3)) for at in range(1, base + 3, 4)]
            kept = {at for low, high in live for at in range(low, high)}
            freed = table.retain(base, live)
            assert total(freed) == total_of(
                model, lambda at, kept=kept, base=base: at <= base and at not in kept
            )
            model = {at: place for at, place in model.items() if at > base or at in kept}
        elif model:
            index = chance.choice(list(model))
            table.segments.assign(index, index + 1, segment + 50)
            model[index] = (segment + 50, *model[index][1:])
        compare(table, model)


def total(freed: list[tuple[int, int]]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for segment, size in freed:
        sums[segment] = sums.get(segment, 0) + size
    return sums


def total_of(model: dict[int, tuple[int, int, int, int]], is_gone) -> dict[int, int]:  # type: ignore[no-untyped-def]
    return total(
        [
            (segment, length + HEADER_BYTES)
            for index, (segment, _, length, _) in model.items()
            if is_gone(index)
        ]
    )


def compare(table: EntryTable, model: dict[int, tuple[int, int, int, int]]) -> None:
    assert list(table.indexes) == sorted(model)
    for index, (segment, offset, length, term) in model.items():
        position = table.find(index)
        assert (table.offsets[position], table.lengths[position]) == (offset, length)
        assert (table.segments.get(index), table.terms.get(index)) == (segment, term)
    assert table.find(max(model, default=0) + 1) == -1
    assert total(table.usage(0, len(table))) == total_of(model, lambda _index: True)


@pytest.mark.parametrize("count", [0, 1, 3, 64])
def test_a_small_table_is_packed_and_comes_back(count: int) -> None:
    table = EntryTable()
    for number in range(count):
        table.append(2 * number + 1, number // 7, number // 5, number << 8, number)
    packed = table.packed()
    again = EntryTable.unpacked(packed)
    for name in ("indexes", "offsets", "lengths"):
        assert getattr(again, name) == getattr(table, name)
    for name in ("segments", "terms"):
        runs, before = getattr(again, name), getattr(table, name)
        assert (runs.starts, runs.values) == (before.starts, before.values)
    again.append(1_000, 99, 99, 7, 7)
    assert (again.last(), again.find(1_000)) == (1_000, count)


def test_a_large_table_is_not_packed() -> None:
    table = EntryTable()
    for index in range(1, 66):
        table.append(index, 1, 1, 100 * index, 4)
    assert table.packed() == b""
    table.cut(65)
    assert table.packed()
    table.segments.starts = list(range(65))
    assert table.packed() == b""
