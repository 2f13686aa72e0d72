"""A job on a queue's messages (redrive, move, delete): what it covers, and what it has in hand.

A worker beside the leader takes ready messages by number, sends each to its targets, and settles
it when all of them have confirmed.  What the job holds has a place of its own: not ready, held by
no consumer, and dropped by no purge, policy or change of leader.  Order, progress and receipt are
texts of the worker's, which nothing here looks into.  Only the queue machine uses this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from brokerd.core.message import Range
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


class Job:
    """One job.  Invariant: `size_bytes` is the sum over `held`, whose numbers are below `end`."""

    __slots__ = (
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

    def hold(self, spans: Iterable[Span]) -> None:
        """Take messages in hand."""
        for span in spans:
            self.size_bytes += span.size_bytes()
            self.held.add(span)

    def let_go(self, ranges: Iterable[Range]) -> list[Span]:
        """Give messages out of hand and return them; what is not held is passed over."""
        spans: list[Span] = []
        for low, high in ranges:
            spans += self.held.take(low, high)
        for span in spans:
            self.size_bytes -= span.size_bytes()
        return spans

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
