"""The Messages service: publish with confirms and consume with credit, over gRPC.

A thin shell beside AMQP sessions, over the same broker: who may do what, and what happens to a
message, is decided in the same places.  Each call authenticates and names its vhost once.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import grpc

from brokerd.amqp import errors
from brokerd.rpc.v1 import messages_pb2, messages_pb2_grpc
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.grpc import get_call, rpc_auth, rpc_errors
from brokerd.server.grpc.batch_publisher import BatchPublisher
from brokerd.server.grpc.call_guest import CallGuest
from brokerd.server.grpc.consume_stream import ConsumeStream
from brokerd.server.grpc.publish_channel import Caller
from brokerd.server.grpc.publish_stream import PublishStream
from brokerd.server.grpc.topology_calls import TopologyCall

if TYPE_CHECKING:
    from brokerd.server.access.admission import Admission
    from brokerd.server.grpc.ports import Calls, StreamServices

T = TypeVar("T")
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

DEFAULT_VHOST = "/"
#: Calls of this service at one member, for each of which it holds state.
CALLS_MAX = 10_000
CREDENTIAL_EXPIRED = "credential expired"
#: A call that lasts for a month may as well begin anew; timers have bounds, tokens need not.
TIMER_S_MAX = 30 * 86_400.0


class Call(CallGuest):
    """One streaming call."""

    def __init__(self, caller: Caller, uid: int, peer: str, connected_ms: int) -> None:
        super().__init__(caller, uid, peer, connected_ms)
        self._reason: tuple[grpc.StatusCode, str] | None = None
        self._work: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, T], context: Context) -> T:
        """Do the call's work until it is done, or until `close`; return what it does."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._work = task
        expiry = self._watch_token()
        # One that is cancelled before it began has not awaited it.
        task.add_done_callback(lambda _: work.close())
        if self._reason is not None:
            # Ended before it began.
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self._reason is None:
                raise
            await context.abort(*self._reason)
            raise AssertionError("abort does not return") from None
        finally:
            if expiry is not None:
                expiry.cancel()

    def _watch_token(self) -> asyncio.TimerHandle | None:
        """End it with its token: a call cannot renew one, the client calls again."""
        if self.identity.expires_ms is None:
            return None
        left_s = max(0.0, self.identity.expires_ms / 1000 - time.time())
        loop = asyncio.get_running_loop()
        return loop.call_later(
            min(left_s, TIMER_S_MAX), self.end, grpc.StatusCode.UNAUTHENTICATED, CREDENTIAL_EXPIRED
        )

    @property
    def is_open(self) -> bool:
        """Tell whether it has not been ended."""
        return self._reason is None

    def end(self, code: grpc.StatusCode, text: str) -> None:
        """End it with a status."""
        self._reason = code, text
        if self._work is not None:
            self._work.cancel()


def _vhost_of(metadata: Mapping[str, str]) -> str:
    """Return the vhost that a call names; gRPC's metadata takes other than ASCII in `-bin` only."""
    encoded = metadata.get("vhost-bin")
    if encoded is None:
        return metadata.get("vhost", DEFAULT_VHOST)
    if "vhost" in metadata:
        raise ValueError("metadata has both 'vhost' and 'vhost-bin'")
    try:
        # gRPC leaves padding out.
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
    except ValueError as error:
        raise ValueError(f"metadata 'vhost-bin' is no UTF-8 in base64: {error}") from error


