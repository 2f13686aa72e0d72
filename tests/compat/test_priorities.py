"""Priorities of messages (spec chapter 6.4)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat import steps


def fill(channel: Any, name: str, *messages: tuple[str, int | None], **properties: Any) -> None:
    for body, priority in messages:
        assert steps.publish(channel, "", name, body, priority=priority, **properties) == "ack"


def drain(channel: Any, name: str) -> str:
    return " ".join(body.decode() for body in steps.drain(channel, name))


def test_the_highest_first_and_in_order_among_equals(connection: Any) -> None:
    """R-PRI-1: absent is 0; properties arrive as they were."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=5)
    fill(channel, name, ("n", None), ("z", 0), ("a", 3), ("b", 5), ("c", 3), ("d", 1))
    came = list(steps.drained(channel, name))
    assert [body for _, _, body in came] == [b"b", b"a", b"c", b"d", b"n", b"z"]
    assert [properties.priority for _, properties, _ in came] == [5, 3, 3, 1, None, 0]


@pytest.mark.parametrize(
    ("maximum", "order"),
    [(None, "a b c d e"), (1, "b c d e a"), (5, "c d e b a"), (255, "e d c b a")],
)
def test_priorities_above_the_maximum_are_the_maximum(
    connection: Any, maximum: int | None, order: str
) -> None:
    """R-PRI-1, R-TEST-8: without the argument there are none."""
    channel = steps.confirming(connection)
    arguments = {} if maximum is None else {"x_max_priority": maximum}
    name = steps.queue(channel, "q", **arguments)
    fill(channel, name, ("a", 0), ("b", 1), ("c", 5), ("d", 6), ("e", 255))
    assert drain(channel, name) == order


def test_a_late_message_overtakes_between_two_deliveries(connection: Any) -> None:
    """R-PRI-1, R-PRI-3: but not what is prefetched already."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=9)
    fill(channel, name, ("l1", 1), ("l2", 1), ("l3", 1))
    taker = connection.channel()
    taker.basic_qos(prefetch_count=2)
    received = steps.consumed(taker, name, 2)
    fill(channel, name, ("h", 9))
    taker.basic_ack(received[0][0].delivery_tag)
    steps.wait_received(taker, received, 3)
    taker.basic_ack(received[1][0].delivery_tag)
    steps.wait_received(taker, received, 4)
    assert [body for _, _, body in received] == [b"l1", b"l2", b"h", b"l3"]


def test_a_requeued_message_keeps_its_priority(connection: Any) -> None:
    """R-PRI-3, R-ACK-5: and its place in it."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=9)
    fill(channel, name, ("l1", 1), ("h1", 5), ("h2", 5))
    tag = steps.unacked(channel, name)[0].delivery_tag
    fill(channel, name, ("h3", 5), ("top", 9))
    channel.basic_nack(tag)
    assert drain(channel, name) == "top h1 h2 h3 l1"


def test_the_limit_drops_the_oldest_of_the_highest(connection: Any) -> None:
    """R-PRI-4: what would be delivered next."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=9, x_max_length=3)
    fill(channel, name, *((body, 9 if body.startswith("h") else 0)
         for body in ("hi0", "hi1", "lo0", "lo1", "lo2", "lo3")))  # fmt: skip
    assert drain(channel, name) == "lo1 lo2 lo3"


def test_what_expires_behind_a_higher_head_is_counted(connection: Any) -> None:
    """R-PRI-5: and never delivered."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=9)
    fill(channel, name, ("lives", 5))
    fill(channel, name, ("dies", 1), ("dies too", 1), expiration="1")
    steps.pause_ms(100)
    assert steps.ready(channel, name) == 3
    assert drain(channel, name) == "lives"


def test_what_expires_at_the_head_of_the_highest_goes(connection: Any) -> None:
    """R-PRI-5: the scan goes on to the next level once one is empty."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=9)
    fill(channel, name, ("dies", 5), ("dies too", 1), expiration="50")
    fill(channel, name, ("lives", 0))
    steps.wait_ready(channel, name, 1)
    assert drain(channel, name) == "lives"


def test_purge_takes_all_priorities(connection: Any) -> None:
    """R-Q-13."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=3)
    fill(channel, name, ("a", 0), ("b", 1), ("c", 3))
    assert channel.queue_purge(name).method.message_count == 3
    assert steps.is_empty(channel, name)


def test_a_dead_letter_keeps_its_priority(connection: Any) -> None:
    """R-DLX-15: and is ranked by it in the next queue."""
    channel = steps.confirming(connection)
    dead = steps.queue(channel, "dead", x_max_priority=9)
    name = steps.queue(channel, "q", x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    fill(channel, name, ("low", 1), ("high", 7))
    for _ in range(2):
        steps.unacked(channel, name)
    channel.basic_nack(0, multiple=True, requeue=False)
    steps.wait_ready(channel, dead, 2)
    came = list(steps.drained(channel, dead))
    assert [(body, properties.priority) for _, properties, body in came] == [
        (b"high", 7),
        (b"low", 1),
    ]


def test_quorum_queues_know_no_priorities(connection: Any) -> None:
    """R-PRI-2: in 3.10 the property is carried and ignored."""
    channel = steps.confirming(connection)
    name = steps.quorum(channel, "q")
    fill(channel, name, ("a", 0), ("b", 9), ("c", 255))
    assert drain(channel, name) == "a b c"


def test_a_maximum_of_zero_tells_nothing_apart(connection: Any) -> None:
    """R-PRI-1 says that it acts as 1; it is one level."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_priority=0)
    fill(channel, name, ("a", 0), ("b", 1), ("c", 0), ("d", 2))
    assert drain(channel, name) == "a b c d"


def test_the_maximum_cannot_change(channel: Any, vhost: str) -> None:
    """R-Q-4, R-PRI-1."""
    steps.queue(channel, "q", x_max_priority=5)
    answer = steps.refused(channel, lambda c: steps.queue(c, "q", x_max_priority=6))
    text = f"inequivalent arg 'x-max-priority' for queue 'q' in vhost '{vhost}': received '6' but"
    assert answer == ("channel", 406, f"PRECONDITION_FAILED - {text} current is '5'")
