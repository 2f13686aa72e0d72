"""What a channel in tx mode collects until it commits or rolls back (R-TX).

It knows neither channel nor queues; session_transactions.py has the methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerd.amqp import errors
from brokerd.core.catalog.router import RouteResult
from brokerd.core.confirms import Confirms
from brokerd.core.message import Content, Range
from brokerd.core.unacked import Outstanding
from brokerd.server.messages.pipeline import Target
from brokerd.server.queues.stream import Holder, Settle

#: One or several acks, nacks or rejects of the same sort, and their deliveries.
Settlement = tuple[Settle, list[Outstanding[Holder]]]

#: What one waiting message costs besides its bytes, about.
MESSAGE_OVERHEAD_BYTES = 256


class Waiting(Protocol):
    """Where deliveries that were settled go back to at a rollback."""

    def put_back(self, deliveries: Sequence[Outstanding[Holder]]) -> None:
        """Make them outstanding again."""
        ...


@dataclass(slots=True)
class Publish:
    """A run of checked messages and where they go."""

    target: Target
    result: RouteResult
    contents: list[Content]
    replies: tuple[str, ...]
    #: No queue could deliver it at once, as its publisher wished (R-AE-15).
    is_refused: bool = False


class Transaction:
    """What waits for commit, and, after it, for the queues.

    Invariant: nothing is added while a commit waits for its queues.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._publishes: list[Publish] = []
        self._settlements: list[Settlement] = []
        self._size = 0
        #: Deliveries settled in it.
        self.settlement_count = 0
        #: Numbers the messages of the commit under way; a refused one shows here.
        self.confirms = Confirms()
        self.is_refused = False
        #: From tx.commit until all queues have answered (R-CH-9).
        self.is_committing = False
        self._done: asyncio.Future[None] | None = None

    def publish(self, publish: Publish) -> None:
        """Keep a run of messages until commit; bounded, as no queue has them yet."""
        for content in publish.contents:
            self._size += len(content[1]) + len(content[2]) + MESSAGE_OVERHEAD_BYTES
        if self._size > self._bytes_max:
            raise errors.PreconditionFailed(
                f"transaction is larger than {self._bytes_max} bytes: commit more often"
            )
        self._publishes.append(publish)

    def settle(self, how: Settle, taken: list[Outstanding[Holder]]) -> None:
        """Keep a settlement; its deliveries are outstanding nowhere else meanwhile."""
        self.settlement_count += sum(piece.end - piece.first for piece in taken)
        last = self._settlements[-1] if self._settlements else None
        if last is not None and last[0] is how:
            last[1].extend(taken)
        else:
            self._settlements.append((how, list(taken)))

    @property
    def publish_count(self) -> int:
        """Return how many messages wait for the commit, for listings."""
        return sum(len(publish.contents) for publish in self._publishes)

    def take_publishes(self) -> list[Publish]:
        """Return the messages in order; they wait no more."""
        taken, self._publishes = self._publishes, []
        self._size = 0
        return taken

    def take_settlements(self) -> list[Settlement]:
        """Return the settlements in order; they wait no more."""
        taken, self._settlements = self._settlements, []
        self.settlement_count = 0
        return taken

    def numbers_of(self, holder: Holder) -> list[Range]:
        """Return the message numbers of a consumer that are settled here, and not at the queue."""
        return [
            (piece.number, piece.number + piece.end - piece.first)
            for piece in self.settled()
            if piece.consumer == holder
        ]

    def settled(self) -> list[Outstanding[Holder]]:
        """Return all deliveries that are settled here, and not at their queues."""
        return [piece for _, taken in self._settlements for piece in taken]

    def roll_back(self, unacked: Waiting) -> None:
        """Forget all; settled deliveries are outstanding again with the same tags (R-TX-4)."""
        self.take_publishes()
        for _, taken in self.take_settlements():
            unacked.put_back(taken)

    def answered(self, first: int, count: int, accepted: int) -> None:
        """One queue has taken over the first `accepted` of these, and refused the others."""
        self.confirms.answered(first, count, accepted)
        self.settle_answers()

    def settle_answers(self) -> None:
        """See what the queues have answered so far."""
        _, refused = self.confirms.take()
        if refused:
            self.is_refused = True
        if not self.confirms.outstanding and self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def answers(self) -> None:
        """Wait for all queues of a commit; `abandon` ends it as well."""
        self._done = asyncio.get_running_loop().create_future()
        try:
            self.settle_answers()
            await self._done
        finally:
            self._done = None
            self.is_committing = False

    def abandon(self) -> None:
        """The channel has ended: no commit waits any more (R-TX-6)."""
        self.take_publishes()
        self.take_settlements()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
