"""The last changes of the catalog, packed and not."""

from __future__ import annotations

import pytest

from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.past_changes import BLOCK_CHANGES, PastChanges


def change(number: int, revision: int | None = None) -> TopologyChanged:
    """Return a change; its name has what JSON must not lose."""
    at = number if revision is None else revision
    return TopologyChanged("queue", "/", f"q{number} \udc80", number % 2 == 0, at, "c", number)


@pytest.mark.parametrize("since", [0, 1, 255, 256, 257, 511, 512, 513, 1500, 2000])
def test_packed_changes_are_read_as_they_were(since: int) -> None:
    past = PastChanges(10_000)
    changes = [change(number) for number in range(1, 2001)]
    for one in changes:
        past.add(one)
    assert past.since(since) == changes[since:]


def test_old_blocks_go_and_those_who_missed_them_are_told() -> None:
    kept = 4 * BLOCK_CHANGES
    past = PastChanges(kept)
    for number in range(1, 10_001):
        past.add(change(number))
    assert past.since(past.compacted_revision - 1) is None
    found = past.since(past.compacted_revision)
    assert found is not None
    assert [one.uid for one in found] == list(range(past.compacted_revision + 1, 10_001))
    assert kept - BLOCK_CHANGES < len(found) <= kept


def test_changes_of_one_revision_stay_together_where_a_block_ends_between_them() -> None:
    past = PastChanges(2 * BLOCK_CHANGES)
    count = 4 * BLOCK_CHANGES
    for number in range(count):
        past.add(change(number, revision=number // 3 + 1))
    found = past.since(past.compacted_revision)
    assert found is not None
    assert {one.revision for one in found} == set(
        range(past.compacted_revision + 1, (count - 1) // 3 + 2)
    )
    assert past.since(found[0].revision - 1) == found


def test_behind_a_snapshot_the_log_begins_anew() -> None:
    past = PastChanges(3)
    for number in range(1, 6):
        past.add(change(number))
    assert past.since(1) is None
    assert [one.revision for one in past.since(2) or []] == [3, 4, 5]
    past.clear(9)
    assert past.since(8) is None
    assert past.since(9) == []
