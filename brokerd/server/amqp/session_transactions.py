"""The AMQP methods tx.select, tx.commit and tx.rollback (R-TX, R-CH-8, -9).

As session_methods.py, whose table names these functions.  A transaction covers publishes and
settlements of one channel (R-TX-1).  Publishes are checked and routed when they come and delivered
at commit (R-TX-2, R-AE-14); commit-ok waits until all their queues have taken them over.  It is not
atomic across queues, as in RabbitMQ (R-TX-3).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from brokerd.amqp import errors, methods
from brokerd.core.catalog.router import RouteResult
from brokerd.server.amqp.channel_publishes import ChannelPublishes
from brokerd.server.amqp.transactions import Publish, Transaction


def _of(session: ChannelPublishes) -> Transaction:
    if session.tx is None:
        # R-CH-8
        raise errors.PreconditionFailed("channel is not transactional")
    return session.tx


def select(session: ChannelPublishes, _: methods.TxSelect) -> None:
    """tx.select; again is fine (R-CH-8)."""
    if session.confirms is not None:
        raise errors.PreconditionFailed("cannot switch from confirm to tx mode")
    if session.tx is None:
        session.tx = Transaction(session.services.config.limits.transaction_bytes)
    session.send(methods.TxSelectOk())


def commit(session: ChannelPublishes, _: methods.TxCommit) -> Coroutine[Any, Any, None] | None:
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
    session.stream.flush()
    session.commit_settlements()
    tx.settle_answers()
    if not tx.confirms.outstanding:
        session.send(methods.TxCommitOk())
        return None
    tx.is_committing = True
    return _committed(session, tx)


def _check_rights(session: ChannelPublishes, publishes: Sequence[Publish]) -> None:
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


def _still_there(session: ChannelPublishes, result: RouteResult) -> RouteResult:
    """R-AE-14: routed at the publish; what was deleted before the commit gets nothing, and a
    mandatory message with nowhere left to go is returned.
    """
    queue_of = session.services.queues.queue_of
    if all(queue_of(queue.uid) is not None for queue in result.queues):
        return result
    return result.with_queues(queue for queue in result.queues if queue_of(queue.uid) is not None)


async def _committed(session: ChannelPublishes, tx: Transaction) -> None:
    await tx.answers()
    if session.has_ended:
        return
    if tx.is_refused:
        raise errors.PreconditionFailed("partial tx completion")
    session.send(methods.TxCommitOk())


def roll_back(session: ChannelPublishes, _: methods.TxRollback) -> None:
    """tx.rollback."""
    _of(session).roll_back(session.unacked)
    session.send(methods.TxRollbackOk())
