"""A classic queue answers gets and goes on after acks before its disk knows (ADR 23): what that
may cost, what not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

COUNT = 60
MANY = 600
PREFETCH = 20
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("lazy"), 1) as members:
        yield members[0]


def filled(channel: Any, queue: str, count: int = COUNT) -> list[bytes]:
    """Declare a durable classic queue and publish to it; return what was confirmed."""
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
    return bodies


def got(channel: Any, queue: str, count: int, *, ack: bool) -> list[bytes]:
    """Take so many messages one by one."""
    bodies = []
    for _ in range(count):
        method, _, body = channel.basic_get(queue, auto_ack=not ack)
        assert method is not None
        if ack:
            channel.basic_ack(method.delivery_tag)
        bodies.append(body)
    return bodies


def begin_again(member: Member) -> Any:
    """Start the member; return a channel once clients are let in."""
    member.start()
    member.wait_ready()
    return member.connect().channel()


def left(channel: Any, queue: str) -> list[bytes]:
    """Take all that is in a queue."""
    bodies: list[bytes] = []

    def is_empty() -> bool:
        while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
            bodies.append(answer[2])
        return True

    eventually(is_empty, f"{queue} empty")
    return bodies


def test_a_member_that_is_stopped_forgets_nothing(member: Member) -> None:
    channel = member.connect().channel()
    bodies = filled(channel, "stopped")
    taken = got(channel, "stopped", 20, ack=False) + got(channel, "stopped", 20, ack=True)
    # Acks that nothing follows would wait a moment for company.
    assert channel.queue_declare("stopped", passive=True).method.message_count == 20
    taken += got(channel, "stopped", 10, ack=False)
    assert taken == bodies[:50]
    assert member.stop() == 0
    assert left(begin_again(member), "stopped") == bodies[50:]


def test_a_member_that_is_killed_loses_nothing_that_nobody_took(member: Member) -> None:
    channel = member.connect().channel()
    bodies = filled(channel, "killed")
    taken = got(channel, "killed", 20, ack=False) + got(channel, "killed", 20, ack=True)
    member.kill()
    found = left(begin_again(member), "killed")
    # What came again is the newest of what was taken, and in its place.
    assert found == bodies[len(bodies) - len(found) :]
    assert set(bodies) == {*taken, *found}
    assert len(found) >= COUNT - 40


def test_what_the_disk_was_asked_for_meanwhile_does_not_come_again(member: Member) -> None:
    channel = member.connect().channel()
    bodies = filled(channel, "asked")
    got(channel, "asked", 20, ack=False)
    got(channel, "asked", 20, ack=True)
    # A declare and a confirm wait for the disk, and so for all that came before them.
    channel.queue_declare("asked", passive=True)
    channel.basic_publish("", "asked", b"last", PERSISTENT, mandatory=True)
    member.kill()
    assert left(begin_again(member), "asked") == [*bodies[40:], b"last"]


def consumed(channel: Any, queue: str, count: int) -> list[bytes]:
    """Take so many messages by a consumer of small prefetch, each acknowledged as it comes."""
    channel.basic_qos(prefetch_count=PREFETCH)
    bodies: list[bytes] = []
    for method, _, body in channel.consume(queue):
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
        if len(bodies) == count:
            return bodies
    raise AssertionError("the consumer was cancelled")


def left_with_flags(channel: Any, queue: str) -> dict[bytes, bool]:
    """Take all that is in a queue, in order; return whether each was flagged as redelivered."""
    # Not before the queue knows that its former consumer is gone, and has what that one held.
    eventually(
        lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 0,
        f"{queue} without consumers",
    )
    found: dict[bytes, bool] = {}
    while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
        assert answer[2] not in found
        found[answer[2]] = answer[0].redelivered
    return found


def test_a_kill_right_after_acks_loses_nothing_and_what_comes_again_is_flagged(
    member: Member,
) -> None:
    channel = member.connect().channel()
    bodies = filled(channel, "acked-killed", MANY)
    taken = consumed(channel, "acked-killed", MANY // 2)
    member.kill()
    found = left_with_flags(begin_again(member), "acked-killed")
    assert list(found) == bodies[len(bodies) - len(found) :]
    assert set(bodies) == {*taken, *found}
    assert all(found[body] for body in found.keys() & {*taken})


def test_a_stop_right_after_acks_forgets_none_and_flags_only_what_was_sent(member: Member) -> None:
    channel = member.connect().channel()
    bodies = filled(channel, "acked-stopped", MANY)
    taken = consumed(channel, "acked-stopped", MANY // 2)
    # Whatever the client has sent before it has arrived when this is answered.
    channel.queue_declare("acked-stopped", passive=True)
    assert member.stop() == 0
    found = left_with_flags(begin_again(member), "acked-stopped")
    assert [*taken, *found] == bodies
    flagged = [body for body, is_flagged in found.items() if is_flagged]
    assert flagged == bodies[MANY // 2 :][: len(flagged)]
    assert len(flagged) <= PREFETCH
