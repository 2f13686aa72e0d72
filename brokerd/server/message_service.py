"""The Messages service: publish with confirms and consume with credit, over gRPC.

A thin shell beside AMQP sessions, over the same broker: who may do what, and what happens to a
message, is decided in the same places.  Each call authenticates and names its vhost once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd.rpc.v1 import messages_pb2, messages_pb2_grpc
from brokerd.server import admission, rpc_auth, rpc_errors
from brokerd.server.consume_stream import ConsumeStream
from brokerd.server.publish_stream import Caller, PublishStream

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

DEFAULT_VHOST = "/"
#: Calls of this service at one member, for each of which it holds state.
CALLS_MAX = 10_000


class MessageService(messages_pb2_grpc.MessagesServicer):
    """Owns the count of open calls; all else belongs to the calls."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._calls = 0

    async def Publish(
        self, request_iterator: AsyncIterator[messages_pb2.PublishRequest], context: Context
    ) -> None:
        """Publish with confirms."""
        caller = await self._open(context)
        self._calls += 1
        try:
            await PublishStream(self._broker, caller, context).run(request_iterator)
        finally:
            self._calls -= 1

    async def Consume(
        self, request_iterator: AsyncIterator[messages_pb2.ConsumeRequest], context: Context
    ) -> None:
        """Consume one queue."""
        caller = await self._open(context)
        self._calls += 1
        try:
            await ConsumeStream(self._broker, caller, context).run(request_iterator)
        finally:
            self._calls -= 1

    async def _open(self, context: Context) -> Caller:
        """Authenticate, and open the vhost as connection.open would (R-CON-11, R-CON-12)."""
        broker = self._broker
        who = await rpc_auth.authenticate(broker, context, None)
        if broker.monitor is None:
            await rpc_errors.abort(
                context,
                rpc_errors.CallRefused(
                    grpc.StatusCode.UNAVAILABLE, "this member is still starting: try again"
                ),
            )
        if self._calls >= CALLS_MAX:
            await rpc_errors.abort(
                context,
                rpc_errors.CallRefused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{CALLS_MAX} calls of Messages are open at this member",
                ),
            )
        vhost = rpc_auth.metadata_of(context).get("vhost", DEFAULT_VHOST)
        refusal = admission.may_open(broker, who.user, vhost)
        if refusal is not None:
            await rpc_errors.abort(
                context, rpc_errors.CallRefused(grpc.StatusCode.PERMISSION_DENIED, refusal)
            )
        return Caller(broker, vhost, who.user, who.tags)
