"""One Publish call of the Messages service: batches in, confirmed and rejected ranges out.

The same checks, router, publisher and confirms as an AMQP channel in confirm mode (session.py); the
client numbers its messages itself, and those numbers are the ones that `Confirms` tracks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from brokerd.amqp import errors, methods
from brokerd.core.alarms import resources_in
from brokerd.core.catalog.router import RouteResult
from brokerd.core.confirms import SequenceConfirms
from brokerd.core.message import Content
from brokerd.core.ranges import count_of
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import rpc_errors
from brokerd.server.grpc.publication_reader import (
    PUBLICATIONS_MAX,
    Alike,
    Key,
    PublicationReader,
)
from brokerd.server.messages.pipeline import Pipeline, Target
from brokerd.server.queues.turn import BATCH_BYTES_MAX
from brokerd.telemetry import client_totals

if TYPE_CHECKING:
    from brokerd.core.catalog.identity import Identity
    from brokerd.core.catalog.permissions import Access
    from brokerd.server.grpc.ports import StreamServices

#: Publications that may be unconfirmed before reading stops.
UNCONFIRMED_MAX = 65_536
#: Different (exchange, routing key, mandatory) a call remembers.
TARGETS_MAX = 1024
NAME_BYTES_MAX = 255
#: How often a call that an alarm has stopped looks whether it is over.
ALARM_POLL_S = 0.1


class Caller:
    """What the checks of a publish ask of a connection, and what listings show of one."""

    __slots__ = ("access", "identity", "name", "reads", "tags", "user", "vhost")

    def __init__(self, identity: Identity, access: Access, name: str) -> None:
        """access: its rights in the vhost; name: as logs and listings have it."""
        self.identity = identity
        self.vhost = access.vhost
        self.user = identity.user
        self.name = name
        self.tags = tuple(sorted(identity.tags))
        self.access = access
        #: The queue that a Consume call reads, once it does.
        self.reads: str | None = None


@dataclass(slots=True)
class _Run:
    """Consecutive publications with one target, consecutive sequences and nothing special."""

    key: Key
    target: Target
    result: RouteResult
    first: int
    contents: list[Content] = field(default_factory=list)
    size: int = 0

    def continues(self, key: Key, sequence: int) -> bool:
        """Tell whether a publication belongs to this run."""
        if key != self.key or sequence != self.first + len(self.contents):
            return False
        return self.size < BATCH_BYTES_MAX


async def first_of(*parts: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until a part of a call has ended, and fail as it has: a client that is not told of a
    defect waits for its deadline.
    """
    done, _ = await asyncio.wait(parts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for part in done:
        part.result()


class PublishStream:
    """State of one call.  Invariant: every sequence taken is awaited, due, or has been answered.

    In one piece: the reader and the writer of a call share all of it, batch by batch.
    """

    def __init__(
        self,
        services: StreamServices,
        caller: Caller,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        self._services = services
        self._topology = services.topology
        self._messages = services.messages
        self._counters = services.messages.counters
        self._caller = caller
        self._context = context
        self._uid = services.identity.next_uid()
        self._confirms = SequenceConfirms()
        self._totals = self._counters.totals[client_totals.GRPC]
        self._clock = self._counters.confirm_clock(caller.vhost, caller.user, self._totals)
        self._returned: list[messages_pb2.Returned] = []
        #: Bytes on their way to queues.
        self._bytes = 0
        #: Queues with too much on its way.
        self._held: set[str] = set()
        #: Something is to be written, or the reader has ended.
        self._due = asyncio.Event()
        #: The reader may look again whether there is room.
        self._room = asyncio.Event()
        self._reading_done = False
        self._run: _Run | None = None
        self._is_offer_due = False
        #: Fails when what was read could not be sent, which is a defect of ours.
        self._defect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._revision = 0
        self._targets: dict[Key, Target] = {}
        self._reader = PublicationReader(services.messages.profile.max_message_size)
        self._stream = services.queue_client.open(
            self._uid, self.answered, source=self, in_flight=self._in_flight
        )
        self._pipeline = Pipeline(
            services.messages, services.replies, caller, self._stream, self, self._totals
        )

    async def run(self, batches: AsyncIterator[list[bytes]]) -> None:
        """Serve the call: until the client closes its side and everything is answered.

        batches: PublishRequests as they came.
        """
        reading = asyncio.create_task(self._read(batches))
        writing = asyncio.create_task(self._write())
        parts = (reading, writing, self._defect)
        try:
            # The writer does not end before the reader.
            await first_of(*parts)
            problem = reading.result()
            self._reading_done = True
            self._due.set()
            # What was taken before a mistake is still answered, then the call ends with the error.
            timeout_s = self._services.limits.operation_timeout_ms / 1000
            await first_of(
                writing, self._defect, timeout_s=timeout_s if problem is not None else None
            )
        finally:
            for part in parts:
                part.cancel()
            self._end()
            await asyncio.gather(*parts, return_exceptions=True)
        if problem is not None:
            await rpc_errors.abort(self._context, problem)

    def _end(self) -> None:
        self._finish_run()
        self._stream.leave()

    # ---- in ---------------------------------------------------------------------------------

    async def _read(self, batches: AsyncIterator[list[bytes]]) -> BaseException | None:
        """Take requests until the client closes its side (None), makes a mistake, or the member
        stops.
        """
        problem: BaseException | None = None
        try:
            async for batch in batches:
                await self._wait_for_room()
                self._take(batch)
                if not self._is_offer_due:
                    # Requests that are there at once do not let others run between: they are one
                    # batch.
                    self._is_offer_due = True
                    asyncio.get_running_loop().call_soon(self._offer_read)
        except (errors.AmqpError, rpc_errors.CallRefused) as error:
            problem = error
        self._offer()
        return problem

    def _offer_read(self) -> None:
        """Do it for the reader, which waits for requests: the call ends with what fails here."""
        try:
            self._offer()
        except Exception as error:
            if self._defect.done():
                raise
            self._defect.set_exception(error)

    def _offer(self) -> None:
        """Send what was read, or let it wait while enough is on its way (queues/stream.py)."""
        self._is_offer_due = False
        self._finish_run()
        self._stream.offer()
        self._due.set()

    async def _wait_for_room(self) -> None:
        """Hold the client back: alarms (R-ALM-2), and what is on its way (hot-path.md rule 7)."""
        if reason := self._services.blocking_reason():
            await self._wait_for_alarms(reason)
        limit = self._services.limits.unconfirmed_bytes
        while (
            self._bytes > limit
            or self._held
            or self._confirms.outstanding > UNCONFIRMED_MAX
            or len(self._returned) > PUBLICATIONS_MAX
        ):
            self._room.clear()
            await self._room.wait()

    async def _wait_for_alarms(self, reason: str) -> None:
        """Count as blocked until no alarm is on anywhere, or the call ends (R-ALM-2)."""
        services, caller = self._services, self._caller
        services.blocked.add(caller, services.clock_ms(), reason)
        since_us, resources = self._counters.clock_us(), set(resources_in(reason))
        try:
            # An alarm wakes connections, and there are few calls.
            while reason := services.blocking_reason():
                resources.update(resources_in(reason))
                await asyncio.sleep(ALARM_POLL_S)
        finally:
            services.blocked.discard(caller)
            blocked_ms = (self._counters.clock_us() - since_us) // 1000
            cause = " & ".join(sorted(resources))
            self._counters.throttle(
                caller.vhost, caller.user, caller.name, "call_held", blocked_ms, cause
            )

    def _take(self, requests: list[bytes]) -> None:
        found: list[Alike] = []
        try:
            for request in requests:
                self._reader.read(request, found)
        finally:
            # What comes before a mistake is published.
            for alike in found:
                self._publish(alike)

    def _publish(self, alike: Alike) -> None:
        head, bodies = alike.head, alike.bodies
        key, header = head.key, head.header
        target = self._target(key)
        if target.result is None or not head.is_plain:
            self._finish_run()
            for sequence, body in enumerate(bodies, alike.first):
                self._publish_special(sequence, body, target, header)
            return
        run = self._run
        if run is None or not run.continues(key, alike.first):
            self._finish_run()
            run = self._run = _Run(key, target, target.result, alike.first)
        self._number(alike.first, len(bodies))
        route = target.route
        run.contents += [(route, header, body, b"") for body in bodies]
        run.size += len(header) * len(bodies) + alike.size

    def _number(self, sequence: int, count: int) -> None:
        if not self._confirms.number(sequence, count):
            raise rpc_errors.CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"sequence {sequence}: sequences must rise, {self._confirms.next_sequence} or more "
                "was expected (the first one is at least 1)",
            )

    def _target(self, key: Key) -> Target:
        """Return what is known of an exchange and key, good for one revision of the topology."""
        if self._revision != self._topology.topology_revision:
            self._finish_run()
            self._revision = self._topology.topology_revision
            self._targets.clear()
        target = self._targets.get(key)
        if target is None:
            exchange, routing_key, mandatory = key
            for what, text in (("exchange", exchange), ("routing_key", routing_key)):
                if len(text.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
                    raise rpc_errors.CallRefused(
                        grpc.StatusCode.INVALID_ARGUMENT,
                        f"{what} is longer than {NAME_BYTES_MAX} bytes",
                    )
            method = methods.BasicPublish(0, exchange, routing_key, mandatory)
            target = self._pipeline.resolve(method, self._revision)
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[key] = target
        return target

    def _publish_special(self, sequence: int, body: bytes, target: Target, header: bytes) -> None:
        """Publish one message whose properties concern the broker, or decide where it goes."""
        content, result, replies = self._pipeline.check(target, header, body)
        self._number(sequence, 1)
        self._send(target, result, [content], sequence, replies)

    def _finish_run(self) -> None:
        run, self._run = self._run, None
        if run is not None and run.contents:
            self._send(run.target, run.result, run.contents, run.first, run.target.replies)

    def _send(
        self,
        target: Target,
        result: RouteResult,
        contents: list[Content],
        first: int,
        replies: tuple[str, ...],
    ) -> None:
        self._pipeline.send(
            target.method, result, contents, first, replies, self._confirms, self._clock
        )

    def returned(
        self,
        method: methods.BasicPublish,
        contents: Sequence[Content],
        first: int,
        why: tuple[int, str],
    ) -> None:
        """Say which messages nobody took."""
        code, text = why
        self._returned += [
            messages_pb2.Returned(sequence=sequence, reply_code=code, reply_text=text)
            for sequence in range(first, first + len(contents))
        ]

    # ---- out --------------------------------------------------------------------------------

    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """A queue has answered."""
        for first, count, accepted in outcomes:
            self._confirms.answered(first, count, accepted)
        self._due.set()

    def _in_flight(self, size: int) -> None:
        self._bytes += size
        if size < 0:
            self._room.set()

    def hold_flow(self, reason: str) -> None:
        """Read no more since too much is on its way to a queue."""
        self._held.add(reason)

    def release_flow(self, reason: str) -> None:
        """That has arrived."""
        self._held.discard(reason)
        self._room.set()

    async def _write(self) -> None:
        """Write answers as they come; end once the reader has ended and all is answered."""
        while True:
            await self._due.wait()
            self._due.clear()
            response = self._response()
            if response is not None:
                # Answers that come meanwhile are joined in the next response.
                await self._context.write(response)
                self._room.set()
                self._due.set()
            elif self._reading_done and not self._confirms.outstanding:
                return

    def _response(self) -> messages_pb2.PublishResponse | None:
        confirmed, rejected = self._confirms.due_ranges()
        acks, nacks = self._confirms.take()
        returned, self._returned = self._returned, []
        if not confirmed and not rejected and not returned:
            return None
        if self._confirms.has_gaps:
            # The clock takes "multiple" for all numbers below; here some of them never were.
            self._totals.confirmed += count_of(confirmed)
            self._counters.confirmed(
                self._caller.vhost, self._caller.user, count_of(confirmed), len(nacks)
            )
        else:
            self._clock.confirmed(acks, nacks)
        return messages_pb2.PublishResponse(
            confirmed=[
                messages_pb2.SequenceRange(first=low, last=high - 1) for low, high in confirmed
            ],
            rejected=[
                messages_pb2.SequenceRange(first=low, last=high - 1) for low, high in rejected
            ],
            returned=returned,
        )
