"""basic.publish with `immediate` as RabbitMQ before 3.0 had it (R-AE-15, immediate.emulate).

The queues' leaders are asked before anything is sent, so it is an emulation: between the answer and
the message a consumer may have become busy, and the message then waits in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.amqp import properties
from brokerd.amqp.values import Table
from brokerd.core import policy, queue_commands
from brokerd.core.message import Content
from brokerd.core.router import RouteResult
from brokerd.server import topology
from brokerd.server.publishing import UNNUMBERED
from brokerd.server.transactions import Publish

if TYPE_CHECKING:
    from brokerd.server.session import PublishTarget, Session


async def publish(
    session: Session, target: PublishTarget, items: list[tuple[bytes, bytes, bytes]]
) -> None:
    """Publish a run of messages, one after the other."""
    for _, header, body in items:
        checked = session.check(target, header)
        kept = session.broker.annotate(checked.annotations)
        content = (target.route, checked.header, body, kept)
        if checked.replies or not checked.result.queues:
            _send(session, target, checked.result, content, checked.replies, is_refused=False)
            continue
        result = await _ready(session, checked.result)
        if not result.queues:
            result = await _alternate(session, target, result, header)
        if session.has_ended:
            return
        _send(session, target, result, content, (), is_refused=not result.queues)
    session.publisher.flush()


def _send(
    session: Session,
    target: PublishTarget,
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


async def _ready(session: Session, result: RouteResult) -> RouteResult:
    """Return the route without the queues that have no consumer with room."""
    ready = RouteResult(result.exchange)
    ready.alternates = result.alternates
    takers = []
    for queue in result.queues:
        raw = await topology.ask(session.broker, queue.uid, queue_commands.encode_tick())
        if raw is not None and queue_commands.decode_reply(raw).get("takers"):
            takers.append(queue)
    ready.queues = tuple(takers)
    return ready


async def _alternate(
    session: Session, target: PublishTarget, refused: RouteResult, header: bytes
) -> RouteResult:
    """All queues have refused: the alternate exchange is asked, if the exchange has one."""
    broker = session.broker
    exchange = refused.exchange
    if exchange is None or refused.alternates:
        return refused
    name = policy.effective_exchange(broker.view, exchange).alternate_exchange
    if name is None:
        return refused
    table: Table = properties.headers(header) if properties.has_headers(header) else {}
    found = broker.router.route(session.connection.vhost, name, target.method.routing_key, table)
    if found.exchange is None:
        return refused
    ready = await _ready(session, found)
    ready.alternates = ((exchange.name, name), *found.alternates)
    return ready
