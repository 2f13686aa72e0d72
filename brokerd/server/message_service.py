"""The Messages service: publish with confirms and consume with credit, over gRPC.

A thin shell beside AMQP sessions, over the same broker: who may do what, and what happens to a
message, is decided in the same places.  Each call authenticates and names its vhost once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
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


class Call:
    """One call as the register of connections sees it: it can be ended from outside."""

    def __init__(self, caller: Caller) -> None:
        self.vhost = caller.vhost
        self.user = caller.user
        self._reason = ""
        self._work: asyncio.Task[None] | None = None

    async def run(self, work: Coroutine[Any, Any, None], context: Context) -> None:
        """Do the call's work until it is done, or until `close`."""
        self._work = asyncio.create_task(work)
        try:
            await self._work
        except asyncio.CancelledError:
            self._work.cancel()
            if not self._reason:
                raise
            await context.abort(grpc.StatusCode.ABORTED, self._reason)

    def close(self, code: int, text: str) -> None:
        """End it: its user or vhost is gone."""
        self._reason = f"{code}: {text}"
        if self._work is not None:
            self._work.cancel()


class MessageService(messages_pb2_grpc.MessagesServicer):
    """Lets calls in; all else belongs to the calls."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def Publish(
        self, request_iterator: AsyncIterator[messages_pb2.PublishRequest], context: Context
    ) -> None:
        """Publish with confirms."""
        await self._serve(
            context,
            lambda caller: PublishStream(self._broker, caller, context).run(request_iterator),
        )

    async def Consume(
        self, request_iterator: AsyncIterator[messages_pb2.ConsumeRequest], context: Context
    ) -> None:
        """Consume one queue."""
        await self._serve(
            context,
            lambda caller: ConsumeStream(self._broker, caller, context).run(request_iterator),
        )

    async def _serve(
        self, context: Context, work: Callable[[Caller], Coroutine[Any, Any, None]]
    ) -> None:
        caller = await self._open(context)
        # By itself, not with the first response: gRPC notes that headers have gone when that write
        # is done. An end of the call that cut it off sent them again, which is an error to gRPC and
        # no status at all to the client.
        await context.send_initial_metadata(())
        call = Call(caller)
        # Nothing is awaited between the look at the limits and this.
        self._broker.connections.call_opened(call)
        try:
            await call.run(work(caller), context)
        finally:
            self._broker.connections.call_gone(call)

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
        if broker.connections.call_count >= CALLS_MAX:
            await rpc_errors.abort(
                context,
                rpc_errors.CallRefused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{CALLS_MAX} calls of Messages are open at this member",
                ),
            )
        vhost = rpc_auth.metadata_of(context).get("vhost", DEFAULT_VHOST)
        refusal = admission.may_open(broker, who.user, vhost)
        if refusal is None:
            refusal = admission.may_open_channel(broker, who.user)
        if refusal is not None:
            await rpc_errors.abort(
                context, rpc_errors.CallRefused(grpc.StatusCode.PERMISSION_DENIED, refusal)
            )
        return Caller(broker, vhost, who.user, who.tags)
