"""One of values that are equal, and a bound for those that never come again."""

from __future__ import annotations

from brokerd.core.alike import ALIKE_MAX, Alike
from brokerd.core.queue_options import QueueOptions, kept


def test_what_is_equal_is_one_object() -> None:
    first, second = QueueOptions(max_length=7), QueueOptions(max_length=7)
    assert first is not second
    assert kept(first) is kept(second)
    assert kept(QueueOptions(max_length=8)).max_length == 8


def test_values_that_never_come_again_are_not_kept_for_ever() -> None:
    values: Alike[tuple[int]] = Alike()
    for number in range(2 * ALIKE_MAX + 5):
        assert values.one((number,)) == (number,)
        assert len(values._kept) <= ALIKE_MAX
    assert values.one((1,)) == (1,)
