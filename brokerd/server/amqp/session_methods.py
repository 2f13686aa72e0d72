"""The AMQP methods of a channel other than publish, ack and get: one function each.

A function answers at once and returns None, or returns the coroutine that does; the session then
lets later events of the channel wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from brokerd.amqp import errors, methods
from brokerd.core import confirms
from brokerd.core.catalog import declare
from brokerd.server.amqp import session_consumers, session_transactions
from brokerd.server.amqp.channel_publishes import ChannelPublishes
from brokerd.server.messages import declarations, reply_to
from brokerd.server.messages.declarations import BindingNamed, Declaring, QueueDeclaration
from brokerd.server.queues.stream import Settle

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]


def _client(session: ChannelPublishes) -> Declaring:
    services, connection = session.services, session.connection
    return Declaring(
        session.objects,
        services.objects,
        services.messages,
        services.replies,
        connection.access,
        services.identity.connection_id(connection.uid),
        f"amqp:{connection.user}",
    )


def _do(
    session: ChannelPublishes,
    client: Declaring,
    plan: declarations.Plan,
    answer: methods.Method | None,
) -> Work | None:
    """Do what was planned and answer; without anything to do, at once."""
    if isinstance(plan, declare.Exists):
        if answer is not None:
            session.send(answer)
        return None
    return _done(session, client, plan, answer)


async def _done(
    session: ChannelPublishes,
    client: Declaring,
    plan: declarations.Plan,
    answer: methods.Method | None,
) -> None:
    await declarations.carry_out(client, plan)
    if answer is not None:
        session.send(answer)


# ---- exchanges ----------------------------------------------------------------------------------


def _exchange_declare(session: ChannelPublishes, method: methods.ExchangeDeclare) -> Work | None:
    client = _client(session)
    plan = declarations.plan_exchange(
        client,
        method.exchange,
        method.type,
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        table=method.arguments,
    )
    return _do(session, client, plan, None if method.nowait else methods.ExchangeDeclareOk())


def _exchange_delete(session: ChannelPublishes, method: methods.ExchangeDelete) -> Work | None:
    client = _client(session)
    plan = declarations.plan_exchange_deletion(client, method.exchange, if_unused=method.if_unused)
    return _do(session, client, plan, None if method.nowait else methods.ExchangeDeleteOk())


def _exchange_bind(session: ChannelPublishes, method: methods.ExchangeBind) -> Work | None:
    client = _client(session)
    plan = declarations.plan_binding(client, _between_exchanges(method))
    return _do(session, client, plan, None if method.nowait else methods.ExchangeBindOk())


def _exchange_unbind(session: ChannelPublishes, method: methods.ExchangeUnbind) -> Work | None:
    client = _client(session)
    plan = declarations.plan_unbinding(client, _between_exchanges(method))
    return _do(session, client, plan, None if method.nowait else methods.ExchangeUnbindOk())


def _between_exchanges(method: methods.ExchangeBind | methods.ExchangeUnbind) -> BindingNamed:
    return BindingNamed(
        method.source, "exchange", method.destination, method.routing_key, method.arguments
    )


# ---- queues -------------------------------------------------------------------------------------


async def _queue_declare(session: ChannelPublishes, method: methods.QueueDeclare) -> None:
    asked = QueueDeclaration(
        method.queue,
        method.passive,
        method.durable,
        method.exclusive,
        method.auto_delete,
        method.arguments,
    )
    owns = partial(_owns, session)
    name, found = await declarations.declare_queue(_client(session), asked, owns)
    if not name.startswith(reply_to.PSEUDO_QUEUE):
        session.last_queue = name
        session.totals.queues_declared += 1
    if not method.nowait:
        session.send(methods.QueueDeclareOk(name, found.ready, found.consumers))


def _owns(session: ChannelPublishes) -> None:
    session.connection.has_exclusive = True


def _queue_bind(session: ChannelPublishes, method: methods.QueueBind) -> Work | None:
    client = _client(session)
    plan = declarations.plan_binding(client, _to_queue(session, method))
    return _do(session, client, plan, None if method.nowait else methods.QueueBindOk())


def _queue_unbind(session: ChannelPublishes, method: methods.QueueUnbind) -> Work | None:
    client = _client(session)
    plan = declarations.plan_unbinding(client, _to_queue(session, method))
    return _do(session, client, plan, methods.QueueUnbindOk())


def _to_queue(
    session: ChannelPublishes, method: methods.QueueBind | methods.QueueUnbind
) -> BindingNamed:
    queue, key = session_consumers.named(session, method.queue), method.routing_key
    if not method.queue and not key:
        key = queue
    return BindingNamed(method.exchange, "queue", queue, key, method.arguments)


async def _queue_delete(session: ChannelPublishes, method: methods.QueueDelete) -> None:
    name = session_consumers.named(session, method.queue)
    with session.cancels_later():
        count = await declarations.delete_queue(
            _client(session), name, if_unused=method.if_unused, if_empty=method.if_empty
        )
        if not method.nowait:
            session.send(methods.QueueDeleteOk(count))


async def _queue_purge(session: ChannelPublishes, method: methods.QueuePurge) -> None:
    queue = session_consumers.use_queue(session, method.queue)
    count = await declarations.purge_queue(_client(session), queue)
    if not method.nowait:
        session.send(methods.QueuePurgeOk(count))


# ---- settlements and modes ----------------------------------------------------------------------


def _basic_nack(session: ChannelPublishes, method: methods.BasicNack) -> None:
    how = Settle.NACK if method.requeue else Settle.DISCARD
    session.settle_tag(how, method.delivery_tag, method.multiple)


def _basic_reject(session: ChannelPublishes, method: methods.BasicReject) -> None:
    how = Settle.REJECT if method.requeue else Settle.DISCARD_REJECTED
    session.settle_tag(how, method.delivery_tag, False)


def _basic_recover(session: ChannelPublishes, method: methods.BasicRecover) -> None:
    if not method.requeue:
        raise errors.NotImplementedByServer("requeue=false")
    session.recover()
    session.send(methods.BasicRecoverOk())


def _basic_recover_async(session: ChannelPublishes, method: methods.BasicRecoverAsync) -> None:
    if not method.requeue:
        raise errors.NotImplementedByServer("requeue=false")
    session.recover()


def _confirm_select(session: ChannelPublishes, method: methods.ConfirmSelect) -> None:
    if session.tx is not None:
        # R-CH-8
        raise errors.PreconditionFailed("cannot switch from tx to confirm mode")
    if session.confirms is None:
        session.confirms = confirms.Confirms()
        session.confirm_clock = session.counters.confirm_clock(
            session.connection.vhost, session.connection.user, session.totals
        )
    if not method.nowait:
        session.send(methods.ConfirmSelectOk())


def _channel_flow(session: ChannelPublishes, method: methods.ChannelFlow) -> None:
    if not method.active:
        raise errors.NotImplementedByServer("active=false")
    session.send(methods.ChannelFlowOk(True))


def _access_request(session: ChannelPublishes, _: methods.AccessRequest) -> None:
    session.send(methods.AccessRequestOk(1))


def _answer_of_client(_: ChannelPublishes, __: methods.Method) -> None:
    """flow-ok and cancel-ok need nothing."""


def _unexpected(_: ChannelPublishes, method: methods.Method) -> None:
    raise errors.CommandInvalid(f"method {method.NAME} is not for a server")


HANDLERS: dict[type[methods.Method], Callable[[ChannelPublishes, Any], Work | None]] = {
    methods.ExchangeDeclare: _exchange_declare,
    methods.ExchangeDelete: _exchange_delete,
    methods.ExchangeBind: _exchange_bind,
    methods.ExchangeUnbind: _exchange_unbind,
    methods.QueueDeclare: _queue_declare,
    methods.QueueBind: _queue_bind,
    methods.QueueUnbind: _queue_unbind,
    methods.QueueDelete: _queue_delete,
    methods.QueuePurge: _queue_purge,
    methods.BasicQos: session_consumers.qos,
    methods.BasicConsume: session_consumers.consume,
    methods.BasicCancel: session_consumers.cancel,
    methods.BasicNack: _basic_nack,
    methods.BasicReject: _basic_reject,
    methods.BasicRecover: _basic_recover,
    methods.BasicRecoverAsync: _basic_recover_async,
    methods.ConfirmSelect: _confirm_select,
    methods.ChannelFlow: _channel_flow,
    methods.ChannelFlowOk: _answer_of_client,
    methods.BasicCancelOk: _answer_of_client,
    methods.AccessRequest: _access_request,
    methods.TxSelect: session_transactions.select,
    methods.TxCommit: session_transactions.commit,
    methods.TxRollback: session_transactions.roll_back,
}


def handler_of(kind: type[methods.Method]) -> Callable[[ChannelPublishes, Any], Work | None]:
    """Return what handles a method; a client must not send the others."""
    return HANDLERS.get(kind, _unexpected)
