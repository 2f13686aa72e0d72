"""The AMQP methods of a channel that are about consuming: qos, consume, cancel.

As session_methods.py, whose table names these functions: each answers at once and returns None, or
returns the coroutine that does.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from brokerd.amqp import errors, methods, values
from brokerd.cluster.errors import GroupGone
from brokerd.core.catalog import declare, names
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId
from brokerd.server.amqp.channel_publishes import ChannelPublishes
from brokerd.server.amqp.shared_prefetch import SharedPrefetch
from brokerd.server.catalog import topology
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.messages import declarations, message_checks, reply_to
from brokerd.server.queues.deliveries import LocalConsumer

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]


# ---- prefetch -----------------------------------------------------------------------------------


def qos(session: ChannelPublishes, method: methods.BasicQos) -> None:
    """basic.qos (R-QOS-1..3)."""
    if method.prefetch_size:
        raise errors.NotImplementedByServer(f"prefetch_size!=0 ({method.prefetch_size})")
    # First the answer, then what there is room for now.
    session.send(methods.BasicQosOk())
    if not method.global_qos or session.services.profile.qos_global == "deny":
        session.prefetch = method.prefetch_count
    else:
        _share(session, method.prefetch_count)


def _share(session: ChannelPublishes, limit: int) -> None:
    """Set the channel's limit; 0 lifts it."""
    shared = None
    if limit:
        shared = SharedPrefetch(limit)
        shared.exempt |= {
            (consumer.uid, consumer.id)
            for consumer in session.consumers.values()
            if consumer.has_counts
        }
        identity = session.services.identity
        getter = ConsumerId(identity.node, identity.incarnation, session.uid, "")
        shared.exempt |= {(uid, getter) for uid in session.groups}
    session.share_prefetch(shared)
    for consumer in session.consumers.values():
        if not consumer.no_ack and not consumer.has_counts:
            session.services.queue_client.change_consumer(
                consumer.uid, _checkout(session, consumer)
            )


def _queue_prefetch(session: ChannelPublishes, consumer: LocalConsumer) -> int:
    """Return how much the queue may hand out: no more than the channel could ever pass on."""
    own, shared = consumer.prefetch, session.shared
    if shared is None or consumer.no_ack or consumer.has_counts:
        return own
    return min(own or shared.limit, shared.limit)


# ---- consume and cancel -------------------------------------------------------------------------


def consume(session: ChannelPublishes, method: methods.BasicConsume) -> Work | None:
    """basic.consume (R-CS-1, R-CS-5, R-DRT-1)."""
    tag = method.consumer_tag or declarations.random_name("amq.ctag-")
    reply = session.reply_consumer
    if tag in session.consumers or (reply is not None and reply.tag == tag):
        raise errors.NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if method.queue == reply_to.PSEUDO_QUEUE:
        _await_replies(session, method, tag)
        return None
    limit = session.services.config.limits.consumers_per_channel
    if len(session.consumers) >= limit:
        raise errors.NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    queue = use_queue(session, method.queue)
    resource = names.resource("queue", queue.vhost, queue.name)
    priority = _check_arguments(session, method.arguments, resource, queue.type)
    has_counts = queue.type == "quorum"
    if has_counts and session.shared is not None:
        raise errors.NotImplementedByServer(f"{resource} does not support global qos")
    services = session.services
    consumer = LocalConsumer(
        id=ConsumerId(services.identity.node, services.identity.incarnation, session.uid, tag),
        uid=queue.uid,
        vhost=queue.vhost,
        queue=queue.name,
        sink=session,
        no_ack=method.no_ack,
        prefetch=session.consumer_prefetch(method.no_ack),
        priority=priority,
        exclusive=method.exclusive,
        user=session.connection.user,
        has_counts=has_counts,
    )
    timeout_ms = _own_timeout_ms(session, method.arguments, queue)
    session.consumers[tag] = consumer
    session.groups.add(queue.uid)
    # Frames must be in order: consume-ok goes out before the first delivery, which the session
    # holds back until then.
    consumer.is_held = True
    services.deliveries.add(consumer)
    return _consuming(session, consumer, method.nowait, timeout_ms)


#: What consumers of streams say; RabbitMQ 3.10.8 knows the first only (tried; R-CS-5).
_STREAM_ARGUMENTS = ("x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered")


