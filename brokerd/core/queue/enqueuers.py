"""Which publishing channels have sent what to a queue: duplicate and gap detection.

A sender that saw no reply sends again after a leader change; what had been taken over must not be
taken over twice (R-QQ-8, design/replication.md §2.6).  Only the queue machine uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from brokerd.core.message import Range
from brokerd.core.ranges import RangeSet

#: Refused sequence ranges remembered per enqueuer.  Above it the oldest two are made one, which
#: can nack a message that was taken over, but never confirms one that was not.
REFUSED_RANGES_MAX = 64


class EnqueuerKey(NamedTuple):
    """A publishing channel of one process life."""

    node: str
    incarnation: int
    channel: int


class _Enqueuer:
    __slots__ = ("next_sequence", "refused")

    def __init__(self, next_sequence: int = 1) -> None:
        self.next_sequence = next_sequence
        self.refused = RangeSet()


class Enqueuers:
    """Next expected sequence number and refused ones, by enqueuer."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[EnqueuerKey, _Enqueuer] = {}

    def expected(self, key: EnqueuerKey) -> int:
        """Return the sequence number that comes next."""
        enqueuer = self._by_key.get(key)
        return enqueuer.next_sequence if enqueuer else 1

    def seen(self, key: EnqueuerKey, next_sequence: int, refused_from: int) -> None:
        """Remember that everything below next_sequence came, and from refused_from on in vain."""
        enqueuer = self._by_key.get(key)
        if enqueuer is None:
            enqueuer = self._by_key[key] = _Enqueuer()
        enqueuer.next_sequence = next_sequence
        if refused_from < next_sequence:
            enqueuer.refused.add(refused_from, next_sequence)
            if len(enqueuer.refused) > REFUSED_RANGES_MAX:
                enqueuer.refused.merge_lowest()

    def accepted_again(self, key: EnqueuerKey, first: int, end: int) -> int:
        """Return how many of the repeated messages [first, end) may be confirmed from the front.

        What had been refused the first time is refused again: the sender may not have heard it.
        """
        enqueuer = self._by_key.get(key)
        refused = enqueuer.refused.first_from(first) if enqueuer else None
        return end - first if refused is None else min(refused, end) - first

    def forget(self, key: EnqueuerKey) -> None:
        """The channel has ended."""
        self._by_key.pop(key, None)

    def forget_earlier_incarnations(self, node: str, incarnation: int) -> None:
        """The node runs with this incarnation (or a later one): its earlier channels are gone."""
        for key in [k for k in self._by_key if k.node == node and k.incarnation < incarnation]:
            del self._by_key[key]

    def clear(self) -> None:
        """Forget all."""
        self._by_key.clear()

    def rows(self) -> Iterator[tuple[EnqueuerKey, int, list[Range]]]:
        """Return the state for a snapshot."""
        for key, enqueuer in self._by_key.items():
            yield key, enqueuer.next_sequence, enqueuer.refused.ranges()

    def restore(self, key: EnqueuerKey, next_sequence: int, refused: list[Range]) -> None:
        """Put one row of a snapshot back."""
        enqueuer = self._by_key[key] = _Enqueuer(next_sequence)
        enqueuer.refused = RangeSet(refused)

    def __len__(self) -> int:
        return len(self._by_key)
