"""How long deliveries have been out (R-CS-9)."""

from __future__ import annotations

import pytest

from brokerd.config import QueueConfig
from brokerd.core import profiles
from brokerd.server.amqp import consumer_timeout
from brokerd.server.amqp.consumer_timeout import DeliveryTimes, check_interval_ms


def test_the_age_is_that_of_the_oldest_unsettled_delivery() -> None:
    """R-CS-9: one mark a second, none kept longer than needed."""
    now_ms = 1000
    times = DeliveryTimes(lambda: now_ms)
    assert times.age_ms(None) == 0
    for tag in range(1, 11):
        times.delivered(tag)
        now_ms += 500
    assert times.age_ms(1) == 5000
    # 6 went out with the mark of 5.
    assert times.age_ms(6) == 3000
    assert times.age_ms(10) == 1000
    assert times.age_ms(None) == 0
    times.delivered(11)
    now_ms += 700
    assert times.age_ms(11) == 700


def test_a_short_timeout_is_looked_at_more_often() -> None:
    """R-QQ-22: every minute at the latest."""
    assert check_interval_ms(1_800_000) == 60_000
    assert check_interval_ms(4000) == 2000
    assert check_interval_ms(1) == 250


@pytest.mark.parametrize(
    ("scope", "timeout_ms", "watched"), [("channel", 5, 5), ("channel", 0, 0), ("queue", 5, 0)]
)
def test_channels_note_times_only_where_somebody_looks_at_them(
    scope: str, timeout_ms: int, watched: int
) -> None:
    """R-CS-9: without a timeout nobody would ever drop the notes again."""
    name = {"channel": "rabbitmq-3.10", "queue": "rabbitmq-4.3"}[scope]
    profile = profiles.configured(name, {})
    assert profile.consumer_timeout_scope == scope
    queues = QueueConfig(consumer_timeout_ms=timeout_ms)
    assert consumer_timeout.watched(profile, queues) == watched
