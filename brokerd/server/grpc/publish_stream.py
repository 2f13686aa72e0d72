"""One Publish call of the Messages service: batches in, confirmed and rejected ranges out.

The client numbers its messages itself, and those numbers are the ones that `Confirms` tracks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from brokerd.amqp import errors, methods
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.ranges import count_of
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import rpc_errors
from brokerd.server.grpc.publication_reader import Alike, Key, PublicationReader
from brokerd.server.grpc.publish_channel import Caller, PublishChannel, does_not_rise, first_of
from brokerd.server.messages.pipeline import Target
from brokerd.server.queues.turn import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import StreamServices


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


class PublishStream(PublishChannel):
    """State of one call.  Invariant: every sequence taken is awaited, due, or has been answered.

    In one piece: the reader and the writer of a call share all of it, batch by batch.
    """

    def __init__(
        self,
        services: StreamServices,
        caller: Caller,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        super().__init__(services, caller)
        self._context = context
        #: Something is to be written, or the reader has ended.
        self._due = asyncio.Event()
        self._reading_done = False
        self._run: _Run | None = None
        self._is_offer_due = False
        #: Fails when what was read could not be sent, which is a defect of ours.
        self._defect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = PublicationReader(services.messages.profile.max_message_size)

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
        if self._revision != self._topology.topology_revision:
            self._finish_run()
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
            raise does_not_rise(sequence, self._confirms.next_sequence)

    def _publish_special(self, sequence: int, body: bytes, target: Target, header: bytes) -> None:
        """Publish one message whose properties concern the broker, or decide where it goes."""
        content, result, replies = self._pipeline.check(target, header, body)
        self._number(sequence, 1)
        self._send(target, result, [content], sequence, replies)

    def _finish_run(self) -> None:
        run, self._run = self._run, None
        if run is not None and run.contents:
            self._send(run.target, run.result, run.contents, run.first, run.target.replies)

    def returned(
        self,
        method: methods.BasicPublish,
        contents: Sequence[Content],
        first: int,
        why: tuple[int, str],
    ) -> None:
        """Report messages that no queue or channel took."""
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
