"""The shapes of partitions are what their names say."""

from __future__ import annotations

import random

import pytest

from tests.chaos.partitions import SHAPES, Cuts


def views(count: int, cuts: Cuts) -> list[frozenset[int]]:
    """Return for each member whom it can talk to, both ways, itself included."""
    return [
        frozenset(
            other for other in range(count) if not {(member, other), (other, member)} & set(cuts)
        )
        for member in range(count)
    ]


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", ["halves", "random-halves", "random-node"])
def test_two_sides_of_which_one_has_a_majority(shape: str, count: int, seed: int) -> None:
    seen = set(views(count, SHAPES[shape](count, random.Random(seed))))
    assert len(seen) == 2
    small, large = sorted(seen, key=len)
    assert small | large == set(range(count))
    assert len(large) > count // 2
    assert len(small) == (1 if shape == "random-node" else count // 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [5, 7])
def test_on_a_ring_each_sees_a_majority_and_no_two_the_same(count: int, seed: int) -> None:
    seen = views(count, SHAPES["majorities-ring"](count, random.Random(seed)))
    assert len(set(seen)) == count
    assert all(len(view) > count // 2 for view in seen)
    assert all(len(view) < count for view in seen)


def test_of_three_two_do_not_see_each_other() -> None:
    seen = views(3, SHAPES["majorities-ring"](3, random.Random(1)))
    assert sorted(len(view) for view in seen) == [2, 2, 3]


def test_one_way_is_no_symmetric_cut() -> None:
    cuts = SHAPES["one-way"](3, random.Random(1))
    assert len(cuts) == 2
    assert not {(b, a) for a, b in cuts} & cuts
