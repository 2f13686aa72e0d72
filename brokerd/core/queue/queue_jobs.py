"""A job on a queue's messages (redrive, move, delete): what it covers, and what it has in hand.

A worker beside the leader takes messages by number, ready ones or those that wait until they are
due, sends each to its targets, and settles it when all of them have confirmed.  What the job holds
has a place of its own: not ready, held by no consumer, and dropped by no purge, policy or change of
leader.  Order, progress and receipt are
texts of the worker's, which nothing here looks into.  Only the queue machine uses this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from brokerd.core.message import Range
from brokerd.core.queue.delayed import Waiting
from brokerd.core.queue.queue_store import Span
from brokerd.core.ranges import Pieces, normalize

#: Characters of an order: a filter has 4,096, names 255 each.
ORDER_CHARACTERS_MAX = 16 * 1024
#: Characters of a progress and of a receipt, which is kept.
PROGRESS_CHARACTERS_MAX = 64 * 1024
#: Receipts of jobs that have ended, the last ones.
RECEIPTS_MAX = 4
#: Messages that a job holds at once.
HELD_MAX = 4_096


class Receipt(NamedTuple):
    """What a job that has ended left behind."""

    id: int
    text: str


class LetGo(NamedTuple):
    """Messages that a job has no longer in hand, by what they were before."""

    ready: list[Span]
    #: They waited until they are due.
    waiting: list[Waiting]
    #: As those, and another message has their key now, or has cancelled it.
    replaced: list[Span]

    def spans(self) -> list[Span]:
        """Return all of them."""
        return [*self.ready, *[row.span for row in self.waiting], *self.replaced]


class Job:
    """One job.

    Invariants: `size_bytes` is the sum over `held`, whose numbers are below `end`; `waits` has the
    numbers of those of them that waited, and `_keys` the number of each whose key is its own still.
    """

    __slots__ = (
        "_keys",
        "end",
        "gone",
        "held",
        "id",
        "order",
        "progress",
        "size_bytes",
        "started_ms",
        "stopped_by",
        "user",
        "waits",
    )

    def __init__(self, number: int, order: str, user: str, started_ms: int, end: int) -> None:
        self.id = number
        self.order = order
        self.user = user
        self.started_ms = started_ms
        #: The queue's next number at the start: what came later is not the job's.
        self.end = end
        #: Who has stopped it: it takes nothing more.
        self.stopped_by: str | None = None
        self.progress = ""
        #: Messages that it took out of the queue for good.
        self.gone = 0
        self.held: Pieces[Span] = Pieces()
        self.size_bytes = 0
        #: By number: when it is due, None if it was replaced, and its key.
        self.waits: dict[int, tuple[int | None, str | None]] = {}
        self._keys: dict[str, int] = {}

    def hold(self, spans: Iterable[Span]) -> None:
        """Take messages in hand."""
        for span in spans:
            self.size_bytes += span.size_bytes()
            self.held.add(span)

    def hold_waiting(self, rows: Iterable[Waiting]) -> None:
        """Take messages in hand that are not due yet."""
        for span, due_ms, key in rows:
            for number in range(span.first, span.end):
                self.restore_wait(number, due_ms, key)
            self.hold([span])

    def restore_wait(self, number: int, due_ms: int | None, key: str | None) -> None:
        """Remember that a message waited, until when, and its key."""
        self.waits[number] = due_ms, key
        if key is not None:
            self._keys[key] = number

    def replace(self, key: str) -> None:
        """Another message with this key has come, or has cancelled it."""
        number = self._keys.pop(key, None)
        if number is not None:
            self.waits[number] = None, None

    def let_go(self, ranges: Iterable[Range]) -> LetGo:
        """Give messages out of hand and return them; what is not held is passed over."""
        spans: list[Span] = []
        for low, high in ranges:
            spans += self.held.take(low, high)
        return self._apart(spans)

    def let_all_go(self) -> LetGo:
        """Give everything out of hand and return it."""
        return self._apart(self.held.clear())

    def _apart(self, spans: list[Span]) -> LetGo:
        found = LetGo([], [], [])
        for span in spans:
            self.size_bytes -= span.size_bytes()
            first = span.first
            while first < span.end:
                end, wait = self._alike(first, span.end)
                part = span if end - first == span.end - span.first else span.part(first, end)
                if wait is None:
                    found.ready.append(part)
                elif wait[0] is None:
                    found.replaced.append(part)
                else:
                    found.waiting.append(Waiting(part, wait[0], wait[1]))
                first = end
        return found

    def _alike(self, first: int, end: int) -> tuple[int, tuple[int | None, str | None] | None]:
        """Forget how long messages waited; return up to which number that is the same, and it."""
        if not self.waits:
            return end, None
        wait = self.waits.pop(first, None)
        number = first + 1
        while number < end and self.waits.get(number) == wait:
            self.waits.pop(number, None)
            number += 1
        if wait is not None and wait[1] is not None:
            del self._keys[wait[1]]
        return number, wait

    def may_take(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the part of these numbers that it covers and has room for, ascending."""
        room = HELD_MAX - self.held.count
        taken: list[Range] = []
        for low, high in normalize(ranges):
            high = min(high, self.end, low + room)
            if low < high:
                taken.append((low, high))
                room -= high - low
        return taken

    def check(self) -> None:
        """Assert what the class promises."""
        self.held.check()
        assert self.size_bytes == sum(span.size_bytes() for span in self.held)
        assert all(span.end <= self.end for span in self.held), "beyond the end of the job"
        assert self.held.count <= HELD_MAX
        assert all(self.held.find(number) for number in self.waits), "waits out of hand"
        keys = {key: number for number, (_, key) in self.waits.items() if key is not None}
        assert keys == self._keys
