"""One Consume call of the Messages service: a consumer whose window is its credit.

Implements the delivery register's Sink as an AMQP session does.  The queue receives the credit
and hands out no more (ADR 69).  While not all members understand that, it receives a prefetch that
follows the credit, and what there is no credit for waits here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import grpc

from brokerd.amqp import errors
from brokerd.cluster.errors import GroupGone
from brokerd.core import unacked
from brokerd.core.catalog import names
from brokerd.core.catalog.refusals import Refused
from brokerd.core.message import Content, Range
from brokerd.core.queue import certificates, effects
from brokerd.core.queue.certificates import Client
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.consumers import QUORUM_PREFETCH_MAX
from brokerd.core.queue.effects import ConsumerId, Run, times_acquired
from brokerd.core.ranges import RangeSet, normalize
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.catalog import topology
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.grpc import rpc_auth, rpc_errors, rpc_properties
from brokerd.server.grpc.publish_channel import Caller, first_of
from brokerd.server.grpc.queue_names import readable_queue
from brokerd.server.grpc.topology_calls import TopologyCall
from brokerd.server.messages import declarations
from brokerd.server.queues.deliveries import LocalConsumer, Part
from brokerd.server.queues.stream import ALL_HELD, ChannelStream, Settle
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
#: Answers that wait for a client that does not read.
ANSWERS_MAX = 16
#: Bindings of a queue that a call declares.
BINDINGS_MAX = 256

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
        self._uid = services.identity.next_uid()
        #: Declares the call's queue; None while the call has not asked for it.
        self._declaring: TopologyCall | None = None
        self._stream: ChannelStream | None = None
        self._consumer: LocalConsumer | None = None
        self._auto = False
        self._credit = 0
        self._ungranted = 0
        #: Nothing is sent: the subscription is not active yet, not any more, or for a moment.
        self._is_paused = True
        #: The client has cancelled the subscription.
        self._is_over = False
        #: What is said beside deliveries.
        self._answers: deque[messages_pb2.ConsumeResponse] = deque()
        #: Messages came, or were sent.
        self._moved = asyncio.Event()
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
        #: The end of the call's exclusive queue.
        self._exclusive_gone: asyncio.Task[None] | None = None
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
        if self._exclusive_gone is not None:
            # A client that learns of the end finds its queue gone.
            timeout_s = self._services.limits.operation_timeout_ms / 1000
            await asyncio.wait((self._exclusive_gone,), timeout=timeout_s)
        if problem is not None:
            await rpc_errors.abort(self._context, problem)

    def _end(self) -> None:
        """The consumer goes; what it holds returns to the queue (R-CH-5)."""
        if self._declaring is not None and self._declaring.has_exclusive:
            self._exclusive_gone = self._services.topology.exclusive_queues_end(self._uid)
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
        # The connection has not taken the whole of the response: the client cannot have read it.
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
                elif kind == "withdraw":
                    await self._withdraw()
                elif kind == "drain":
                    await self._drain()
                else:
                    await self._cancel()
        except (errors.AmqpError, rpc_errors.CallRefused, Unavailable) as error:
            return error
        # What was asked before is answered.
        await self._answered(0)
        return None

    async def _subscribe(self, request: messages_pb2.Subscribe) -> None:
        rpc_properties.name_of("consumer_tag", request.consumer_tag, b"")
        identity, caller = self._services.identity, self._caller
        uid = self._uid
        name = rpc_properties.name_of("queue", request.queue, request.raw_queue)
        if request.HasField("declare") or request.bindings:
            name = await self._declare(name, request)
        queue = readable_queue(self._services, caller, name, uid)
        tag = request.consumer_tag or declarations.random_name("grpc.ctag-")
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
            calmed=self._moved.set,
        )
        self._consumer = consumer
        self._stream = self._services.queue_client.open(uid)
        caller.reads = queue.name
        # Registered first: deliveries may come before the checkout is answered.
        self._services.deliveries.add(consumer)
        await self._check_out(self._checkout(self._credit))
        text, raw = rpc_properties.both(queue.name)
        subscribed = messages_pb2.Subscribed(queue=text, consumer_tag=tag, raw_queue=raw)
        self._is_paused = False
        await self._say(messages_pb2.ConsumeResponse(subscribed=subscribed))

    async def _declare(self, name: str, request: messages_pb2.Subscribe) -> str:
        """Declare the queue and bind it; return its name."""
        if name or not request.HasField("declare") or len(request.bindings) > BINDINGS_MAX:
            raise rpc_errors.CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                "subscribe has either the name of a queue or a declaration, and only with that "
                f"bindings, {BINDINGS_MAX} at most",
            )
        self._declaring = TopologyCall(
            self._services, self._caller, rpc_auth.author_of(self._context), self._uid
        )
        name, _ = await self._declaring.declared(request.declare)
        for binding in request.bindings:
            await self._declaring.bound(binding, name)
        return name

    async def _say(self, response: messages_pb2.ConsumeResponse) -> None:
        """Answer; a client that asks and does not read is read no further."""
        self._answers.append(response)
        self._due.set()
        await self._answered(ANSWERS_MAX)

    async def _answered(self, left: int) -> None:
        """Wait until no more answers than that wait to be written."""
        while len(self._answers) > left:
            self._moved.clear()
            await self._moved.wait()

    def _checkout(self, credit: int, *, drains: bool = False) -> Checkout:
        """Return what tells the queue who consumes and how much it may hold.

        credit: how many more may be handed out.
        """
        consumer = self._consumer
        assert consumer is not None
        return Checkout(
            consumer=consumer.id,
            prefetch=consumer.prefetch,
            no_ack=False,
            exclusive=False,
            priority=consumer.priority,
            user=consumer.user,
            credit=credit,
            drains=drains,
            client=self._client(),
        )

    def _client(self) -> Client | None:
        """Return who consumes, for what is said at a death (ADR 88); None: nothing is said."""
        if not self._services.messages.profile.dlx_emit_last_death_consumer:
            return None
        # "grpc-python/1.85.1 grpc-c/53.0.0 (linux; chttp2)"
        agent = rpc_auth.metadata_of(self._context).get("user-agent", "").partition(" ")[0]
        product, _, version = agent.partition("/")
        return certificates.client(self._caller.name, product, version)

    async def _check_out(self, checkout: Checkout) -> int:
        """Tell the queue; return what a drain has left of the credit."""
        consumer, queues = self._consumer, self._services.queue_client
        assert consumer is not None
        found: int | Refused | None
        try:
            if checkout.drains:
                found = await queues.drain(consumer.uid, checkout)
            else:
                found = await queues.check_out(consumer.uid, checkout)
        except GroupGone as gone:
            missing = names.missing("queue", consumer.vhost, consumer.queue)
            raise errors.NotFound(missing) from gone
        if isinstance(found, Refused):
            resource = names.resource("queue", consumer.vhost, consumer.queue)
            raise errors.SoftError(f"{resource} {found.text}", code=found.code)
        return found or 0

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
                if credit:
                    await self._check_out(self._checkout(credit))
        except (errors.AmqpError, Unavailable) as error:
            return error

    def _add_credit(self, credit: int) -> None:
        if self._is_over:
            return
        before = self._credit
        self._credit = min(self._credit + credit, CREDIT_MAX)
        self._due.set()
        self._ungranted += self._credit - before
        self._granting.set()

    async def _withdraw(self) -> None:
        """Send nothing more, and have the queue reserve nothing: what was not sent returns."""
        # What the queue does not know of needs no word.
        withdrawn, self._ungranted = self._ungranted, 0
        self._credit -= withdrawn
        self._is_paused = True
        consumer = self._consumer
        assert consumer is not None
        if not self._is_over:
            left = await self._check_out(self._checkout(0, drains=True))
            self._credit -= left
            # What was handed out before is here, or on its way.
            while len(self._waiting) < self._credit:
                await self._wait_for_messages()
            # What is given back as it was and comes again looks like what a new leader sends twice.
            while self._waiting and consumer.recent is not None:
                await self._wait_for_messages()
            withdrawn += left + self._credit
            self._credit = 0
            self._give_back_waiting()
            self._is_paused = False
        await self._say(messages_pb2.ConsumeResponse(withdrawn={"credit": withdrawn}))

    def _give_back_waiting(self) -> None:
        """What waits is not sent, and returns to the queue as it was."""
        ranges = normalize((number, number + 1) for number, _, _ in self._waiting)
        self._waiting.clear()
        for low, high in ranges:
            self._held.remove(low, high)
        if ranges:
            self._settle_as(Settle.WITHDRAWN, ranges)

    def _settle_as(self, how: Settle, ranges: list[Range]) -> None:
        assert self._consumer is not None
        assert self._stream is not None
        self._stream.settle((self._consumer.uid, self._consumer.id), ranges, how)

    async def _drain(self) -> None:
        """Send what is ready, up to the credit, and no more."""
        unused = 0
        if not self._is_over:
            credit, self._ungranted = self._ungranted, 0
            unused = await self._check_out(self._checkout(credit, drains=True))
            self._credit -= unused
            while self._credit:
                await self._wait_for_messages()
        await self._say(messages_pb2.ConsumeResponse(drained={"credit": unused}))

    async def _wait_for_messages(self) -> None:
        """Wait until one has come or was sent; Unavailable if none does, and none can be sent."""
        self._moved.clear()
        try:
            async with asyncio.timeout(self._services.limits.operation_timeout_ms / 1000):
                await self._moved.wait()
        except TimeoutError:
            # A client that does not read is another matter (limits.write_timeout_ms).
            if self._is_paused or not (self._waiting or self._writing_from):
                raise Unavailable(
                    "messages that the queue has handed out do not arrive: subscribe again"
                ) from None

    async def _cancel(self) -> None:
        """End the subscription; what was sent stays (R-CS-3)."""
        consumer, services = self._consumer, self._services
        assert consumer is not None
        self._credit = self._ungranted = 0
        self._is_paused = self._is_over = True
        await services.queue_client.cancel(consumer.uid, consumer.id)
        services.deliveries.remove(consumer.id)
        for number, _, _ in self._waiting:
            self._held.remove(number, number + 1)
        self._waiting.clear()
        # What is on its way, too.
        sent = RangeSet([*self._unacked.numbers_of(consumer.id), *self._sending])
        self._settle_as(Settle.WITHDRAWN, sent.missing(*ALL_HELD))
        queue = services.queues.queue_of(consumer.uid)
        if queue is not None and queue.auto_delete:
            # R-Q-10: after cancel_ok the client finds the queue gone if this was its last consumer.
            await topology.counts(services.objects, queue)
        await self._say(messages_pb2.ConsumeResponse(cancel_ok={}))

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
        # What has no effect on a message that is accepted is not sent.
        reason = "" if how is Settle.ACCEPT else certificates.plain_reason(request.reason)
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
            self._stream.settle(holder, ranges, how, may_be_lost=may_be_lost, reason=reason)
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
        self._moved.set()

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
            while self._answers or self._may_send:
                if self._answers:
                    await self._context.write(self._answers[0])
                    self._answers.popleft()
                    self._moved.set()
                    continue
                self._writing_from = self._unacked.next_tag
                response = self._next_response()
                await self._context.write(response)
                self._writing_from = None
                self._settle_sent()
                self._moved.set()
            if self._failure is not None:
                return
            if self._cancelled is not None:
                await self._context.write(messages_pb2.ConsumeResponse(cancelled=self._cancelled))
                return

    @property
    def _may_send(self) -> bool:
        return bool(self._waiting) and self._credit > 0 and not self._is_paused

    def _next_response(self) -> messages_pb2.ConsumeResponse:
        consumer = self._consumer
        assert consumer is not None
        response = messages_pb2.ConsumeResponse()
        size = body_bytes = redelivered = 0
        while self._waiting and self._credit:
            number, run, content = self._waiting[0]
            size += len(content[1]) + len(content[2])
            if response.deliveries and size > RESPONSE_BYTES_MAX:
                # A large one comes alone, so that a client's limit need not hold more beside it.
                break
            self._waiting.popleft()
            self._credit -= 1
            tag = self._unacked.delivered(consumer.id, number, 1, self._auto)
            if self._auto:
                self._sending.append((number, number + 1))
            route, header, body, _ = content
            acquired = times_acquired(run)
            look = (route, header, acquired, run.delivery_count)
            if look != self._look:
                self._look = look
                self._head = rpc_properties.head_of(run, content, has_counts=consumer.has_counts)
            delivered = response.deliveries.add(delivery_tag=tag, body=body)
            delivered.MergeFrom(self._head)
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
