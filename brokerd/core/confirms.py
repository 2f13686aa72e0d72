"""A channel's publisher confirms: which publishes are taken over by all their queues.

One tracker per channel in confirm mode.  Publishes come in runs, each run goes to 0..k queues, and
a queue's answer covers the run or a prefix of it; the cost is per run, not per message.  It writes
no frames: `take` says which acks and nacks are due, joined as R-PC-8 has it.
"""

from __future__ import annotations

from brokerd.core.message import Range
from brokerd.core.ranges import Pieces, RangeSet

#: Targets of a run that has been numbered and not been routed yet.
_UNROUTED = -1


class _Awaited:
    """Publishes [first, end) that still wait for `targets` confirmations each."""

    __slots__ = ("end", "first", "targets")

    def __init__(self, first: int, end: int, targets: int) -> None:
        self.first = first
        self.end = end
        self.targets = targets

    def part(self, first: int, end: int) -> _Awaited:
        return _Awaited(first, end, self.targets)

    def joins(self, following: _Awaited) -> bool:
        return self.targets == following.targets


class Confirms:
    """Sequence numbers of one channel, from 1 with the first publish after confirm.select (R-PC-1).

    Invariants: every number below `next_sequence` is awaited, decided and not yet taken, or done;
    a number is decided once: the first refusal nacks it (R-PC-3), later answers do not matter.
    """

    __slots__ = ("_acks", "_awaited", "_nacks", "next_sequence")

    def __init__(self) -> None:
        self._awaited: Pieces[_Awaited] = Pieces()
        self._acks = RangeSet()
        self._nacks = RangeSet()
        self.next_sequence = 1

    def published(self, count: int = 1) -> int:
        """Number a run of publishes; return the first number.  `expect` must follow."""
        first = self.next_sequence
        self.next_sequence = first + count
        if count:
            self._awaited.add(_Awaited(first, first + count, _UNROUTED))
        return first

    def expect(self, first: int, count: int, targets: int) -> None:
        """Routing is done: `targets` queues must take each over; 0: confirmed (R-PC-4)."""
        for piece in self._awaited.take(first, first + count):
            if targets:
                piece.targets = targets
                self._awaited.add(piece)
            else:
                self._acks.add(piece.first, piece.end)

    def confirmed(self, first: int, count: int) -> None:
        """One target has taken these over (or has been deleted: R-PC-7)."""
        for piece in self._awaited.take(first, first + count):
            assert piece.targets > 0, "confirmed before it was routed"
            piece.targets -= 1
            if piece.targets:
                self._awaited.add(piece)
            else:
                self._acks.add(piece.first, piece.end)

    def rejected(self, first: int, count: int) -> None:
        """One target refused these: nack, whatever the others say (R-PC-3)."""
        for piece in self._awaited.take(first, first + count):
            self._nacks.add(piece.first, piece.end)

    def answered(self, first: int, count: int, accepted: int) -> None:
        """One target took over the first `accepted` and refused the rest."""
        if accepted:
            self.confirmed(first, accepted)
        if accepted < count:
            self.rejected(first + accepted, count - accepted)

    def take(self) -> tuple[list[tuple[int, bool]], list[int]]:
        """Return the due acks as (tag, multiple), and the due nacks; they are done then.

        R-PC-8: what is below the smallest undecided and the smallest nacked number becomes one ack
        with multiple; the others and all nacks go one by one.
        """
        acks, nacks = self._acks.take_all(), self._nacks.take_all()
        first = self._awaited.first()
        border = first.first if first is not None else self.next_sequence
        if not nacks:
            return _join(acks, border), []
        border = min(border, nacks[0][0])
        return _join(acks, border), [tag for low, high in nacks for tag in range(low, high)]

    @property
    def outstanding(self) -> int:
        """Return how many publishes are neither acked nor nacked to the client."""
        return self._awaited.count + self._acks.count() + self._nacks.count()

    def __bool__(self) -> bool:
        """Return whether `take` has something."""
        return bool(self._acks) or bool(self._nacks)


class SequenceConfirms(Confirms):
    """Confirms whose numbers the client chooses (rising, gaps allowed), answered in ranges."""

    __slots__ = ("has_gaps",)

    def __init__(self) -> None:
        super().__init__()
        #: True: the client's numbers are not simply 1, 2, 3, …
        self.has_gaps = False

    def number(self, sequence: int, count: int = 1) -> bool:
        """Take the client's number for the next message, and those after it for `count` in all;
        False, and nothing is taken, unless it is at least `next_sequence`.
        """
        if sequence < self.next_sequence:
            return False
        if sequence > self.next_sequence:
            self.has_gaps = True
            self.next_sequence = sequence
        self.published(count)
        return True

    def withdraw(self, first: int, count: int) -> None:
        """These went nowhere: they have no answer, unless they are numbered `again`."""
        self._awaited.take(first, first + count)

    def again(self, first: int, count: int) -> None:
        """Number withdrawn messages once more; `expect` must follow."""
        self._awaited.add(_Awaited(first, first + count, _UNROUTED))

    def due_ranges(self) -> tuple[list[Range], list[Range]]:
        """Return the confirmed and the rejected numbers that `take` is about to take, as ranges.

        A number is in exactly one range, once.
        """
        return self._acks.ranges(), self._nacks.ranges()


def _join(acks: list[Range], border: int) -> list[tuple[int, bool]]:
    below = 0
    highest = 0
    singles: list[tuple[int, bool]] = []
    for low, high in acks:
        cut = min(high, max(low, border))
        if low < cut:
            below += cut - low
            highest = cut - 1
        singles += [(tag, False) for tag in range(cut, high)]
    # R-PC-8: a single tag goes without multiple.
    return [(highest, below > 1), *singles] if below else singles