def _check_arguments(
    session: ChannelPublishes, table: values.Table, resource: str, queue_type: str
) -> int:
    """Return x-priority; what else a consumer may say must have the right type (R-CS-4, R-CS-5)."""
    priority = table.get("x-priority", 0)
    if type(priority) is not int:
        # R-CS-4
        raise errors.PreconditionFailed(
            f"invalid arg 'x-priority' for {resource}: "
            f'"expected integer, got {values.type_name(priority)}"'
        )
    stream_arguments = session.services.profile.queues_stream_arguments
    for argument in _STREAM_ARGUMENTS:
        if argument not in table:
            continue
        if argument == "x-stream-offset" or stream_arguments == "3.13":
            raise errors.PreconditionFailed(
                f"invalid arg '{argument}' for {resource} of queue type rabbit_{queue_type}_queue"
            )
        if stream_arguments == "warn":
            session.services.messages.warn(
                f"a consumer of {resource} has an argument without effect: {argument} (of streams)"
            )
    # There are no mirrored queues to fail over from: known, and without effect.
    failover = table.get("x-cancel-on-ha-failover", False)
    if type(failover) is not bool:
        if not session.services.profile.queues_idle_values:
            raise _wrong_type("x-cancel-on-ha-failover", resource, failover)
        session.services.messages.warn(
            f"a consumer of {resource} has an argument without effect: x-cancel-on-ha-failover"
        )
    return priority


def _wrong_type(argument: str, resource: str, value: Any) -> errors.PreconditionFailed:
    kind = values.type_name(value)
    return errors.PreconditionFailed(
        f"invalid arg '{argument}' for {resource}: {{unacceptable_type,{kind}}}"
    )


def _own_timeout_ms(session: ChannelPublishes, table: values.Table, queue: Queue) -> int | None:
    """R-QQ-22, R-CS-5: where the queue watches over the time."""
    timeout_ms = table.get("x-consumer-timeout")
    profile = session.services.profile
    if timeout_ms is None or profile.consumer_timeout_scope != "queue":
        return None
    resource = names.resource("queue", queue.vhost, queue.name)
    if queue.type != "quorum" and not profile.queues_classic_consumer_timeout:
        raise errors.PreconditionFailed(
            f"invalid arg 'x-consumer-timeout' for {resource} of queue type rabbit_classic_queue"
        )
    if type(timeout_ms) is not int:
        raise errors.PreconditionFailed(
            f"invalid arg 'x-consumer-timeout' for {resource}: "
            f'"expected integer, got {values.type_name(timeout_ms)}"'
        )
    if timeout_ms < 0:
        raise errors.PreconditionFailed(
            f"invalid arg 'x-consumer-timeout' for {resource}: {{value_negative,{timeout_ms}}}"
        )
    return timeout_ms


def _await_replies(session: ChannelPublishes, method: methods.BasicConsume, tag: str) -> None:
    """R-DRT-1."""
    if not method.no_ack:
        raise errors.PreconditionFailed("reply consumer cannot acknowledge")
    if session.reply_consumer is not None:
        raise errors.PreconditionFailed("reply consumer already set")
    name = session.services.replies.open(session.uid, session.connection.vhost, session)
    session.reply_consumer = reply_to.ReplyConsumer(tag, name)
    if not method.nowait:
        session.send(methods.BasicConsumeOk(tag))


def _checkout(
    session: ChannelPublishes, consumer: LocalConsumer, timeout_ms: int | None = None
) -> Checkout:
    return Checkout(
        consumer=consumer.id,
        prefetch=_queue_prefetch(session, consumer),
        no_ack=False,
        exclusive=consumer.exclusive,
        priority=consumer.priority,
        user=consumer.user,
        timeout_ms=timeout_ms,
        client=session.client,
    )


async def _consuming(
    session: ChannelPublishes, consumer: LocalConsumer, nowait: bool, timeout_ms: int | None
) -> None:
    tag = consumer.id.tag
    try:
        checkout = _checkout(session, consumer, timeout_ms)
        refused = await session.services.queue_client.check_out(consumer.uid, checkout)
        if refused is not None:
            resource = f"queue '{consumer.queue}' in vhost '{consumer.vhost}'"
            raise message_checks.machine_refusal(refused, resource)
        refused = _read_refused(session, consumer)
        if refused is not None:
            # Taken away while the queue was asked.
            raise message_checks.refuse(refused)
    except GroupGone as gone:
        _forget(session, consumer)
        text = f"no queue '{consumer.queue}' in vhost '{consumer.vhost}'"
        raise errors.NotFound(text) from gone
    except errors.ProtocolError:
        _forget(session, consumer)
        raise
    if not nowait:
        session.send(methods.BasicConsumeOk(tag))
    session.release_consumer(consumer)


def _forget(session: ChannelPublishes, consumer: LocalConsumer) -> None:
    session.consumers.pop(consumer.id.tag, None)
    session.services.deliveries.remove(consumer.id)


