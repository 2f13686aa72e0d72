"""Rare ways through the queue machine: what changes nothing, what is passed over."""

from __future__ import annotations

import pytest

from brokerd.core.message import Content
from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_commands import Kind
from brokerd.core.queue.queue_store import Entry
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import (
    QueueDriver,
    consumer,
    content,
    dead,
    delivered,
    numbers,
    only,
)

ROUTES: tuple[tuple[str, str], ...] = (("", "q"), ("ex", "k\udcff"))


def messages(count: int, annotated: bool) -> list[Content]:
    return [
        (ROUTES[i % 2], b"h" * i, b"b" * (2 * i), b"{}" if annotated and i % 3 == 0 else b"")
        for i in range(count)
    ]


def test_a_queue_that_holds_messages_keeps_its_type() -> None:
    """SEC-44: each type has an order of its own for what comes back."""
    q = QueueDriver()
    assert q.reply(queue_commands.encode_update_options(QueueOptions(queue_type="quorum")))["ok"]
    q.fill(1)
    options = QueueOptions(queue_type="classic", max_length=5)
    assert q.reply(queue_commands.encode_update_options(options))["refused"] == 406
    assert q.machine.options == QueueOptions(queue_type="quorum")


def test_commands_about_consumers_that_are_gone_change_nothing() -> None:
    """R-ACK-10, R-CS-3"""
    q = QueueDriver()
    q.fill(1)
    for kind in (Kind.SETTLE, Kind.RETURN, Kind.DISCARD):
        outcome = q.send(queue_commands.encode_ranges(kind, consumer("gone"), [(0, 1)]))
        assert (outcome.reply, outcome.effects) == (b"", [])
    q.send(queue_commands.encode_cancel(consumer("gone")))
    q.send(queue_commands.encode_node_down("n9"))
    assert (q.ready, q.machine.suspected) == (1, {})


@pytest.mark.parametrize("renews", [True, False])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_redeclaration_counts_and_renews_the_lease_where_the_profile_says_so(
    queue_type: str, renews: bool
) -> None:
    """R-Q-3, R-Q-11"""
    q = QueueDriver(queue_type=queue_type, expires_ms=100, declare_renews=renews)
    q.fill(2)
    q.now_ms += 60
    assert q.reply(queue_commands.encode_declared()) == {"ready": 2, "consumers": 0}
    outcome = q.tick(60)
    assert any(isinstance(e, effects.QueueDeleted) for e in outcome.effects) is not renews


def test_an_empty_batch_is_answered() -> None:
    q = QueueDriver()
    for sequence in (0, 1):
        reply = q.send(enqueue_commands.encode_enqueue("n1", 7, 3, sequence, [])).reply
        assert enqueue_commands.decode_enqueue_reply(reply)[:2] == (EnqueueStatus.OK, 0)
    assert q.machine.next_number == 0


def test_the_repeated_front_of_a_batch_with_traits_is_passed_over() -> None:
    """R-QQ-8: and what had been refused of it stays refused, whatever comes behind it."""
    q = QueueDriver(queue_type="quorum", max_priority=31)
    batch = [content(b"x", priority=9), content(b"y", priority=1), content(b"z", priority=5)]
    for count in (1, 3):
        q.send(enqueue_commands.encode_enqueue("n1", 7, 50, 1, batch[:count]))
    assert delivered(q.consume()) == {"c": [0, 2, 1]}
    q = QueueDriver(max_length=1, overflow="reject-publish")
    q.send(enqueue_commands.encode_enqueue("n1", 7, 50, 1, [content(), content()]))
    q.get(no_ack=True)
    reply = q.send(enqueue_commands.encode_enqueue("n1", 7, 50, 1, [content()] * 3)).reply
    assert enqueue_commands.decode_enqueue_reply(reply)[1] == 1
    assert q.ready == 1


def test_a_returned_message_that_has_expired_goes_from_the_returns_fifo() -> None:
    """R-TTL-4, R-TTL-1"""
    q = QueueDriver(queue_type="quorum", delivery_limit=5, dead_letter_exchange="dlx")
    q.consume(prefetch=1)
    q.publish(content(b"x", ttl_ms=10))
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 1))
    assert dead(q.tick(20)) == [("expired", [0])]


def test_a_consumer_that_was_passed_over_keeps_its_turn() -> None:
    """R-CS-4: the one in front is full, the next gets the message."""
    q = QueueDriver()
    q.consume("a", prefetch=1)
    q.consume("b", prefetch=1)
    q.fill(2)
    q.settle((1, 2), who=consumer("b"))
    assert delivered(q.fill(1)) == {"b": [2]}
    q.consume("t", prefetch=2, channel=10)
    q.consume("s", node="n2", channel=9)
    q.send(queue_commands.encode_node_down("n2"))
    assert delivered(q.fill(2)) == {"t": [3, 4]}


def test_room_for_messages_is_never_negative() -> None:
    """R-LEN-1, R-LEN-11: requeued messages may have pushed the queue over its limit."""
    sizes = [b"".join(n.to_bytes(4, "little") for n in (3, 4))]
    entry = Entry(1, 0, 0, 2, sizes)
    assert [entry.fitting(0, 2, room) for room in (-1, 2, 3, 6, 7)] == [0, 0, 1, 1, 2]


def test_the_bodies_of_messages_are_not_in_the_state() -> None:
    """R-QQ-25: an index entry for each batch is."""
    q = QueueDriver(queue_type="quorum")
    outcome = q.publish(*[b"x" * 10_000] * 100)
    q.consume()
    assert outcome.effects == []
    assert len(q.machine.snapshot()) < 4000
    run = only(q.consume("d", prefetch=1) and q.publish(b"y"), effects.Deliver).runs[0]
    assert numbers([run]) == [100]


def test_a_queue_that_nobody_uses_is_made_again_from_its_snapshot() -> None:
    q = QueueDriver(queue_type="quorum")
    q.publish(b"one", b"two")
    factory = q.machine.factory()
    assert factory is not None
    make, summary = factory
    again = make()
    again.restore(q.machine.snapshot())
    assert again.snapshot() == q.machine.snapshot()
    assert again.overview() == q.machine.overview()
    assert summary == q.machine.summary() == again.summary()


def test_a_queue_that_is_used_or_holds_much_stays() -> None:
    q = QueueDriver(queue_type="quorum")
    q.consume()
    assert q.machine.factory() is None
    q = QueueDriver(queue_type="quorum")
    for _ in range(100):
        q.publish(b"x")
    assert q.machine.factory() is None
    q = QueueDriver(queue_type="quorum")
    for channel in range(1, 18):
        q.publish(b"x", channel=channel)
        q.reply(queue_commands.encode_purge())
    assert q.machine.factory() is None
