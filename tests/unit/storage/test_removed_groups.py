"""Groups that are no more, and where records of theirs lie."""

from __future__ import annotations

import sys
from array import array

from hypothesis import given
from hypothesis import strategies as st

from brokerd.storage.removed_groups import (
    REBUILD_EVERY,
    RemovedGroups,
    SegmentGroups,
    packed,
)

UIDS = st.integers(0, 20) | st.integers(2**63, 2**64 - 1)


@given(st.lists(st.tuples(UIDS, st.integers(1, 4), st.booleans())))
def test_the_packed_table_is_a_dict(steps: list[tuple[int, int, bool]]) -> None:
    """Beside one that gets the same additions and removals."""
    groups, model = RemovedGroups(), dict[int, int]()
    for uid, segment, is_added in steps:
        if is_added:
            groups.add(uid, segment)
            model[uid] = segment
        else:
            groups.discard(uid)
            model.pop(uid, None)
        assert (uid in groups) is is_added
    assert list(groups) == sorted(model)
    assert len(groups) == len(model)
    for segment in range(5):
        found = [uid for uid, said in sorted(model.items()) if said == segment]
        assert groups.said_in([segment]) == found


def test_segments_name_their_groups_until_they_go() -> None:
    places = SegmentGroups()
    places.of(1).update((7, 8))
    places.of(2).update((8, 9))
    places.removed(8)
    assert places.of(1) == {7}
    assert places.of_removed() == {7, 8, 9}
    assert places.drop(2) == {9}
    assert 8 in places.of_removed()
    assert places.drop(1) == {7}
    assert places.of_removed() == set()
    assert places.drop(3) == set()


def test_what_recovery_found_is_taken_over() -> None:
    groups, places = packed({8: 2}, {1: [7, 8], 2: [9]})
    assert list(groups) == [8]
    assert places.of(1) == {7}
    assert places.of_removed() == {7, 8, 9}


def test_removed_groups_leave_no_objects_and_no_large_table() -> None:
    """A number each kept the page in which it lay (bench.memory)."""
    places, many = SegmentGroups(), range(1, 8 * REBUILD_EVERY + 1)
    places.of(1).update(many)
    large = sys.getsizeof(places.of(1))
    for uid in many:
        places.removed(uid)
    assert sys.getsizeof(places.of(1)) < large / 100
    assert isinstance(places._removed[1], array)
    assert len(places._removed[1]) == len(many)
