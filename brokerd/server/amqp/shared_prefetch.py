"""The prefetch that all consumers of a channel share: basic.qos with `global` (R-QOS-3).

Used by channel_deliveries.py only.  Queues know nothing of it: they hand out up to each consumer's
own limit, and what the channel has no room for waits in its backlog.  Consumers of quorum queues,
auto-acknowledging ones and basic.get are not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from brokerd.core.queue.effects import ConsumerId
    from brokerd.core.unacked import Unacked
    from brokerd.server.amqp.transactions import Transaction


class Channel(Protocol):
    """What is read of a channel."""

    unacked: Unacked[tuple[int, ConsumerId]]
    tx: Transaction | None


class SharedPrefetch:
    """One limit; `exempt` are holders whose deliveries it does not count."""

    __slots__ = ("exempt", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.exempt: set[tuple[int, ConsumerId]] = set()

    def room(self, channel: Channel) -> int:
        """Return how many more messages may be sent to the consumers that are counted."""
        unacked = channel.unacked
        counted = len(unacked)
        if channel.tx is not None:
            # R-TX: an ack frees its place at commit.
            counted += channel.tx.settlement_count
        for holder in self.exempt:
            counted -= unacked.outstanding(holder)
        return max(0, self.limit - counted)