def cancel(session: ChannelPublishes, method: methods.BasicCancel) -> Work | None:
    """basic.cancel (R-CS-3)."""
    tag = method.consumer_tag
    answer = None if method.nowait else methods.BasicCancelOk(tag)
    if session.reply_consumer is not None and session.reply_consumer.tag == tag:
        session.reply_consumer = None
        session.services.replies.close(session.uid)
    consumer = session.consumers.pop(tag, None)
    if consumer is None:
        if answer is not None:
            session.send(answer)
        return None
    return cancelled(session, consumer, answer)


async def cancelled(
    session: ChannelPublishes, consumer: LocalConsumer, answer: methods.Method | None
) -> None:
    """Let a queue forget a consumer; what it has not been sent goes back."""
    await session.services.queue_client.cancel(consumer.uid, consumer.id)
    session.services.deliveries.remove(consumer.id)
    session.unwritten_returns(consumer)
    queue = session.services.queues.queue_of(consumer.uid)
    if queue is not None and queue.auto_delete:
        # R-Q-10: after cancel-ok the client finds the queue gone, if this was its last consumer.
        await topology.counts(session.services.objects, queue)
    if answer is not None:
        session.send(answer)


# ---- rights that are taken away -----------------------------------------------------------------


def _read_refused(session: ChannelPublishes, consumer: LocalConsumer) -> Refused | None:
    return session.connection.access.check("read", "queue", consumer.queue)


def check_rights(session: ChannelPublishes) -> None:
    """End the consumers that their user may not read with any more (revocation.py).

    A client that can be told is sent basic.cancel, and may settle what it holds; one that cannot
    would wait for ever, so it loses the channel.
    """
    can_be_told = session.connection.machine.client_has("consumer_cancel_notify")
    for consumer in list(session.consumers.values()):
        refused = None if consumer.is_held else _read_refused(session, consumer)
        if refused is None:
            # One that is held asks by itself when it has its answer.
            continue
        log.warning("consumer %s is cancelled: %s", consumer.id.tag, refused.text)
        if not can_be_told:
            session.fail(message_checks.refuse(refused), 0, 0)
            return
        # From here on nothing goes out, whenever the queue answers.
        consumer.is_held = True
        session.connection.spawn(_taken_away(session, consumer, refused))
    _check_replies(session, can_be_told)


def _check_replies(session: ChannelPublishes, can_be_told: bool) -> None:
    """Replies need no right but that to the vhost (R-DRT-1)."""
    connection, reply = session.connection, session.reply_consumer
    if reply is None or session.has_ended:
        return
    refused = connection.access.check_vhost()
    if refused is None:
        return
    if not can_be_told:
        session.fail(errors.AccessRefused(refused.text), 0, 0)
        return
    session.reply_consumer = None
    session.services.replies.close(session.uid)
    session.send(methods.BasicCancel(reply.tag, True))


async def _taken_away(session: ChannelPublishes, consumer: LocalConsumer, refused: Refused) -> None:
    tag, services = consumer.id.tag, session.services
    try:
        await session.services.queue_client.cancel(consumer.uid, consumer.id)
    except Unavailable:
        # The queue hears of the channel's end when it can be reached.
        session.fail(message_checks.refuse(refused), 0, 0)
        return
    if session.has_ended or session.consumers.get(tag) is not consumer:
        # Meanwhile the client has cancelled it, or the queue was deleted.
        return
    del session.consumers[tag]
    services.deliveries.remove(consumer.id)
    session.unwritten_returns(consumer)
    session.send(methods.BasicCancel(tag, True))
    queue = services.queues.queue_of(consumer.uid)
    if queue is not None and queue.auto_delete:
        # R-Q-10
        with contextlib.suppress(Unavailable):
            await topology.counts(session.services.objects, queue)


# ---- queues -------------------------------------------------------------------------------------


def named(session: ChannelPublishes, name: str) -> str:
    """R-CH-10: the empty name is the queue last declared on this channel."""
    if name:
        return name
    if not session.last_queue:
        raise errors.NotFound("no previously declared queue")
    return session.last_queue


def use_queue(session: ChannelPublishes, name: str) -> Queue:
    """Return a queue that this connection may read from (R-ERR-2, R-Q-9)."""
    services, connection = session.services, session.connection
    found = declare.use_queue(
        services.catalog.view,
        connection.access,
        named(session, name),
        services.identity.connection_id(connection.uid),
    )
    if isinstance(found, Refused):
        raise message_checks.refuse(found)
    if refusal := services.queues.groups.refusal(found.uid):
        # Before anything is sent that the queue would have to be told the end of.
        raise errors.NotFound(refusal)
    return found
