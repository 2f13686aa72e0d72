"""A channel's unacknowledged deliveries: from delivery tags to message numbers of queues.

One tracker per AMQP channel (R-ACK-1: tags start at 1, one sequence per channel).  Deliveries come
in runs and acks come in bulk, so it keeps runs and answers in ranges of message numbers per
consumer, ready for SETTLE, RETURN and DISCARD commands.  It sends nothing and knows no queue; a
consumer key is whatever the server uses to find the queue again (for instance (queue, ConsumerId)).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from brokerd.core.message import Range
from brokerd.core.ranges import Pieces

K = TypeVar("K", bound=Hashable)


class UnknownDeliveryTag(ValueError):
    """The tag is not outstanding (R-ACK-2, R-ACK-3): channel error 406.

    `tag`: the tag to be named in the error.
    """

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown delivery tag {tag}")
        self.tag = tag


class Outstanding(Generic[K]):
    """Deliveries with consecutive tags [first, end) and consecutive message numbers."""

    __slots__ = ("consumer", "end", "first", "number")

    def __init__(self, consumer: K, first: int, end: int, number: int) -> None:
        self.consumer = consumer
        self.first = first
        self.end = end
        #: Message number of the delivery with tag `first`.
        self.number = number

    def part(self, first: int, end: int) -> Outstanding[K]:
        """Return some of these deliveries."""
        return Outstanding(self.consumer, first, end, self.number + first - self.first)

    def joins(self, following: Outstanding[K]) -> bool:
        """Return whether the message numbers go on where these end."""
        return (
            self.number + self.end - self.first == following.number
            and self.consumer == following.consumer
        )


class Unacked(Generic[K]):
    """Delivery tags of one channel.

    Invariants: `_counts[k]` is the number of outstanding deliveries of consumer k, without zeros.
    """

    __slots__ = ("_counts", "_pieces", "_silent", "next_tag")

    def __init__(self) -> None:
        self._pieces: Pieces[Outstanding[K]] = Pieces()
        self._counts: dict[K, int] = {}
        #: Consumers whose queue is gone: their tags may be acked, to no effect (R-ACK-10, R-Q-12).
        self._silent: set[K] = set()
        self.next_tag = 1

    def delivered(self, consumer: K, first_number: int, count: int, no_ack: bool = False) -> int:
        """Give tags to consecutive messages; return the first.  no_ack ones only use up tags."""
        tag = self.next_tag
        self.next_tag = tag + count
        if not no_ack and count:
            self._pieces.add(Outstanding(consumer, tag, tag + count, first_number))
            self._counts[consumer] = self._counts.get(consumer, 0) + count
        return tag

    def ack(self, tag: int, multiple: bool) -> dict[K, list[Range]]:
        """Settle one tag, or all up to it; return the message numbers by consumer.

        Raises UnknownDeliveryTag and then changes nothing.
        """
        return self.ranges_of(self.take(tag, multiple))

    def acks(
        self, tags: Iterable[tuple[int, bool]]
    ) -> tuple[dict[K, list[Range]], UnknownDeliveryTag | None]:
        """Settle a read full of acks; return the message numbers, and the error that ended it.

        What stands before the bad tag counts; what stands behind it is not looked at (the channel
        is closed, R-ACK-11).  In-order single acks are joined before anything is looked up.
        """
        taken: list[Outstanding[K]] = []
        low = high = 0
        error: UnknownDeliveryTag | None = None
        try:
            for tag, multiple in tags:
                if tag == high and not multiple and high:
                    high += 1
                    continue
                if low < high:
                    self._take_each(low, high, taken)
                low = high = 0
                if multiple or not tag:
                    taken += self.take(tag, multiple)
                else:
                    low, high = tag, tag + 1
            if low < high:
                self._take_each(low, high, taken)
        except UnknownDeliveryTag as unknown:
            error = unknown
        return self.ranges_of(taken), error

    def take(self, tag: int, multiple: bool) -> list[Outstanding[K]]:
        """Settle as `ack` does, but return the deliveries, so that a rollback can put them back."""
        if multiple and tag == 0:
            # R-ACK-3: all, and none is fine.
            return self._take(1, self.next_tag)
        if self._pieces.find(tag) is None:
            raise UnknownDeliveryTag(tag)
        return self._take(1 if multiple else tag, tag + 1)

    def put_back(self, deliveries: Sequence[Outstanding[K]]) -> None:
        """Make taken deliveries outstanding again with the same tags (R-TX-4)."""
        for piece in deliveries:
            length = piece.end - piece.first
            self._counts[piece.consumer] = self._counts.get(piece.consumer, 0) + length
            self._pieces.add(piece.part(piece.first, piece.end))

    def ranges_of(self, deliveries: Sequence[Outstanding[K]]) -> dict[K, list[Range]]:
        """Return message numbers by consumer, in tag order, neighbours joined."""
        result: dict[K, list[Range]] = {}
        for piece in deliveries:
            consumer = piece.consumer
            if self._silent and consumer in self._silent:
                continue
            low = piece.number
            high = low + piece.end - piece.first
            ranges = result.get(consumer)
            if ranges is None:
                result[consumer] = [(low, high)]
            elif ranges[-1][1] == low:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
        return result

    def take_all(self) -> dict[K, list[Range]]:
        """Remove everything (basic.recover, R-ACK-7; channel end, R-ACK-12)."""
        return self.ranges_of(self._take(1, self.next_tag))

    def numbers_of(self, consumer: K) -> list[Range]:
        """Return what this consumer holds, ascending: the `held` of a RESUME command."""
        held = [
            (piece.number, piece.number + piece.end - piece.first)
            for piece in self._pieces
            if piece.consumer == consumer
        ]
        return sorted(held)

    def numbers_below(self, tag: int) -> dict[K, list[Range]]:
        """Return what all consumers hold with lower tags than this."""
        below = [piece for piece in self._pieces if piece.first < tag]
        return self.ranges_of([each.part(each.first, min(each.end, tag)) for each in below])

    def silence(self, consumer: K) -> None:
        """Its queue is gone: its tags stay valid, and acking them has no effect any more."""
        if consumer in self._counts:
            self._silent.add(consumer)

    def drop(self, consumer: K) -> int:
        """Remove a consumer's deliveries (its messages were taken back); return how many."""
        gone = [piece for piece in self._pieces if piece.consumer == consumer]
        return sum(
            taken.end - taken.first
            for piece in gone
            for taken in self._take(piece.first, piece.end)
        )

    def outstanding(self, consumer: K) -> int:
        """Return how many deliveries of this consumer are not settled."""
        return self._counts.get(consumer, 0)

    def oldest_tag(self) -> int | None:
        """Return the smallest outstanding tag, None if there is none."""
        first = self._pieces.first()
        return None if first is None else first.first

    def __len__(self) -> int:
        return self._pieces.count

    def _take_each(self, low: int, high: int, taken: list[Outstanding[K]]) -> None:
        """Take tags that were each named alone: every one of them must be there."""
        found = self._take(low, high)
        expected = low
        for i, piece in enumerate(found):
            if piece.first != expected:
                self.put_back(found[i:])
                raise UnknownDeliveryTag(expected)
            taken.append(piece)
            expected = piece.end
        if expected != high:
            raise UnknownDeliveryTag(expected)

    def _take(self, low: int, high: int) -> list[Outstanding[K]]:
        pieces = self._pieces.take(low, high)
        counts = self._counts
        for piece in pieces:
            left = counts[piece.consumer] - (piece.end - piece.first)
            if left:
                counts[piece.consumer] = left
            else:
                del counts[piece.consumer]
        return pieces

    def check(self) -> None:
        """Assert the invariants."""
        self._pieces.check()
        counts: dict[K, int] = {}
        for piece in self._pieces:
            counts[piece.consumer] = counts.get(piece.consumer, 0) + piece.end - piece.first
        assert counts == self._counts
        assert all(piece.end <= self.next_tag for piece in self._pieces)
