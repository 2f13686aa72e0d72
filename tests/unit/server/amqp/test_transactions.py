"""What a channel collects until commit, and what it holds for whom (R-TX)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from brokerd.amqp import errors
from brokerd.core.message import Content
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.unacked import Unacked
from brokerd.server.amqp.transactions import MESSAGE_OVERHEAD_BYTES, Publish, Transaction
from brokerd.server.queues.stream import Settle

ONE, TWO = (1, ConsumerId("n", 1, 5, "one")), (2, ConsumerId("n", 1, 5, "two"))


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
    tx.settle(Settle.ACCEPT, unacked.take(1, False))
    tx.settle(Settle.ACCEPT, unacked.take(4, True))
    tx.settle(Settle.NACK, unacked.take(5, False))
    assert tx.settlement_count == 5
    assert sorted(tx.numbers_of(ONE)) == [(11, 12), (12, 14)]
    assert sorted(tx.numbers_of(TWO)) == [(11, 12), (12, 13)]
    assert len(unacked) == 1
    settlements = [(how, unacked.ranges_of(taken)) for how, taken in tx.take_settlements()]
    assert settlements == [
        (Settle.ACCEPT, {ONE: [(11, 14)], TWO: [(11, 12)]}),
        (Settle.NACK, {TWO: [(12, 13)]}),
    ]
    assert (tx.settlement_count, tx.numbers_of(ONE), tx.take_settlements()) == (0, [], [])


def test_a_rollback_makes_the_same_tags_stand_for_the_same_messages() -> None:
    """R-TX-4."""
    tx, unacked = Transaction(1000), held(ONE)
    tx.publish(message(10))
    tx.settle(Settle.ACCEPT, unacked.take(2, True))
    tx.settle(Settle.DISCARD_REJECTED, unacked.take(3, False))
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
