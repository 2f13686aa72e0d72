"""One of values that are equal, and a bound for those that never come again."""

from __future__ import annotations

from brokerd.core.interner import INTERNED_MAX, Interner
from brokerd.core.queue_options import QueueOptions, kept


def test_what_is_equal_is_one_object() -> None:
    first, second = QueueOptions(max_length=7), QueueOptions(max_length=7)
    assert first is not second
    assert kept(first) is kept(second)
    assert kept(QueueOptions(max_length=8)).max_length == 8


def test_values_that_never_come_again_are_not_kept_for_ever() -> None:
    values: Interner[tuple[int]] = Interner()
    for number in range(2 * INTERNED_MAX + 5):
        assert values.intern((number,)) == (number,)
        assert len(values._kept) <= INTERNED_MAX
    assert values.intern((1,)) == (1,)
