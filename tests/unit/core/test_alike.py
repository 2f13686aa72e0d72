"""One of values that are equal, and a bound for those that never come again."""

from __future__ import annotations

import pytest

from brokerd.core import alike
from brokerd.core.alike import Alike
from brokerd.core.queue_options import QueueOptions, kept


def test_what_is_equal_is_one_object() -> None:
    first, second = QueueOptions(max_length=7), QueueOptions(max_length=7)
    assert first is not second
    assert kept(first) is kept(second)
    assert kept(QueueOptions(max_length=8)).max_length == 8


def test_values_that_never_come_again_are_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alike, "ALIKE_MAX", 3)
    values: Alike[tuple[int]] = Alike()
    first = values.one((1,))
    for number in range(2, 10):
        assert values.one((number,)) == (number,)
        assert len(values._kept) <= 3
    assert values.one((1,)) == first
