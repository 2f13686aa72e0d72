"""What the consumers of a channel may hold together (R-QOS)."""

from __future__ import annotations

from typing import Any

from brokerd.core.queue.effects import ConsumerId
from brokerd.core.unacked import Unacked
from brokerd.server.amqp.shared_prefetch import SharedPrefetch
from brokerd.server.amqp.transactions import Transaction
from brokerd.server.queues.stream import Settle
from tests.unit.server.amqp.test_transactions import ONE, held

GETTER = (1, ConsumerId("n", 1, 5, ""))


class Channel:
    """What a channel holds."""

    def __init__(self, unacked: Unacked[Any]) -> None:
        self.unacked = unacked
        self.tx: Transaction | None = None


def test_a_shared_prefetch_counts_what_is_unsettled_at_the_queue() -> None:
    """R-QOS-3, R-QOS-4: not basic.get's; an ack in a transaction frees nothing yet."""
    unacked = held(ONE, GETTER)
    tx = Transaction(1000)
    channel = Channel(unacked)
    shared = SharedPrefetch(5)
    assert shared.room(channel) == 0
    shared.exempt.add(GETTER)
    assert shared.room(channel) == 2
    unacked.ack(1, False)
    assert shared.room(channel) == 3
    channel.tx = tx
    tx.settle(Settle.ACCEPT, unacked.take(2, False))
    assert shared.room(channel) == 3
    tx.take_settlements()
    assert shared.room(channel) == 4
