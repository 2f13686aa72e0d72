"""Filters of looks at queues, over what a queue and its log know of a message."""

from __future__ import annotations

import pytest

from brokerd.amqp.properties import BasicProperties
from brokerd.core.queue.browse import Browsed, Place
from brokerd.core.queue.effects import Run
from brokerd.server.listings import browse_filters

HEADER = BasicProperties(headers={"tenant": "a"}).encode()
CONTENT = (("ex", "orders.new"), HEADER, b"the body", b"")
BROWSED = Browsed(7, Place(3, 0, 7, 0), "ready", Run(7, 1, 3, 0, 2, 1), 1_000, None, 8)


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ('headers["tenant"] == "a"', True),
        ('headers["tenant"] == "b"', False),
        ("redelivered && delivery_count == 1", True),
        ('routing_key.startsWith("orders")', True),
        ('body.contains("body") && state == "ready"', True),
        ('body.matches("b.dy$")', True),
        ('age > duration("3s")', True),
        ('age > duration("5s")', False),
    ],
)
def test_a_filter_is_true_or_not(text: str, is_true: bool) -> None:
    matching = browse_filters.compiler(lambda: 5_000)(text)
    assert matching.matches(BROWSED, CONTENT) is is_true
    assert matching.is_slow is ("matches" in text)


def test_what_is_no_filter_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="character"):
        browse_filters.compiler(lambda: 0)("nonsense ==")
