"""What a channel collects until commit, and what it holds for whom (R-TX)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.amqp import errors
from brokerd.core.effects import ConsumerId
from brokerd.core.message import Content
from brokerd.core.queue_commands import Kind, ReturnCause
from brokerd.core.unacked import Unacked
from brokerd.server import consumer_timeout
from brokerd.server.consumer_timeout import DeliveryTimes, check_interval_ms
from brokerd.server.shared_prefetch import SharedPrefetch
from brokerd.server.transactions import MESSAGE_OVERHEAD_BYTES, Publish, Transaction

ONE, TWO = (1, ConsumerId("n", 1, 5, "one")), (2, ConsumerId("n", 1, 5, "two"))
GETTER = (1, ConsumerId("n", 1, 5, ""))


def message(size: int) -> Publish:
    content: Content = (("", "q"), b"\0\0", bytes(size), b"")
    return Publish(cast(Any, None), cast(Any, None), [content], ())


def held(*holders: Any) -> Unacked[Any]:
    """Return a tracker with three deliveries to each holder, numbered from 11 on."""
    unacked: Unacked[Any] = Unacked()
    for holder in holders:
        unacked.delivered(holder, 11, 3)
    return unacked


def test_settlements_wait_in_order_and_neighbours_of_a_sort_are_joined() -> None:
    """R-TX-1, R-TX-5, R-QQ-10: a new leader is still told what the queue has not heard."""
    tx, unacked = Transaction(1000), held(ONE, TWO)
    tx.settle(Kind.SETTLE, 0, unacked.take(1, False))
    tx.settle(Kind.SETTLE, 0, unacked.take(4, True))
    tx.settle(Kind.RETURN, ReturnCause.NACK, unacked.take(5, False))
    assert tx.settlement_count == 5
    assert sorted(tx.numbers_of(ONE)) == [(11, 12), (12, 14)]
    assert sorted(tx.numbers_of(TWO)) == [(11, 12), (12, 13)]
    assert len(unacked) == 1
    settlements = [
        (kind, cause, unacked.ranges_of(taken)) for kind, cause, taken in tx.take_settlements()
    ]
    assert settlements == [
        (Kind.SETTLE, 0, {ONE: [(11, 14)], TWO: [(11, 12)]}),
        (Kind.RETURN, ReturnCause.NACK, {TWO: [(12, 13)]}),
    ]
    assert (tx.settlement_count, tx.numbers_of(ONE), tx.take_settlements()) == (0, [], [])


def test_a_rollback_makes_the_same_tags_stand_for_the_same_messages() -> None:
    """R-TX-4."""
    tx, unacked = Transaction(1000), held(ONE)
    tx.publish(message(10))
    tx.settle(Kind.SETTLE, 0, unacked.take(2, True))
    tx.settle(Kind.DISCARD, ReturnCause.REJECT, unacked.take(3, False))
    assert len(unacked) == 0
    tx.roll_back(unacked)
    unacked.check()
    assert (tx.take_publishes(), tx.take_settlements()) == ([], [])
    assert unacked.ack(2, False) == {ONE: [(12, 13)]}
    assert unacked.ack(0, True) == {ONE: [(11, 12), (13, 14)]}


def test_what_waits_is_bounded_by_bytes_and_by_count() -> None:
    """SEC-44: a message without a body costs something too; a commit frees the room."""
    tx = Transaction(3 * MESSAGE_OVERHEAD_BYTES + 10)
    tx.publish(message(0))
    tx.publish(message(0))
    with pytest.raises(errors.PreconditionFailed, match="commit more often"):
        tx.publish(message(10))
    assert len(tx.take_publishes()) == 2
    tx.publish(message(10))


async def test_a_commit_waits_for_every_queue_and_remembers_a_refusal() -> None:
    """R-TX-3, R-CH-9."""
    tx = Transaction(1000)
    first = tx.confirms.published(3)
    tx.confirms.expect(first, 3, 2)
    tx.is_committing = True
    waiting = asyncio.ensure_future(tx.answers())
    await asyncio.sleep(0)
    tx.answered(first, 3, 2)
    await asyncio.sleep(0)
    assert tx.is_refused
    assert not waiting.done()
    tx.answered(first, 3, 3)
    await waiting
    assert not tx.is_committing


async def test_nobody_waits_for_a_channel_that_is_gone() -> None:
    """R-TX-6."""
    tx = Transaction(1000)
    tx.confirms.expect(tx.confirms.published(), 1, 1)
    waiting = asyncio.ensure_future(tx.answers())
    await asyncio.sleep(0)
    tx.abandon()
    tx.abandon()
    await waiting
    # Whatever is answered afterwards interests nobody.
    tx.answered(1, 1, 1)


def test_a_shared_prefetch_counts_what_is_unsettled_at_the_queue() -> None:
    """R-QOS-3, R-QOS-4: not basic.get's; an ack in a transaction frees nothing yet."""
    unacked = held(ONE, GETTER)
    tx = Transaction(1000)
    channel = SimpleNamespace(unacked=unacked, tx=None)
    shared = SharedPrefetch(5)
    assert shared.room(cast(Any, channel)) == 0
    shared.exempt.add(GETTER)
    assert shared.room(cast(Any, channel)) == 2
    unacked.ack(1, False)
    assert shared.room(cast(Any, channel)) == 3
    channel.tx = tx
    tx.settle(Kind.SETTLE, 0, unacked.take(2, False))
    assert shared.room(cast(Any, channel)) == 3
    tx.take_settlements()
    assert shared.room(cast(Any, channel)) == 4


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
    broker: Any = SimpleNamespace(
        profile=SimpleNamespace(consumer_timeout_scope=scope),
        config=SimpleNamespace(queues=SimpleNamespace(consumer_timeout_ms=timeout_ms)),
    )
    assert consumer_timeout.watched(broker) == watched
