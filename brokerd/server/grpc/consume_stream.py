"""One Consume call of the Messages service: a consumer whose window is its credit.

Implements the delivery register's Sink as an AMQP session does.  The queue is told of the credit
and hands out no more (ADR 69).  While not all members understand that, it is told a prefetch that
follows the credit, and what there is no credit for waits here.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import grpc

from brokerd.amqp import errors
from brokerd.cluster.errors import GroupGone
from brokerd.core import unacked
from brokerd.core.catalog import declare, names
from brokerd.core.catalog.refusals import Refused
from brokerd.core.message import Content, Range
from brokerd.core.queue import effects
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.consumers import QUORUM_PREFETCH_MAX
from brokerd.core.queue.effects import ConsumerId, Run, times_acquired
from brokerd.core.ranges import RangeSet, normalize
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.grpc import rpc_errors, rpc_properties
from brokerd.server.grpc.publish_channel import NAME_BYTES_MAX, Caller, first_of
from brokerd.server.messages import message_checks
from brokerd.server.queues.deliveries import LocalConsumer, Part
from brokerd.server.queues.stream import ChannelStream, Settle
from brokerd.telemetry import client_totals

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import StreamServices

#: Unsettled messages of one consumer: what a quorum queue allows (R-QQ-12); classic ones as well.
WINDOW_MAX = QUORUM_PREFETCH_MAX
#: Credit beyond this is not counted; no client means more than "as much as you can".
CREDIT_MAX = 1 << 31
#: Bodies of one response; a client's default limit for one gRPC message is 4 MiB.
RESPONSE_BYTES_MAX = 1024 * 1024
RESPONSE_MESSAGES_MAX = 1024

_SETTLE = {
    messages_pb2.Settlement.ACCEPT: Settle.ACCEPT,
    messages_pb2.Settlement.REJECT: Settle.DISCARD_REJECTED,
    messages_pb2.Settlement.REQUEUE: Settle.NACK,
}

#: What `cancelled` says for the queue's causes.  The others name who deleted the queue, which is no
#: business of its consumers.
_CANCELLED = {
    "expired": "queue expired",
    "auto-delete": "queue auto-deleted",
    "home-down": "queue deleted: its member is down",
    "node-removed": "queue deleted: its member has left the cluster",
    "node-restarted": "queue deleted: its member was restarted",
    "lost by its queue": "consumer lost: the queue's new leader does not know it; subscribe again",
}
_DELETED = "queue deleted"


class ConsumeStream:
    """State of one call.

    Invariant: `_held` are the numbers that were handed out to this consumer and are not settled:
    those in `_waiting` (not sent yet), those in `_unacked` (sent, the client owes a settlement) and
    those in `_sending` (sent, settled by us next).  `_ungranted` is the part of `_credit` that the
    queue does not know of.

    In one piece: the reader and the writer of a call share all of it, delivery by delivery.
    """

    def __init__(
        self,
        services: StreamServices,
        caller: Caller,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        self._services = services
        self._queues = services.queues
        self._counters = services.messages.counters
        self._totals = self._counters.totals[client_totals.GRPC]
        self._caller = caller
        self._context = context
        self._stream: ChannelStream | None = None
        self._consumer: LocalConsumer | None = None
        self._auto = False
        self._credit = 0
        self._ungranted = 0
        self._granting = asyncio.Event()
        #: The first delivery tag of the response that is being written.
        self._writing_from: int | None = None
        #: Number, the run that it came in, content.
        self._waiting: deque[tuple[int, Run, Content]] = deque()
        self._unacked: unacked.Unacked[ConsumerId] = unacked.Unacked()
        self._sending: list[Range] = []
        self._held = RangeSet()
        #: What the last message had but for its tag and body, and what that was made of: messages
        #: of one publisher are alike as a rule.
        self._head = messages_pb2.Delivered()
        self._look: tuple[object, ...] | None = None
        self._cancelled: str | None = None
        #: The queue waits with damage.
        self._failure: QueueStuck | None = None
        self._due = asyncio.Event()

    async def run(self, requests: AsyncIterator[messages_pb2.ConsumeRequest]) -> None:
        """Serve the call until the client closes its side or the consumer is cancelled."""
        reading = asyncio.create_task(self._read(requests))
        writing = asyncio.create_task(self._write())
        granting = asyncio.create_task(self._grant())
        problem: BaseException | None = None
        try:
            await first_of(reading, writing, granting)
            ended = [task for task in (reading, granting) if task.done()]
            problem = ended[0].result() if ended else self._failure
        finally:
            for task in (reading, writing, granting):
                task.cancel()
            await asyncio.gather(reading, writing, granting, return_exceptions=True)
            self._end()
        if problem is not None:
            await rpc_errors.abort(self._context, problem)

    def _end(self) -> None:
        """The consumer goes; what it holds returns to the queue (R-CH-5)."""
        if self._consumer is None or self._stream is None:
            return
        uid, consumer_id = self._consumer.uid, self._consumer.id
        self._services.deliveries.remove(consumer_id)
        self._stream.leave({uid: {consumer_id.tag: self._written()}})

    def _written(self) -> list[Range]:
        """Return the numbers that the client was sent and has not settled."""
        assert self._consumer is not None
        if self._writing_from is None:
            return self._unacked.numbers_of(self._consumer.id)
        # The connection has not taken the whole of the response: nobody can have read it.
        return self._unacked.numbers_below(self._writing_from).get(self._consumer.id, [])

    # ---- in ---------------------------------------------------------------------------------

    async def _read(
        self, requests: AsyncIterator[messages_pb2.ConsumeRequest]
    ) -> BaseException | None:
        """Take requests until the client closes its side (None) or makes a mistake."""
        try:
            async for request in requests:
                kind = request.WhichOneof("kind")
                if kind is None:
                    raise rpc_errors.CallRefused(
                        grpc.StatusCode.INVALID_ARGUMENT, "an empty request"
                    )
                if (kind == "subscribe") != (self._consumer is None):
                    raise rpc_errors.CallRefused(
                        grpc.StatusCode.INVALID_ARGUMENT,
                        "the first request of a Consume call, and only that, is subscribe",
                    )
                if kind == "subscribe":
                    await self._subscribe(request.subscribe)
                elif kind == "credit":
                    self._add_credit(request.credit)
                elif kind == "settle":
                    self._settle(request.settle)
        except (errors.AmqpError, rpc_errors.CallRefused, Unavailable) as error:
            return error
        return None

    async def _subscribe(self, request: messages_pb2.Subscribe) -> None:
        for what, text in (("queue", request.queue), ("consumer_tag", request.consumer_tag)):
            if len(text.encode()) > NAME_BYTES_MAX:
                raise rpc_errors.CallRefused(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{what} is longer than {NAME_BYTES_MAX} bytes",
                )
        identity, caller = self._services.identity, self._caller
        uid = identity.next_uid()
        # A call is nobody's connection: exclusive queues refuse it (R-Q-9).
        queue = declare.use_queue(
            self._services.topology.view, caller.access, request.queue, identity.connection_id(uid)
        )
        if isinstance(queue, Refused):
            raise message_checks.refuse(queue)
        if refusal := self._queues.groups.refusal(queue.uid):
            # Before anything is sent that the queue would have to be told the end of.
            raise QueueStuck(refusal)
        tag = request.consumer_tag or _random_tag()
        self._auto = request.auto_acknowledge
        self._credit = min(request.credit, CREDIT_MAX)
        consumer = LocalConsumer(
            id=ConsumerId(identity.node, identity.incarnation, uid, tag),
            uid=queue.uid,
            vhost=queue.vhost,
            queue=queue.name,
            sink=self,
            no_ack=self._auto,
            prefetch=WINDOW_MAX,
            priority=request.priority,
            exclusive=False,
            user=caller.user,
            has_counts=queue.type == "quorum",
        )
        self._consumer = consumer
        self._stream = self._services.queue_client.open(uid)
        caller.reads = queue.name
        # Registered first: deliveries may come before the checkout is answered.
        self._services.deliveries.add(consumer)
        await self._check_out(consumer, self._credit)

    async def _check_out(self, consumer: LocalConsumer, credit: int) -> None:
        """Tell the queue who consumes and how much it may hold.

        credit: so many more may be handed out.
        """
        checkout = Checkout(
            consumer=consumer.id,
            prefetch=consumer.prefetch,
            no_ack=False,
            exclusive=False,
            priority=consumer.priority,
            user=consumer.user,
            credit=credit,
        )
        resource = names.resource("queue", consumer.vhost, consumer.queue)
        try:
            refused = await self._services.queue_client.check_out(consumer.uid, checkout)
        except GroupGone as gone:
            missing = names.missing("queue", consumer.vhost, consumer.queue)
            raise errors.NotFound(missing) from gone
        if refused is not None:
            raise errors.SoftError(f"{resource} {refused.text}", code=refused.code)

    async def _grant(self) -> BaseException:
        """Tell the queue of further credit, all that came while it had yet to answer at once, so
        that a client that adds credit one by one does not make a command of each; end with what
        is wrong.
        """
        try:
            while True:
                await self._granting.wait()
                self._granting.clear()
                credit, self._ungranted = self._ungranted, 0
                assert self._consumer is not None
                await self._check_out(self._consumer, credit)
        except (errors.AmqpError, Unavailable) as error:
            return error

    def _add_credit(self, credit: int) -> None:
        before = self._credit
        self._credit = min(self._credit + credit, CREDIT_MAX)
        self._due.set()
        self._ungranted += self._credit - before
        self._granting.set()

    def _settle(self, request: messages_pb2.Settlement) -> None:
        assert self._consumer is not None
        assert self._stream is not None
        how = _SETTLE.get(request.outcome)
        if how is None:
            raise rpc_errors.CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT, f"unknown outcome {request.outcome}"
            )
        if request.multiple and not request.delivery_tags:
            raise rpc_errors.CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                "a settlement of multiple messages needs the last one's delivery tag; 0 means all",
            )
        settled, unknown = self._unacked.acks(
            (tag, request.multiple) for tag in request.delivery_tags
        )
        is_quorum = self._consumer.has_counts
        totals = self._totals.quorum if is_quorum else self._totals.classic
        for consumer_id, ranges in settled.items():
            for low, high in ranges:
                self._held.remove(low, high)
                if how is Settle.ACCEPT:
                    totals.acknowledged += high - low
            # A classic queue may forget an acknowledgement in a crash (ADR 23).
            may_be_lost = how is Settle.ACCEPT and not is_quorum
            holder = (self._consumer.uid, consumer_id)
            self._stream.settle(holder, ranges, how, may_be_lost=may_be_lost)
        if unknown is not None:
            raise rpc_errors.CallRefused(grpc.StatusCode.FAILED_PRECONDITION, str(unknown))

    # ---- deliveries (Sink) ------------------------------------------------------------------

    def deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        """Take over what the queue handed out; bounded by the consumer's prefetch."""
        for run, contents in parts:
            # A new leader may send again what came meanwhile; what is held here is not taken twice.
            for low, high in self._held.missing(run.first, run.first + run.length):
                taken = contents[low - run.first : high - run.first]
                self._waiting += zip(range(low, high), repeat(run, high - low), taken, strict=True)
            self._held.add(run.first, run.first + run.length)
        self._due.set()

    def defer(self, consumer: LocalConsumer, runs: Sequence[Run]) -> bool:
        """Take over messages only: they are not more than the client has asked for."""
        return False

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        """Tell the client that the consumer is gone, and end the call."""
        self._cancelled = _cancelled(cause)
        self._due.set()

    def consumer_failed(self, consumer: LocalConsumer, reason: str) -> None:
        """End the call with the reason; what was received may not be settled any more."""
        self._failure = QueueStuck(reason)
        self._due.set()

    def consumer_stranded(self, consumer: LocalConsumer, reason: str) -> None:
        """End the call with the reason; its end gives back what it held."""
        self.consumer_failed(consumer, reason)

    def held(self, consumer: LocalConsumer) -> list[Range]:
        """Return the numbers that were handed out and are not settled."""
        return self._held.ranges()

    # ---- out --------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Send what there is credit for; end when the consumer was cancelled, or its queue waits
        with damage.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            while self._waiting and self._credit:
                self._writing_from = self._unacked.next_tag
                response = self._next_response()
                await self._context.write(response)
                self._writing_from = None
                self._settle_sent()
            if self._failure is not None:
                return
            if self._cancelled is not None:
                await self._context.write(messages_pb2.ConsumeResponse(cancelled=self._cancelled))
                return

    def _next_response(self) -> messages_pb2.ConsumeResponse:
        consumer = self._consumer
        assert consumer is not None
        response = messages_pb2.ConsumeResponse()
        size = body_bytes = redelivered = 0
        while self._waiting and self._credit and size < RESPONSE_BYTES_MAX:
            number, run, content = self._waiting.popleft()
            self._credit -= 1
            tag = self._unacked.delivered(consumer.id, number, 1, self._auto)
            if self._auto:
                self._sending.append((number, number + 1))
            route, header, body, _ = content
            acquired = times_acquired(run)
            look = (route, header, acquired, run.delivery_count)
            if look != self._look:
                self._look, self._head = look, self._head_of(run, content)
            delivered = response.deliveries.add(delivery_tag=tag, body=body)
            delivered.MergeFrom(self._head)
            size += len(header) + len(body)
            body_bytes += len(body)
            redelivered += acquired > 0
            if len(response.deliveries) >= RESPONSE_MESSAGES_MAX:
                break
        self._counters.delivered(
            consumer.vhost, consumer.user, len(response.deliveries), body_bytes, redelivered
        )
        totals = self._totals.quorum if consumer.has_counts else self._totals.classic
        totals.delivered(len(response.deliveries), redelivered, self._auto)
        return response

    def _head_of(self, run: Run, content: Content) -> messages_pb2.Delivered:
        """Return what a message has but for its tag and body."""
        assert self._consumer is not None
        route, header = content[0], content[1]
        exchange, raw_exchange = rpc_properties.both(route[0])
        routing_key, raw_routing_key = rpc_properties.both(route[1])
        has_counts = self._consumer.has_counts
        return messages_pb2.Delivered(
            exchange=exchange,
            routing_key=routing_key,
            raw_exchange=raw_exchange,
            raw_routing_key=raw_routing_key,
            redelivered=times_acquired(run) > 0,
            properties=rpc_properties.decode(
                header,
                times_acquired(run) if has_counts else 0,
                run.delivery_count if has_counts else 0,
            ),
        )

    def _settle_sent(self) -> None:
        """Settle what an auto-acknowledging consumer was sent (R-QQ-12)."""
        if not self._sending:
            return
        sent, self._sending = self._sending, []
        assert self._consumer is not None
        assert self._stream is not None
        ranges = normalize(sent)
        for low, high in ranges:
            self._held.remove(low, high)
        holder, may_be_lost = (self._consumer.uid, self._consumer.id), not self._consumer.has_counts
        self._stream.settle(holder, ranges, Settle.ACCEPT, may_be_lost=may_be_lost)


def _cancelled(cause: str) -> str:
    if cause.startswith(effects.TIMED_OUT):
        return cause
    return _CANCELLED.get(cause, _DELETED)


def _random_tag() -> str:
    return "grpc.ctag-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
