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


class Channels:
    """The publishing channels of one process life."""

    __slots__ = ("_by_number",)

    def __init__(self) -> None:
        self._by_number: dict[int, _Enqueuer] = {}

    def expected(self, channel: int) -> int:
        """Return the sequence number that comes next."""
        enqueuer = self._by_number.get(channel)
        return enqueuer.next_sequence if enqueuer else 1

    def seen(self, channel: int, next_sequence: int, refused_from: int) -> None:
        """Remember that everything below next_sequence came, and from refused_from on in vain."""
        enqueuer = self._by_number.get(channel)
        if enqueuer is None:
            enqueuer = self._by_number[channel] = _Enqueuer()
        enqueuer.next_sequence = next_sequence
        if refused_from < next_sequence:
            enqueuer.refused.add(refused_from, next_sequence)
            if len(enqueuer.refused) > REFUSED_RANGES_MAX:
                enqueuer.refused.merge_lowest()

    def accepted_again(self, channel: int, first: int, end: int) -> int:
        """Return how many of the repeated messages [first, end) may be confirmed from the front.

        What had been refused the first time is refused again: the sender may not have heard it.
        """
        enqueuer = self._by_number.get(channel)
        refused = enqueuer.refused.first_from(first) if enqueuer else None
        return end - first if refused is None else min(refused, end) - first

    def forget(self, channel: int) -> None:
        """The channel has ended."""
        self._by_number.pop(channel, None)

    def rows(self) -> Iterator[tuple[int, int, list[Range]]]:
        """Return channel, next sequence and refused ones."""
        for channel, enqueuer in self._by_number.items():
            yield channel, enqueuer.next_sequence, enqueuer.refused.ranges()

    def restore(self, channel: int, next_sequence: int, refused: list[Range]) -> None:
        """Put one row of a snapshot back."""
        enqueuer = self._by_number[channel] = _Enqueuer(next_sequence)
        enqueuer.refused = RangeSet(refused)

    def __len__(self) -> int:
        return len(self._by_number)


class Enqueuers:
    """Next expected sequence number and refused ones, by process life and channel.

    Invariant: each life that is here has a channel, between two commands.
    """

    __slots__ = ("_by_life",)

    def __init__(self) -> None:
        self._by_life: dict[tuple[str, int], Channels] = {}

    def known(self, node: str, incarnation: int) -> Channels:
        """Return the channels of a process life, to look at."""
        return self._by_life.get((node, incarnation)) or Channels()

    def of(self, node: str, incarnation: int) -> Channels:
        """Return the channels of a process life, one of which is about to be seen."""
        life = (node, incarnation)
        channels = self._by_life.get(life)
        if channels is None:
            channels = self._by_life[life] = Channels()
        return channels

    def forget(self, key: EnqueuerKey) -> None:
        """The channel has ended."""
        life = (key.node, key.incarnation)
        channels = self._by_life.get(life)
        if channels is not None:
            channels.forget(key.channel)
            if not channels:
                del self._by_life[life]

    def forget_earlier_incarnations(self, node: str, incarnation: int) -> None:
        """The node runs with this incarnation (or a later one): its earlier channels are gone."""
        for life in [n for n in self._by_life if n[0] == node and n[1] < incarnation]:
            del self._by_life[life]

    def nodes(self) -> set[str]:
        """Return whose channels are here."""
        return {node for node, _ in self._by_life}

    def clear(self) -> None:
        """Forget all."""
        self._by_life.clear()

    def rows(self) -> Iterator[tuple[EnqueuerKey, int, list[Range]]]:
        """Return the state for a snapshot."""
        for (node, incarnation), channels in self._by_life.items():
            for channel, next_sequence, refused in channels.rows():
                yield EnqueuerKey(node, incarnation, channel), next_sequence, refused

    def restore(self, key: EnqueuerKey, next_sequence: int, refused: list[Range]) -> None:
        """Put one row of a snapshot back."""
        self.of(key.node, key.incarnation).restore(key.channel, next_sequence, refused)

    def __len__(self) -> int:
        return sum(map(len, self._by_life.values()))
