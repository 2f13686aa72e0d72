"""basic.publish with `immediate` as RabbitMQ before 3.0 had it (R-AE-15, immediate.emulate).

The queues' leaders are asked before anything is sent, so it is an emulation: between the answer and
the message a consumer may have become busy, and the message then waits in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.amqp import properties
from brokerd.amqp.values import Table
from brokerd.core.catalog import policy
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.server.amqp.channel_publishes import ChannelPublishes
from brokerd.server.amqp.transactions import Publish
from brokerd.server.catalog.catalog_writer import QueueStuck
from brokerd.server.queues.stream import UNNUMBERED

if TYPE_CHECKING:
    from brokerd.server.messages.pipeline import Target


async def publish(
    session: ChannelPublishes, target: Target, items: list[tuple[bytes, bytes, bytes]]
) -> None:
    """Publish a run of messages, one after the other."""
    for _, header, body in items:
        content, result, replies = session.check(target, header, body)
        if replies or not result.queues:
            _send(session, target, result, content, replies, is_refused=False)
            continue
        result = await _ready(session, result)
        if not result.queues:
            result = await _alternate(session, target, result, header)
        if session.has_ended:
            return
        _send(session, target, result, content, (), is_refused=not result.queues)
    session.stream.flush()


def _send(
    session: ChannelPublishes,
    target: Target,
    result: RouteResult,
    content: Content,
    replies: tuple[str, ...],
    *,
    is_refused: bool,
) -> None:
    if session.tx is not None:
        session.tx.publish(Publish(target, result, [content], replies, is_refused))
        return
    tracker = session.confirms
    number = UNNUMBERED if tracker is None else tracker.published()
    session.send_out(target, result, [content], number, replies, tracker, is_refused=is_refused)


async def _ready(session: ChannelPublishes, result: RouteResult) -> RouteResult:
    """Return the route without the queues that have no consumer with room.

    Those whose home member is down have none.
    """
    takers = []
    for queue in result.queues:
        try:
            if await session.services.queue_client.has_takers(queue.uid):
                takers.append(queue)
        except QueueStuck:
            continue
    return result.with_queues(takers)


async def _alternate(
    session: ChannelPublishes, target: Target, refused: RouteResult, header: bytes
) -> RouteResult:
    """All queues have refused: the alternate exchange is asked, if the exchange has one."""
    exchange = refused.exchange
    if exchange is None or refused.alternates:
        return refused
    name = policy.effective_exchange(session.catalog.view, exchange).alternate_exchange
    if name is None:
        return refused
    table: Table = properties.headers(header) if properties.has_headers(header) else {}
    vhost, key = session.connection.vhost, target.method.routing_key
    found = session.messages.router.route(vhost, name, key, table, (), header)
    if found.exchange is None:
        return refused
    ready = await _ready(session, found)
    ready.alternates = ((exchange.name, name), *found.alternates)
    return ready
