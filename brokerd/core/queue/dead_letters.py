"""At-least-once dead letters: where they wait inside the source queue's replicated state.

A worker beside the leader checks letters out, publishes them, and settles them when all targets
have confirmed (R-ALO-3..6).  Which term has taken what is part of the state: the first checkout of
a new term makes everything that is unsettled available again (R-ALO-10).  Publishing, routing and
retrying are the worker's.  Only the queue machine uses this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from brokerd.core.message import Range
from brokerd.core.queue.certificates import Certificate
from brokerd.core.queue.queue_store import Span
from brokerd.core.ranges import Pieces


@dataclass(slots=True, eq=False)
class DeadSpan:
    """Consecutive messages that died together.

    `order` rises with every death; `first` and `end` shadow the span's, as `Pieces` wants.
    """

    span: Span
    reason: str
    time_ms: int
    order: int
    #: Who had them; None: no consumer, or it is not said.
    certificate: Certificate | None = None
    first: int = 0
    end: int = 0

    def __post_init__(self) -> None:
        self.first, self.end = self.span.first, self.span.end

    def part(self, first: int, end: int) -> DeadSpan:
        """Return a letter of some of these messages."""
        span = self.span.part(first, end)
        return DeadSpan(span, self.reason, self.time_ms, self.order, self.certificate)

    def joins(self, following: DeadSpan) -> bool:
        """Never: letters are settled as they were checked out."""
        return False


class DeadLetters:
    """Letters that wait, and letters that a worker has taken in `taken_term`.

    Invariants: `count` and `size_bytes` are the sums over both; `waiting` is in death order, and
    None while there is none: an empty deque has 760 bytes, and most queues have no letters.
    """

    __slots__ = ("count", "next_order", "size_bytes", "taken", "taken_term", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[DeadSpan] | None = None
        self.taken: Pieces[DeadSpan] = Pieces()
        self.taken_term = 0
        self.count = 0
        self.size_bytes = 0
        self.next_order = 1

    def add(
        self, spans: list[Span], reason: str, time_ms: int, certificate: Certificate | None = None
    ) -> None:
        """Messages died, in this order."""
        for span in spans:
            letter = DeadSpan(span, reason, time_ms, self.next_order, certificate)
            self.restore(letter, taken=False)

    def restore(self, letter: DeadSpan, taken: bool) -> None:
        """Put a letter of a snapshot (or a new one) at the end."""
        self.next_order = max(self.next_order, letter.order + 1)
        self.count += letter.end - letter.first
        self.size_bytes += letter.span.size_bytes()
        if taken:
            self.taken.add(letter)
        elif self.waiting is None:
            self.waiting = deque((letter,))
        else:
            self.waiting.append(letter)

    def checkout(self, count: int, term: int) -> list[DeadSpan]:
        """Take up to `count` messages for the worker of this term, in death order."""
        if term != self.taken_term:
            self.taken_term = term
            again = sorted(self.taken.clear(), key=_death_order)
            self._wait([*again, *(self.waiting or ())])
        result: list[DeadSpan] = []
        waiting = self.waiting
        while count > 0 and waiting:
            letter = waiting.popleft()
            if letter.end - letter.first > count:
                waiting.appendleft(letter.part(letter.first + count, letter.end))
                letter = letter.part(letter.first, letter.first + count)
            count -= letter.end - letter.first
            result.append(letter)
            # `taken` owns its pieces; the answer gets a copy.
            self.taken.add(letter.part(letter.first, letter.end))
        if not waiting:
            self.waiting = None
        return result

    def _wait(self, letters: Iterable[DeadSpan]) -> None:
        ordered = deque(sorted(letters, key=_death_order))
        self.waiting = ordered or None

    def settle(self, ranges: list[Range]) -> list[Span]:
        """All targets confirmed these: remove and return them.

        Letters that no worker of this term holds are settled too: a confirmation counts,
        whichever worker received it.
        """
        settled: list[DeadSpan] = []
        for low, high in ranges:
            settled += self.taken.take(low, high)
        missing = sum(high - low for low, high in ranges) - sum(x.end - x.first for x in settled)
        if missing > 0 and self.waiting:
            settled += self._settle_waiting(ranges)
        for letter in settled:
            self.count -= letter.end - letter.first
            self.size_bytes -= letter.span.size_bytes()
        return [letter.span for letter in settled]

    def _settle_waiting(self, ranges: list[Range]) -> list[DeadSpan]:
        pieces: Pieces[DeadSpan] = Pieces()
        for letter in self.waiting or ():
            pieces.add(letter)
        settled = [letter for low, high in ranges for letter in pieces.take(low, high)]
        if settled:
            self._wait(pieces.clear())
        return settled

    def clear(self) -> list[Span]:
        """Give all of them up and return them."""
        spans = [letter.span for letter in self]
        self.waiting = None
        self.taken.clear()
        self.count = self.size_bytes = 0
        return spans

    def held(self) -> list[DeadSpan]:
        """Return what a worker has taken and not settled, in death order."""
        return sorted(self.taken, key=_death_order)

    def oldest_ms(self) -> int | None:
        """Return when the longest waiting of them died."""
        times = [letter.time_ms for letter in self.taken]
        if self.waiting:
            # In death order, so the first is the oldest.
            times.append(self.waiting[0].time_ms)
        return min(times, default=None)

    def __iter__(self) -> Iterator[DeadSpan]:
        yield from self.taken
        yield from self.waiting or ()

    def check(self) -> None:
        """Assert what the class promises."""
        self.taken.check()
        assert self.count == sum(letter.end - letter.first for letter in self)
        assert self.size_bytes == sum(letter.span.size_bytes() for letter in self)
        orders = [(letter.order, letter.first) for letter in self.waiting or ()]
        assert self.waiting is None or self.waiting, "an empty deque of dead letters"
        assert orders == sorted(orders), "dead letters out of death order"


def _death_order(letter: DeadSpan) -> tuple[int, int]:
    return letter.order, letter.first