class MessageService(messages_pb2_grpc.MessagesServicer):
    """Lets calls in; all else belongs to the calls."""

    def __init__(
        self,
        services: StreamServices,
        callers: rpc_auth.Callers,
        admission: Admission,
        calls: Calls,
        has_started: Callable[[], bool],
    ) -> None:
        """has_started() tells whether this member knows its memory, and with that its alarms."""
        self._services = services
        self._callers = callers
        self._admission = admission
        self._calls = calls
        self._has_started = has_started
        #: By connection, user and vhost.
        self._publishers: dict[tuple[str, str, str], BatchPublisher] = {}

    async def Publish(self, request_iterator: AsyncIterator[list[bytes]], context: Context) -> None:
        """Publish with confirms; requests come as octets (publication_reader.py), in batches."""
        await self._serve(
            context,
            lambda caller: PublishStream(self._services, caller, context).run(request_iterator),
        )

    async def PublishBatch(self, request: bytes, context: Context) -> messages_pb2.PublishResponse:
        """Publish what a request has, which comes as octets, and return what became of it."""
        publisher = await self._publisher(context)
        try:
            return await publisher.publish(request)
        except (errors.AmqpError, rpc_errors.CallRefused) as error:
            await rpc_errors.abort(context, error)

    async def _publisher(self, context: Context) -> BatchPublisher:
        """Return what publishes the batches of this caller on this connection."""
        who = await self._callers.authenticate(context, None)
        vhost = await self._vhost(context)
        key = (context.peer(), who.user, vhost)
        known = self._publishers.get(key)
        if known is not None and known.identity == who.identity:
            return known
        caller = await self._open(context)
        unwatch: Callable[[], None]

        def ended(publisher: BatchPublisher) -> None:
            unwatch()
            self._calls.call_gone(publisher)
            if self._publishers.get(key) is publisher:
                del self._publishers[key]

        publisher = BatchPublisher(self._services, caller, context.peer(), ended)
        call: Any = context
        unwatch = call.watch_connection(publisher.connection_lost)
        self._publishers[key] = publisher
        self._calls.call_opened(publisher)
        return publisher

    async def Consume(
        self, request_iterator: AsyncIterator[messages_pb2.ConsumeRequest], context: Context
    ) -> None:
        """Consume one queue."""
        await self._serve(
            context,
            lambda caller: ConsumeStream(self._services, caller, context).run(request_iterator),
        )

    async def Get(
        self, request: messages_pb2.GetRequest, context: Context
    ) -> messages_pb2.GetResponse:
        """Take messages for good."""
        call: Any = context
        await call.wait_for_turn()
        return await self._answer(
            context, lambda caller, _uid: get_call.get(self._services, caller, request)
        )

    async def DeclareQueue(
        self, request: messages_pb2.DeclareQueueRequest, context: Context
    ) -> messages_pb2.DeclareQueueResponse:
        """Make a queue unless it is there."""
        return await self._change(context, lambda call: call.declare_queue(request))

    async def DeleteQueue(
        self, request: messages_pb2.DeleteQueueRequest, context: Context
    ) -> messages_pb2.DeleteQueueResponse:
        """Delete a queue."""
        return await self._change(context, lambda call: call.delete_queue(request))

    async def PurgeQueue(
        self, request: messages_pb2.MessagesPurgeQueueRequest, context: Context
    ) -> messages_pb2.MessagesPurgeQueueResponse:
        """Remove a queue's ready messages."""
        return await self._change(context, lambda call: call.purge_queue(request))

    async def DeclareExchange(
        self, request: messages_pb2.DeclareExchangeRequest, context: Context
    ) -> messages_pb2.DeclareExchangeResponse:
        """Make an exchange unless it is there."""
        return await self._change(context, lambda call: call.declare_exchange(request))

    async def DeleteExchange(
        self, request: messages_pb2.DeleteExchangeRequest, context: Context
    ) -> messages_pb2.DeleteExchangeResponse:
        """Delete an exchange."""
        return await self._change(context, lambda call: call.delete_exchange(request))

    async def Bind(
        self, request: messages_pb2.BindRequest, context: Context
    ) -> messages_pb2.BindResponse:
        """Bind a queue or an exchange."""
        return await self._change(context, lambda call: call.bind(request))

    async def Unbind(
        self, request: messages_pb2.UnbindRequest, context: Context
    ) -> messages_pb2.UnbindResponse:
        """Remove a binding."""
        return await self._change(context, lambda call: call.unbind(request))

    async def _change(
        self, context: Context, change: Callable[[TopologyCall], Coroutine[Any, Any, T]]
    ) -> T:
        author = rpc_auth.author_of(context)
        return await self._answer(
            context,
            lambda caller, uid: change(TopologyCall(self._services, caller, author, uid)),
        )

    async def _answer(
        self, context: Context, work: Callable[[Caller, int], Coroutine[Any, Any, T]]
    ) -> T:
        """Serve a call of one request and one response."""
        caller = await self._open(context)
        services = self._services
        call = Call(caller, services.identity.next_uid(), context.peer(), services.clock_ms())
        self._calls.call_opened(call)
        try:
            return await call.run(work(caller, call.uid), context)
        except (errors.AmqpError, rpc_errors.CallRefused, QueueStuck, Unavailable) as error:
            await rpc_errors.abort(context, error)
        finally:
            self._calls.call_gone(call)

    async def _serve(
        self, context: Context, work: Callable[[Caller], Coroutine[Any, Any, None]]
    ) -> None:
        caller = await self._open(context)
        services = self._services
        call = Call(caller, services.identity.next_uid(), context.peer(), services.clock_ms())
        # Nothing is awaited between the look at the limits and this.
        self._calls.call_opened(call)
        try:
            await self._begin(context)
            await call.run(work(caller), context)
        finally:
            self._calls.call_gone(call)

    @staticmethod
    async def _begin(context: Context) -> None:
        # By itself, not with the first response: gRPC notes that headers have gone when that write
        # is done. An end of the call that cut it off sent them again, which is an error to gRPC and
        # no status at all to the client.
        await context.send_initial_metadata(())

    async def _open(self, context: Context) -> Caller:
        """Authenticate, and open the vhost as connection.open would (R-CON-11, R-CON-12)."""
        who = await self._callers.authenticate(context, None)
        if not self._has_started():
            await rpc_errors.abort(
                context,
                rpc_errors.CallRefused(
                    grpc.StatusCode.UNAVAILABLE, "this member is still starting: try again"
                ),
            )
        if self._calls.call_count >= CALLS_MAX:
            await rpc_errors.abort(
                context,
                rpc_errors.CallRefused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{CALLS_MAX} calls of Messages are open at this member",
                ),
            )
        vhost = await self._vhost(context)
        refusal = self._admission.may_open(who.identity, vhost)
        if refusal is None:
            refusal = self._admission.may_open_channel(who.user)
        if refusal is not None:
            await rpc_errors.abort(
                context, rpc_errors.CallRefused(grpc.StatusCode.PERMISSION_DENIED, refusal)
            )
        name = f"gRPC {rpc_auth.peer_text(context.peer())}"
        return Caller(who.identity, self._admission.access(who.identity, vhost), name)

    @staticmethod
    async def _vhost(context: Context) -> str:
        try:
            return _vhost_of(rpc_auth.metadata_of(context))
        except ValueError as error:
            await rpc_errors.abort(context, error)
