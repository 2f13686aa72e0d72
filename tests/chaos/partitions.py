"""Shapes of partitions: which packets between which members are lost.  Pure.

A shape returns pairs (from, to).  Names and shapes are those of Jepsen's nemesis.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

Cuts = frozenset[tuple[int, int]]


def between(one: Collection[int], other: Collection[int]) -> Cuts:
    """Lose everything between two sides, both ways."""
    pairs = [(a, b) for a in one for b in other]
    return frozenset(pairs + [(b, a) for a, b in pairs])


def _split(members: Sequence[int]) -> Cuts:
    half = len(members) // 2
    return between(members[:half], members[half:])


def halves(count: int, chance: random.Random) -> Cuts:
    """The first half apart from the rest, always the same."""
    return _split(range(count))


def random_halves(count: int, chance: random.Random) -> Cuts:
    """A minority as large as it can be, drawn anew each time."""
    return _split(chance.sample(range(count), count))


def random_node(count: int, chance: random.Random) -> Cuts:
    """One member alone."""
    lone = chance.randrange(count)
    return between([lone], [member for member in range(count) if member != lone])


def majorities_ring(count: int, chance: random.Random) -> Cuts:
    """Each member sees a majority, and no two the same: neighbours on a ring in random order.

    Of three, two do not see each other (a ring of three with one link less): with every link cut
    in one direction no TCP connection would be left at all.
    """
    ring = chance.sample(range(count), count)
    if count == 3:
        return between(ring[:1], ring[1:2])
    reach = (count // 2 + 1) // 2
    cuts = set()
    for i in range(count):
        for j in range(count):
            distance = min((i - j) % count, (j - i) % count)
            if distance > reach:
                cuts.add((ring[i], ring[j]))
    return frozenset(cuts)


def one_way(count: int, chance: random.Random) -> Cuts:
    """What one member says does not arrive; what the others say to it does."""
    mute = chance.randrange(count)
    return frozenset((mute, member) for member in range(count) if member != mute)


SHAPES: dict[str, Callable[[int, random.Random], Cuts]] = {
    "random-halves": random_halves,
    "halves": halves,
    "majorities-ring": majorities_ring,
    "random-node": random_node,
    "one-way": one_way,
}
