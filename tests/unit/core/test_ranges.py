"""Range sets and ordered pieces against sets of single numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.ranges import Pieces, RangeSet, count_of, normalize

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def spread(ranges: list[tuple[int, int]]) -> set[int]:
    return {n for low, high in ranges for n in range(low, high)}


@given(PAIRS)
def test_normalized_ranges_hold_the_same_numbers_and_do_not_touch(
    pairs: list[tuple[int, int]],
) -> None:
    result = normalize(pairs)
    assert spread(result) == spread(pairs)
    assert count_of(result) == len(spread(pairs))
    assert all(a[1] < b[0] for a, b in pairwise(result))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 8)), max_size=30))
def test_a_range_set_is_a_set(steps: list[tuple[bool, int, int]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for adding, low, length in steps:
        numbers = set(range(low, low + length))
        if adding:
            ranges.add(low, low + length)
            model |= numbers
        else:
            assert ranges.remove(low, low + length) == len(model & numbers)
            model -= numbers
        assert ranges.ranges() == normalize(ranges.ranges())
        assert spread(ranges.ranges()) == model
        assert ranges.count() == len(model)
        assert bool(ranges) == bool(model)
    for low in range(32):
        assert (low in ranges) == (low in model)
        assert ranges.first_from(low) == min((n for n in model if n >= low), default=None)
        assert spread(ranges.missing(low, low + 7)) == set(range(low, low + 7)) - model


def test_merging_the_lowest_ranges_only_adds_numbers() -> None:
    ranges = RangeSet([(1, 2), (5, 6), (9, 10)])
    ranges.merge_lowest()
    assert ranges.ranges() == [(1, 6), (9, 10)]
    ranges.merge_lowest()
    ranges.merge_lowest()
    assert ranges.ranges() == [(1, 10)]


@dataclass(slots=True)
class Colored:
    first: int
    end: int
    color: int

    def part(self, first: int, end: int) -> Colored:
        return Colored(first, end, self.color)

    def joins(self, following: Colored) -> bool:
        return self.color == following.color


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "pop"]),
            st.integers(0, 40),
            st.integers(1, 12),
            st.integers(0, 1),
        ),
        max_size=40,
    )
)
def test_pieces_keep_every_number_with_its_color(steps: list[tuple[str, int, int, int]]) -> None:
    pieces: Pieces[Colored] = Pieces()
    model: dict[int, int] = {}
    for kind, low, length, color in steps:
        if kind == "add":
            wanted = range(low, low + length)
            if not model.keys().isdisjoint(wanted):
                continue
            pieces.add(Colored(low, low + length, color))
            model.update(dict.fromkeys(wanted, color))
        elif kind == "take":
            taken = pieces.take(low, low + length)
            gone = {n: p.color for p in taken for n in range(p.first, p.end)}
            assert gone == {n: c for n, c in model.items() if low <= n < low + length}
            for n in gone:
                del model[n]
        elif model:
            popped = pieces.pop(length)
            assert popped.first == min(model)
            for n in range(popped.first, popped.end):
                assert model.pop(n) == popped.color
        pieces.check()
        assert {n: p.color for p in pieces for n in range(p.first, p.end)} == model
        assert pieces.count == len(model)
    for n in range(52):
        found = pieces.find(n)
        assert (found.color if found else None) == model.get(n)


def test_settling_in_order_frees_what_lies_behind() -> None:
    pieces: Pieces[Colored] = Pieces()
    for n in range(0, 4000, 2):
        pieces.add(Colored(n, n + 1, 0))
    for n in range(0, 3000, 2):
        assert len(pieces.take(n, n + 1)) == 1
    pieces.check()
    assert len(pieces) == 500
    assert len(pieces._pieces) <= 1000
    assert len(pieces.clear()) == 500


def test_a_piece_that_fills_a_gap_joins_both_neighbours_of_its_color() -> None:
    """What was taken out of order and comes back is one piece again, and only with its own kind."""
    pieces: Pieces[Colored] = Pieces()
    for first, end, color in ((0, 5, 1), (8, 10, 1), (20, 25, 1), (27, 30, 2)):
        pieces.add(Colored(first, end, color))
    pieces.add(Colored(5, 8, 1))
    pieces.add(Colored(25, 27, 1))
    assert list(pieces) == [Colored(0, 10, 1), Colored(20, 27, 1), Colored(27, 30, 2)]
    pieces.check()


def test_ranges_in_any_order_become_few() -> None:
    """Empty ones go, those that touch, overlap or lie within another melt with it."""
    assert normalize([(7, 9), (1, 3), (5, 5), (3, 4), (2, 4), (1, 2)]) == [(1, 4), (7, 9)]
    assert count_of([(1, 4), (7, 9)]) == 5


def test_a_range_set_opens_closes_and_splits() -> None:
    ranges = RangeSet([(1, 4), (8, 10)])
    ranges.add(20, 20)
    ranges.add(12, 14)
    ranges.add(3, 9)
    assert ranges.ranges() == [(1, 10), (12, 14)]
    assert ranges.missing(0, 16) == [(0, 1), (10, 12), (14, 16)]
    assert ranges.missing(2, 9) == []
    assert [ranges.first_from(low) for low in (0, 5, 10, 14)] == [1, 5, 12, None]
    assert [number in ranges for number in (0, 1, 9, 10, 13)] == [False, True, True, False, True]
    assert ranges.remove(5, 5) == ranges.remove(10, 12) == 0
    assert ranges.remove(4, 6) == 2
    assert ranges.remove(9, 13) == 2
    assert ranges.ranges() == [(1, 4), (6, 9), (13, 14)]
    assert (ranges.count(), len(ranges), bool(ranges)) == (7, 3, True)
    assert ranges.remove(0, 99) == 7
    assert not ranges


def test_the_first_piece_is_popped_whole_or_in_parts() -> None:
    pieces: Pieces[Colored] = Pieces()
    pieces.add(Colored(0, 5, 1))
    pieces.add(Colored(7, 9, 2))
    assert pieces.pop(2) == Colored(0, 2, 1)
    assert pieces.pop(3) == Colored(2, 5, 1)
    assert pieces.pop(9) == Colored(7, 9, 2)
    assert pieces.count == 0
    assert list(pieces) == []
