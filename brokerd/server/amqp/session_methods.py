"""The AMQP methods of a channel other than publish, ack and get: one function each.

A function answers at once and returns None, or returns the coroutine that does; the session then
lets later events of the channel wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from brokerd.amqp import errors, methods, values
from brokerd.core import confirms
from brokerd.core.catalog import arguments, catalog_commands, declare, refusals
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue.client_shapes import Counts
from brokerd.server.amqp import session_consumers, session_transactions
from brokerd.server.amqp.channel_publishes import ChannelPublishes
from brokerd.server.catalog import audit, topology
from brokerd.server.catalog.catalog_writer import QueueStuck
from brokerd.server.messages import message_checks, reply_to
from brokerd.server.queues.stream import Settle

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]


def _json(table: values.Table) -> dict[str, Any]:
    converted: dict[str, Any] = arguments.to_json(table)
    return converted


def _cause(session: ChannelPublishes) -> str:
    return f"amqp:{session.connection.user}"


async def _write(session: ChannelPublishes, operation: dict[str, Any]) -> dict[str, Any]:
    """Propose to the catalog; what it refuses closes the channel as AMQP says."""
    reply = await session.objects.write(operation)
    _check_reply(reply)
    return reply


def _check_reply(reply: dict[str, Any]) -> None:
    if reply["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED):
        return
    code = reply["amqp"] or 406
    raise message_checks.refuse(Refused(code, reply["text"], code >= 500))


# ---- exchanges ----------------------------------------------------------------------------------


def _exchange_declare(session: ChannelPublishes, method: methods.ExchangeDeclare) -> Work | None:
    services, connection = session.services, session.connection
    plan = declare.declare_exchange(
        services.catalog.view,
        services.profile,
        connection.access,
        method.exchange,
        method.type,
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        exchange_arguments=_json(method.arguments),
    )
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    answer = None if method.nowait else methods.ExchangeDeclareOk()
    return _do(session, plan, answer)


def _do(
    session: ChannelPublishes,
    plan: declare.Exists | declare.Create | declare.Delete,
    answer: methods.Method | None,
) -> Work | None:
    """Do what was planned and answer; without anything to do, at once."""
    if isinstance(plan, declare.Exists):
        if answer is not None:
            session.send(answer)
        return None
    return _do_write(session, plan, answer)


async def _do_write(
    session: ChannelPublishes, plan: declare.Create | declare.Delete, answer: methods.Method | None
) -> None:
    cause = _cause(session)
    if isinstance(plan, declare.Create):
        operation = catalog_commands.put(
            plan.kind, plan.vhost, plan.name, plan.spec, cause=cause, declare=True
        )
        await _write(session, operation)
    else:
        record = plan.record
        reply = await session.objects.write(
            catalog_commands.delete(record.kind, record.vhost, record.name, cause=cause)
        )
        # Somebody else was first: it is gone, as asked for.
        if reply["code"] != catalog_commands.NOT_FOUND:
            _check_reply(reply)
    if answer is not None:
        session.send(answer)


def _exchange_delete(session: ChannelPublishes, method: methods.ExchangeDelete) -> Work | None:
    plan = declare.delete_exchange(
        session.catalog.view,
        session.connection.access,
        method.exchange,
        method.if_unused,
        session.services.profile,
    )
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    if isinstance(plan, declare.Delete) and plan.record.is_protected():
        raise errors.AccessRefused(
            f"exchange '{method.exchange}' in vhost '{session.connection.vhost}' is managed by "
            "an operator and may not be deleted"
        )
    return _do(session, plan, None if method.nowait else methods.ExchangeDeleteOk())


def _bind(
    session: ChannelPublishes,
    source: str,
    kind: str,
    destination: str,
    routing_key: str,
    table: values.Table,
    answer: methods.Method | None,
) -> Work | None:
    services, connection = session.services, session.connection
    plan = declare.bind(
        view=services.catalog.view,
        profile=services.profile,
        access=connection.access,
        source=source,
        destination_kind=kind,
        destination=destination,
        routing_key=routing_key,
        binding_arguments=_json(table),
        connection=services.identity.connection_id(connection.uid),
    )
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    return _do(session, plan, answer)


def _unbind(
    session: ChannelPublishes,
    source: str,
    kind: str,
    destination: str,
    routing_key: str,
    table: values.Table,
    answer: methods.Method | None,
) -> Work | None:
    services, connection = session.services, session.connection
    plan = declare.unbind(
        view=services.catalog.view,
        access=connection.access,
        source=source,
        destination_kind=kind,
        destination=destination,
        routing_key=routing_key,
        binding_arguments=_json(table),
        connection=services.identity.connection_id(connection.uid),
    )
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    return _do(session, plan, answer)


def _exchange_bind(session: ChannelPublishes, method: methods.ExchangeBind) -> Work | None:
    answer = None if method.nowait else methods.ExchangeBindOk()
    return _bind(
        session,
        method.source,
        "exchange",
        method.destination,
        method.routing_key,
        method.arguments,
        answer,
    )


def _exchange_unbind(session: ChannelPublishes, method: methods.ExchangeUnbind) -> Work | None:
    answer = None if method.nowait else methods.ExchangeUnbindOk()
    return _unbind(
        session,
        method.source,
        "exchange",
        method.destination,
        method.routing_key,
        method.arguments,
        answer,
    )


# ---- queues -------------------------------------------------------------------------------------


def _queue_declare(session: ChannelPublishes, method: methods.QueueDeclare) -> Work:
    if method.queue.startswith(reply_to.PSEUDO_QUEUE):
        return _reply_queue_declared(session, method)
    services, connection = session.services, session.connection
    name = method.queue
    plan = declare.declare_queue(
        services.catalog.view,
        services.profile,
        connection.access,
        name,
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        queue_arguments=_json(method.arguments),
        connection=services.identity.connection_id(connection.uid),
        generated_name=session_consumers.random_name("amq.gen-"),
        node_default_type=services.config.queues.default_type,
    )
    if isinstance(plan, Refused):
        queue = services.catalog.view.queue(connection.vhost, name)
        is_locked = plan.code == refusals.RESOURCE_LOCKED and not method.passive
        if is_locked and queue is not None and _owner_is_elsewhere(session, queue):
            return _declare_locked(session, queue, plan, method)
        raise message_checks.refuse(plan)
    return _queue_declared(session, plan, method)


def _owner_is_elsewhere(session: ChannelPublishes, queue: Queue) -> bool:
    owner = queue.exclusive_owner
    return owner is not None and owner.node != session.services.identity.node


async def _declare_locked(
    session: ChannelPublishes, queue: Queue, refused: Refused, method: methods.QueueDeclare
) -> None:
    """The queue's owner is a connection of another member; perhaps the same client, which lost it
    with the member.  The queue is locked if that member answers, and made anew if it is down.
    """
    try:
        if await topology.counts(session.services.objects, queue) is not None:
            raise message_checks.refuse(refused)
    except QueueStuck:
        if session.services.catalog.view.usable_queue(queue.vhost, queue.name) is queue:
            raise
    await _queue_declare(session, method)


async def _queue_declared(
    session: ChannelPublishes, plan: declare.Exists | declare.Create, method: methods.QueueDeclare
) -> None:
    services = session.services
    if isinstance(plan, declare.Create):
        for warning in plan.warnings:
            services.messages.warn(warning)
        if plan.exclusive_owner is not None:
            session.connection.has_exclusive = True
        reply = await topology.create_queue(
            session.objects,
            plan.vhost,
            plan.name,
            plan.spec,
            cause=_cause(session),
            declare=True,
            exclusive_owner=plan.exclusive_owner,
        )
        _check_reply(reply)
        name = plan.name
    else:
        assert isinstance(plan.record, Queue)
        name = plan.record.name
    vhost = session.connection.vhost
    queue = services.catalog.view.queue(vhost, name)
    try:
        found = None if queue is None else await topology.counts(services.objects, queue)
    except QueueStuck:
        if services.catalog.view.usable_queue(vhost, name) is not None:
            raise
        # It went down with its home member meanwhile.
        found = None
    now = services.catalog.view.usable_queue(vhost, name)
    if found is None and isinstance(plan, declare.Exists) and now is not plan.record:
        # It ended between the check and here: as if it had not been there.
        await _queue_declare(session, method)
        return
    session.last_queue = name
    session.totals.queues_declared += 1
    if not method.nowait:
        found = found or Counts(0, 0)
        holders = found.holders if services.profile.quorum_holders_are_consumers else 0
        session.send(methods.QueueDeclareOk(name, found.ready, found.consumers + holders))


async def _reply_queue_declared(session: ChannelPublishes, method: methods.QueueDeclare) -> None:
    """R-DRT-3: it says whether someone is there, passive or not."""
    name, vhost = method.queue, session.connection.vhost
    if name != reply_to.PSEUDO_QUEUE and not await session.services.replies.exists(vhost, name):
        raise errors.NotFound(f"no queue '{name}' in vhost '{vhost}'")
    if not method.nowait:
        session.send(methods.QueueDeclareOk(name, 0, 1))


def _queue_bind(session: ChannelPublishes, method: methods.QueueBind) -> Work | None:
    queue, key = session_consumers.named(session, method.queue), method.routing_key
    if not method.queue and not key:
        key = queue
    answer = None if method.nowait else methods.QueueBindOk()
    return _bind(session, method.exchange, "queue", queue, key, method.arguments, answer)


def _queue_unbind(session: ChannelPublishes, method: methods.QueueUnbind) -> Work | None:
    queue, key = session_consumers.named(session, method.queue), method.routing_key
    if not method.queue and not key:
        key = queue
    answer = methods.QueueUnbindOk()
    return _unbind(session, method.exchange, "queue", queue, key, method.arguments, answer)


def _queue_delete(session: ChannelPublishes, method: methods.QueueDelete) -> Work | None:
    services, connection = session.services, session.connection
    name = session_consumers.named(session, method.queue)
    plan = declare.delete_queue(
        services.catalog.view,
        connection.access,
        name,
        if_unused=method.if_unused,
        if_empty=method.if_empty,
        connection=services.identity.connection_id(connection.uid),
    )
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    if isinstance(plan, declare.Exists):
        if not method.nowait:
            session.send(methods.QueueDeleteOk(0))
        return None
    assert isinstance(plan.record, Queue)
    return _queue_deleted(session, plan.record, method)


async def _queue_deleted(
    session: ChannelPublishes, queue: Queue, method: methods.QueueDelete
) -> None:
    with session.cancels_later():
        outcome = await topology.delete_queue(
            session.objects,
            queue,
            if_empty=method.if_empty,
            if_unused=method.if_unused,
            cause=_cause(session),
        )
        if not outcome.done:
            is_used = method.if_unused and outcome.consumers
            raise errors.PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' "
                f"{'in use' if is_used else 'not empty'}"
            )
        if not method.nowait:
            session.send(methods.QueueDeleteOk(outcome.messages))


def _queue_purge(session: ChannelPublishes, method: methods.QueuePurge) -> Work:
    return _purged(session, session_consumers.use_queue(session, method.queue), method.nowait)


async def _purged(session: ChannelPublishes, queue: Queue, nowait: bool) -> None:
    count = await session.services.queue_client.purge(queue.uid)
    session.objects.note(audit.purge(queue, count))
    if not nowait:
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
