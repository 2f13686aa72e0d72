"""Declares, deletes, binds and purges of the Messages service.

What they check and do is AMQP's (messages/declarations.py); here is what a request says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import grpc

from brokerd.core.queue.client_shapes import Counts
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import rpc_properties
from brokerd.server.grpc.publish_channel import Caller
from brokerd.server.grpc.queue_names import readable_queue
from brokerd.server.grpc.rpc_errors import CallRefused
from brokerd.server.messages import declarations
from brokerd.server.messages.declarations import BindingNamed, Declaring, QueueDeclaration
from brokerd.telemetry import client_totals

if TYPE_CHECKING:
    from brokerd.server.catalog.audit import Author
    from brokerd.server.grpc.ports import StreamServices

#: A request; AMQP's methods have to fit into a frame of 128 KiB (R-FRM-3).
REQUEST_BYTES_MAX = 128 * 1024


class Sized(Protocol):
    """A request."""

    def ByteSize(self) -> int:
        """Return how large it is."""
        ...


class TopologyCall:
    """One call, or the declaration within a Consume call; state: who asks."""

    def __init__(self, services: StreamServices, caller: Caller, author: Author, uid: int) -> None:
        """uid: of the call, which stands for the connection that owns exclusive queues."""
        self._services = services
        self._caller = caller
        self._uid = uid
        self._client = Declaring(
            services.objects.by(author),
            services.objects,
            services.messages,
            services.replies,
            caller.access,
            services.identity.connection_id(uid),
            f"grpc:{caller.user}",
        )
        #: An exclusive queue was asked for.
        self.has_exclusive = False

    async def declare_queue(
        self, request: messages_pb2.DeclareQueueRequest
    ) -> messages_pb2.DeclareQueueResponse:
        """Declare a queue that lasts."""
        if request.queue.exclusive:
            raise CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                "an exclusive queue is declared by Subscribe, and ends with its call",
            )
        name, found = await self.declared(request.queue)
        text, raw = rpc_properties.both(name)
        return messages_pb2.DeclareQueueResponse(
            name=text, raw_name=raw, messages=found.ready, consumers=found.consumers
        )

    async def declared(self, queue: messages_pb2.QueueDeclaration) -> tuple[str, Counts]:
        """Declare a queue; return its name, and what is in it."""
        _check_size(queue)
        asked = QueueDeclaration(
            rpc_properties.name_of("name", queue.name, queue.raw_name),
            queue.passive,
            queue.durable,
            queue.exclusive,
            queue.auto_delete,
            rpc_properties.table_of(queue.arguments, queue.raw_arguments),
        )
        found = await declarations.declare_queue(self._client, asked, self._owns)
        self._services.messages.counters.totals[client_totals.GRPC].queues_declared += 1
        return found

    def _owns(self) -> None:
        self.has_exclusive = True

    async def delete_queue(
        self, request: messages_pb2.DeleteQueueRequest
    ) -> messages_pb2.DeleteQueueResponse:
        """Delete a queue; one that is not there is as asked for."""
        name = rpc_properties.name_of("name", request.name, request.raw_name)
        count = await declarations.delete_queue(
            self._client, name, if_unused=request.if_unused, if_empty=request.if_empty
        )
        return messages_pb2.DeleteQueueResponse(messages=count)

    async def purge_queue(
        self, request: messages_pb2.MessagesPurgeQueueRequest
    ) -> messages_pb2.MessagesPurgeQueueResponse:
        """Remove the ready messages of a queue."""
        name = rpc_properties.name_of("name", request.name, request.raw_name)
        queue = readable_queue(self._services, self._caller, name, self._uid)
        count = await declarations.purge_queue(self._client, queue)
        return messages_pb2.MessagesPurgeQueueResponse(messages=count)

    async def declare_exchange(
        self, request: messages_pb2.DeclareExchangeRequest
    ) -> messages_pb2.DeclareExchangeResponse:
        """Declare an exchange."""
        _check_size(request)
        plan = declarations.plan_exchange(
            self._client,
            rpc_properties.name_of("name", request.name, request.raw_name),
            rpc_properties.name_of("type", request.type, b""),
            passive=request.passive,
            durable=request.durable,
            auto_delete=request.auto_delete,
            internal=request.internal,
            table=rpc_properties.table_of(request.arguments, request.raw_arguments),
        )
        await declarations.carry_out(self._client, plan)
        return messages_pb2.DeclareExchangeResponse()

    async def delete_exchange(
        self, request: messages_pb2.DeleteExchangeRequest
    ) -> messages_pb2.DeleteExchangeResponse:
        """Delete an exchange; one that is not there is as asked for."""
        name = rpc_properties.name_of("name", request.name, request.raw_name)
        plan = declarations.plan_exchange_deletion(self._client, name, if_unused=request.if_unused)
        await declarations.carry_out(self._client, plan)
        return messages_pb2.DeleteExchangeResponse()

    async def bind(self, request: messages_pb2.BindRequest) -> messages_pb2.BindResponse:
        """Bind a queue or an exchange to an exchange."""
        await self.bound(request.binding)
        return messages_pb2.BindResponse()

    async def bound(self, binding: messages_pb2.Binding, queue: str | None = None) -> None:
        """Make a binding; queue: the destination, of one that names none."""
        plan = declarations.plan_binding(self._client, _named(binding, queue))
        await declarations.carry_out(self._client, plan)

    async def unbind(self, request: messages_pb2.UnbindRequest) -> messages_pb2.UnbindResponse:
        """Remove a binding; one that is not there is as asked for."""
        plan = declarations.plan_unbinding(self._client, _named(request.binding, None))
        await declarations.carry_out(self._client, plan)
        return messages_pb2.UnbindResponse()


def _named(binding: messages_pb2.Binding, queue: str | None) -> BindingNamed:
    _check_size(binding)
    destination = rpc_properties.name_of(
        "destination", binding.destination, binding.raw_destination
    )
    if queue is not None:
        if destination or binding.to_exchange:
            raise CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                "bindings of Subscribe have no destination: it is the queue",
            )
        destination = queue
    return BindingNamed(
        rpc_properties.name_of("source", binding.source, binding.raw_source),
        "exchange" if binding.to_exchange else "queue",
        destination,
        rpc_properties.name_of("routing_key", binding.routing_key, binding.raw_routing_key),
        rpc_properties.table_of(binding.arguments, binding.raw_arguments),
    )


def _check_size(request: Sized) -> None:
    if (size := request.ByteSize()) > REQUEST_BYTES_MAX:
        raise CallRefused(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"{size} bytes of names and arguments are more than {REQUEST_BYTES_MAX}",
        )
