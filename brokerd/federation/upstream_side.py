"""What a link makes on its upstream broker, and takes away again.

Each function is a few AMQP methods on an open connection (R-FX-1 to R-FX-5, R-FX-17).  Which
names, and when, is the link's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from brokerd.amqp import methods, spec
from brokerd.amqp.values import Table
from brokerd.core.catalog import federation_type
from brokerd.federation import upstream as upstreams
from brokerd.federation.client import Channel, Connection
from brokerd.federation.errors import ChannelClosed, ClientError, ConnectionLost
from brokerd.federation.internal_declare import InternalDeclare
from brokerd.federation.link_bindings import Changes
from brokerd.federation.ports import Federated, FederatedQueue

#: What brokers without the type x-federation-upstream answer (R-FX-4); 540 is RabbitMQ 2.x.
_UNKNOWN_TYPE = frozenset({spec.COMMAND_INVALID, spec.PRECONDITION_FAILED, spec.NOT_IMPLEMENTED})
#: How long a consumer of ours may take to be gone from the upstream queue.
LOOK_S = 0.25
LOOKS_MAX = 12
#: How old the figure of what waits upstream may be.
BACKLOG_INTERVAL_S = 5.0


@dataclass(slots=True, frozen=True)
class Names:
    """Objects of one link on its upstream."""

    exchange: str
    queue: str

    def internal(self, suffix: str) -> str:
        """Return the internal exchange of a letter (R-FX-4)."""
        return f"{self.queue} {suffix}"


async def exchange_exists(connection: Connection, name: str) -> bool:
    """Ask by a passive declare, on a channel of its own as a 404 costs it."""
    channel = await connection.open_channel()
    try:
        await channel.call(methods.ExchangeDeclare(exchange=name, passive=True))
    except ChannelClosed as error:
        if error.code == spec.NOT_FOUND:
            return False
        raise
    await channel.close()
    return True


async def declare_exchange(connection: Connection, name: str, federated: Federated) -> None:
    """R-FX-1: the upstream exchange, like ours if it is missing."""
    if await exchange_exists(connection, name):
        return
    channel = await connection.open_channel()
    await channel.call(
        methods.ExchangeDeclare(
            exchange=name,
            type=federated.type,
            durable=federated.durable,
            auto_delete=federated.auto_delete,
            arguments=dict(federated.arguments),
        )
    )
    await channel.close()


async def declare_queue(channel: Channel, name: str, upstream: upstreams.Upstream) -> None:
    """R-FX-3.  ClientError if somebody else consumes from it (R-FED-8)."""
    await channel.call(
        methods.QueueDeclare(queue=name, durable=True, arguments=upstream.queue_arguments())
    )
    if not await _is_free(channel, name):
        raise in_use(name)


def in_use(queue: str) -> ClientError:
    """Return what is wrong with a queue that somebody else consumes from: they would share its
    messages.
    """
    return ClientError(
        f"another consumer is on the upstream queue '{queue}': perhaps another cluster has the "
        "name of this one (brokerctl set_cluster_name)"
    )


class Backlog:
    """How many messages wait in a link's upstream queue, those under way not counted."""

    def __init__(self) -> None:
        #: None: no answer has come yet.
        self.count: int | None = None
        self._answered_at = 0.0
        self._next_look = 0.0

    def figures(self) -> dict[str, Any]:
        """Return the figure of the link's row and how old it is; None before the first answer."""
        if self.count is None:
            return {"backlog": None}
        age_s = asyncio.get_running_loop().time() - self._answered_at
        return {"backlog": self.count, "backlog_age_ms": max(0, int(age_s * 1000))}

    def look(self, channel: Channel, queue: str) -> float:
        """Ask, if it is time to; return in how many seconds it is time again.

        The answer is not waited for: while the link's reading is held it is not read.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._next_look:
            self._next_look = now + BACKLOG_INTERVAL_S
            request = methods.QueueDeclare(queue=queue, passive=True)
            channel.ask(request).add_done_callback(self._answered)
        return self._next_look - now

    def _answered(self, future: asyncio.Future[methods.Method]) -> None:
        # A channel that ends brings no answer.
        if not future.cancelled() and future.exception() is None:
            answer = future.result()
            assert isinstance(answer, methods.QueueDeclareOk)
            self.count = answer.message_count
            self._answered_at = asyncio.get_running_loop().time()


async def _look(channel: Channel, queue: str) -> methods.QueueDeclareOk:
    answer = await channel.call(methods.QueueDeclare(queue=queue, passive=True))
    assert isinstance(answer, methods.QueueDeclareOk)
    return answer


async def _is_free(channel: Channel, queue: str) -> bool:
    """Tell whether the queue has no consumer.  A link of ours that has just ended, here or on
    another member, gets a moment to be gone.
    """
    for _ in range(LOOKS_MAX):
        if not (await _look(channel, queue)).consumer_count:
            return True
        await asyncio.sleep(LOOK_S)
    return False


async def ensure_queue(connection: Connection, name: str, federated: FederatedQueue) -> None:
    """R-FQ-1: the upstream queue, like ours if it is missing; on channels of its own."""
    channel = await connection.open_channel()
    try:
        await channel.call(methods.QueueDeclare(queue=name, passive=True))
    except ChannelClosed as error:
        if error.code != spec.NOT_FOUND:
            raise
        channel = await connection.open_channel()
        arguments = dict(federated.arguments)
        await channel.call(
            methods.QueueDeclare(queue=name, durable=federated.durable, arguments=arguments)
        )
    await channel.close()


async def present_suffixes(connection: Connection, names: Names) -> list[str]:
    """Return the letters whose internal exchanges are there (R-FX-4).

    What is there says which one is next, so that a link that moved to another member goes on
    alternating.  Both are there after a crash in the middle of a switch-over.
    """
    return [
        suffix
        for suffix in upstreams.SUFFIXES
        if await exchange_exists(connection, names.internal(suffix))
    ]


async def bind_queue(channel: Channel, names: Names, suffix: str) -> None:
    """R-FX-4: what the internal exchange gets goes to the link's queue."""
    await channel.call(methods.QueueBind(queue=names.queue, exchange=names.internal(suffix)))


