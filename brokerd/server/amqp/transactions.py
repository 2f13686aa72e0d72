"""tx.select, tx.commit, tx.rollback: what a channel collects until it says so (R-TX, R-CH-8, -9).

A transaction covers publishes and settlements of one channel (R-TX-1).  Publishes are checked and
routed when they come and delivered at commit (R-TX-2, R-AE-14); commit-ok waits until all their
queues have taken them over.  It is not atomic across queues, as in RabbitMQ (R-TX-3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.amqp import errors, methods
from brokerd.core.catalog.router import RouteResult
from brokerd.core.confirms import Confirms
from brokerd.core.message import Content, Range
from brokerd.core.queue import queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.unacked import Outstanding
from brokerd.server.messages.pipeline import Target

if TYPE_CHECKING:
    from brokerd.server.amqp.session import Session

Holder = tuple[int, ConsumerId]
#: (kind, cause, deliveries): one or several acks, nacks or rejects of the same sort.
Settlement = tuple[queue_commands.Kind, int, list[Outstanding[Holder]]]

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
        """Keep a run of messages until commit; bounded, for nobody else holds them."""
        for content in publish.contents:
            self._size += len(content[1]) + len(content[2]) + MESSAGE_OVERHEAD_BYTES
        if self._size > self._bytes_max:
            raise errors.PreconditionFailed(
                f"transaction is larger than {self._bytes_max} bytes: commit more often"
            )
        self._publishes.append(publish)

    def settle(
        self, kind: queue_commands.Kind, cause: int, taken: list[Outstanding[Holder]]
    ) -> None:
        """Keep a settlement; its deliveries are outstanding for nobody else meanwhile."""
        self.settlement_count += sum(piece.end - piece.first for piece in taken)
        last = self._settlements[-1] if self._settlements else None
        if last is not None and last[:2] == (kind, cause):
            last[2].extend(taken)
        else:
            self._settlements.append((kind, cause, list(taken)))

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
            for _, _, taken in self._settlements
            for piece in taken
            if piece.consumer == holder
        ]

    def roll_back(self, unacked: Waiting) -> None:
        """Forget all; settled deliveries are outstanding again with the same tags (R-TX-4)."""
        self.take_publishes()
        for _, _, taken in self.take_settlements():
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
        """The channel has ended: nobody waits any more (R-TX-6)."""
        self.take_publishes()
        self.take_settlements()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


def _of(session: Session) -> Transaction:
    if session.tx is None:
        # R-CH-8
        raise errors.PreconditionFailed("channel is not transactional")
    return session.tx


def select(session: Session, _: methods.TxSelect) -> None:
    """tx.select; again is fine (R-CH-8)."""
    if session.confirms is not None:
        raise errors.PreconditionFailed("cannot switch from confirm to tx mode")
    if session.tx is None:
        session.tx = Transaction(session.services.config.limits.transaction_bytes)
    session.send(methods.TxSelectOk())


def commit(session: Session, _: methods.TxCommit) -> Coroutine[Any, Any, None] | None:
    """tx.commit: returns first, then what the queues say, then commit-ok (R-TX-2, R-TX-3)."""
    tx = _of(session)
    tx.is_refused = False
    publishes = tx.take_publishes()
    _check_rights(session, publishes)
    for publish in publishes:
        first = tx.confirms.published(len(publish.contents))
        session.send_out(
            publish.target,
            _still_there(session, publish.result),
            publish.contents,
            first,
            publish.replies,
            tx.confirms,
            is_refused=publish.is_refused,
        )
    session.publisher.flush()
    session.commit_settlements()
    tx.settle_answers()
    if not tx.confirms.outstanding:
        session.send(methods.TxCommitOk())
        return None
    tx.is_committing = True
    return _committed(session, tx)


def _check_rights(session: Session, publishes: Sequence[Publish]) -> None:
    """Rights that were taken away since the publish refuse the whole commit (revocation.py)."""
    access = session.connection.access
    for publish in publishes:
        target = publish.target
        if target.revision == session.catalog.topology_revision:
            continue
        method = target.method
        refused = access.check("write", "exchange", method.exchange)
        if refused is None:
            exchange = access.view.exchange(access.vhost, method.exchange)
            refused = access.check_topic("write", exchange, (method.routing_key,))
        if refused is not None:
            raise errors.AccessRefused(refused.text)


def _still_there(session: Session, result: RouteResult) -> RouteResult:
    """R-AE-14: routed at the publish; what was deleted before the commit gets nothing, and a
    mandatory message with nowhere left to go is returned.
    """
    queue_of = session.services.queues.queue_of
    if all(queue_of(queue.uid) is not None for queue in result.queues):
        return result
    return result.with_queues(queue for queue in result.queues if queue_of(queue.uid) is not None)


async def _committed(session: Session, tx: Transaction) -> None:
    await tx.answers()
    if session.has_ended:
        return
    if tx.is_refused:
        raise errors.PreconditionFailed("partial tx completion")
    session.send(methods.TxCommitOk())


def roll_back(session: Session, _: methods.TxRollback) -> None:
    """tx.rollback."""
    _of(session).roll_back(session.unacked)
    session.send(methods.TxRollbackOk())
