"""What the clients of one member have done since its start, as RabbitMQ's global counters have it.

They only grow, and nothing is kept by exchange, queue or user; `counters.py` has that.  Added to
once per run of messages (equal publishes of one read, one delivery), never per message.  Pure;
counted by both front doors, read by the server's metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: By the names of rabbit_global_counters; a call of the service Messages is `grpc`.
AMQP: Final = "amqp091"
GRPC: Final = "grpc"
#: Upper bounds in bytes, those of RabbitMQ 4.1 (rabbit_msg_size_metrics).
SIZE_BOUNDS = (
    100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000,
)  # fmt: skip


class QueueTypeTotals:
    """Of the queues of one type, wherever their leaders are."""

    __slots__ = (
        "acknowledged",
        "consume_auto_ack",
        "consume_manual_ack",
        "get_auto_ack",
        "get_empty",
        "get_manual_ack",
        "redelivered",
    )

    def __init__(self) -> None:
        self.consume_auto_ack = self.consume_manual_ack = 0
        self.get_auto_ack = self.get_manual_ack = self.get_empty = 0
        self.redelivered = self.acknowledged = 0

    def delivered(self, count: int, redelivered: int, no_ack: bool) -> None:
        """Count a delivery to a consumer."""
        if no_ack:
            self.consume_auto_ack += count
        else:
            self.consume_manual_ack += count
        self.redelivered += redelivered

    def got(self, is_redelivered: bool, no_ack: bool) -> None:
        """Count what one basic.get has brought."""
        if no_ack:
            self.get_auto_ack += 1
        else:
            self.get_manual_ack += 1
        self.redelivered += is_redelivered

    @property
    def delivered_all(self) -> int:
        """Return deliveries of all four kinds."""
        return (
            self.consume_auto_ack + self.consume_manual_ack + self.get_auto_ack
        ) + self.get_manual_ack


class ClientTotals:
    """Of one protocol.  Invariant: received == routed + unroutable_returned + unroutable_dropped,
    and the same are in `sizes`.
    """

    __slots__ = (
        "classic",
        "confirmed",
        "copies",
        "queues_declared",
        "quorum",
        "received",
        "received_bytes",
        "received_confirm",
        "routed",
        "sizes",
        "unroutable_dropped",
        "unroutable_returned",
    )

    def __init__(self) -> None:
        self.received = self.received_confirm = self.confirmed = 0
        self.received_bytes = 0
        #: What went to queues, once for each queue.
        self.copies = 0
        self.routed = self.unroutable_returned = self.unroutable_dropped = 0
        #: queue.declare that was answered well, of a queue that was there or not.
        self.queues_declared = 0
        #: Messages by SIZE_BOUNDS, each in one; the last are above all bounds.
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)
        self.classic = QueueTypeTotals()
        self.quorum = QueueTypeTotals()

    def published(
        self, sizes: Sequence[int], size_bytes: int, queue_count: int, mandatory: bool
    ) -> None:
        """Count a run of messages with one route; sizes: of their bodies, size_bytes: the sum."""
        count, first = len(sizes), sizes[0]
        self.received += count
        self.received_bytes += size_bytes
        if queue_count:
            self.routed += count
            self.copies += count * queue_count
        elif mandatory:
            self.unroutable_returned += count
        else:
            self.unroutable_dropped += count
        # Most often all are alike: 2 ns per message, where their bounds would take 100.
        if sizes.count(first) == count:
            self.sizes[bisect_left(SIZE_BOUNDS, first)] += count
        else:
            for size in sizes:
                self.sizes[bisect_left(SIZE_BOUNDS, size)] += 1

    def of(self, queue_type: str) -> QueueTypeTotals:
        """Return what concerns queues of a type."""
        return self.quorum if queue_type == "quorum" else self.classic