async def declare_internal_exchange(
    open_connection: Callable[[], Awaitable[Connection]],
    channel: Channel,
    names: Names,
    suffix: str,
    arguments: Table,
) -> bool:
    """R-FX-4: on a connection of its own, as an unknown type may cost it; then a fanout exchange.

    Returns whether the upstream knows the type.
    """
    name = names.internal(suffix)
    disposable = await open_connection()
    try:
        asker = await disposable.open_channel()
        await asker.call(_internal(name, federation_type.TYPE, arguments))
        is_known = True
    except (ChannelClosed, ConnectionLost) as error:
        if error.code not in _UNKNOWN_TYPE:
            raise
        is_known = False
    finally:
        await disposable.close()
    if not is_known:
        purpose: Table = {upstreams.INTERNAL_PURPOSE: upstreams.PURPOSE}
        await channel.call(_internal(name, "fanout", purpose))
    await bind_queue(channel, names, suffix)
    return is_known


def _internal(name: str, kind: str, arguments: Table) -> methods.ExchangeDeclare:
    return InternalDeclare(
        exchange=name,
        type=kind,
        durable=True,
        auto_delete=True,
        internal=True,
        arguments=arguments,
    )


async def apply_bindings(
    channel: Channel, source: str, internal: str, changes: Changes, nowait: bool
) -> None:
    """Add, then remove (R-FX-7); with nowait a refusal shows as a closed channel."""
    requests: list[methods.Method] = [
        methods.ExchangeBind(
            destination=internal,
            source=source,
            routing_key=binding.routing_key,
            nowait=nowait,
            arguments=binding.arguments,
        )
        for binding in changes.add
    ]
    requests += [
        methods.ExchangeUnbind(
            destination=internal,
            source=source,
            routing_key=binding.routing_key,
            nowait=nowait,
            arguments=binding.arguments,
        )
        for binding in changes.remove
    ]
    if not nowait:
        await channel.call_all(requests)
        return
    for request in requests:
        channel.cast(request)


async def delete_internal(channel: Channel, name: str) -> None:
    """R-FX-5: the old letter, once the new one is bound."""
    await channel.call(methods.ExchangeDelete(exchange=name))


async def delete_all(connection: Connection, names: Names) -> None:
    """R-FX-17: nothing of the link stays; the queue first, so that nothing new is buffered.

    A queue that somebody else consumes from stays: it is another cluster's.
    """
    try:
        if not await _is_free(await connection.open_channel(), names.queue):
            raise in_use(names.queue)
    except ChannelClosed as error:
        if error.code != spec.NOT_FOUND:
            raise ClientError(f"cannot clean up: {error}") from error
    requests: list[methods.Method] = [methods.QueueDelete(queue=names.queue)]
    requests += [
        methods.ExchangeDelete(exchange=names.internal(suffix)) for suffix in upstreams.SUFFIXES
    ]
    channel: Channel | None = None
    for request in requests:
        try:
            if channel is None or channel.error is not None:
                channel = await connection.open_channel()
            await channel.call(request)
        except ChannelClosed as error:
            if error.code != spec.NOT_FOUND:
                raise ClientError(f"cannot clean up: {error}") from error
