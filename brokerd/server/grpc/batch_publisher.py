"""PublishBatch: some publications, answered when each of them has its outcome.

All such calls of a user on a connection are one channel to the queues, so that a call costs no more
than its messages: a queue that heard of a channel for each call, and of its end, would have three
commands in the place of one.  The channel ends with the connection, or when it has had no call for
a while.

A call is checked as a whole before anything of it is published: one that fails for a mistake has
published none.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from brokerd.amqp import methods
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content, Range
from brokerd.core.ranges import normalize
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc.call_guest import CallGuest
from brokerd.server.grpc.publication_reader import Alike, PublicationReader
from brokerd.server.grpc.publish_channel import Caller, PublishChannel, does_not_rise, first_of
from brokerd.server.grpc.rpc_errors import CallRefused
from brokerd.server.messages.pipeline import Target

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import StreamServices

#: Time without a call after which a channel ends: it counts as a connection of its user.
IDLE_S = 10.0


@dataclass(slots=True)
class _Run:
    """Publications that go the same way, with consecutive sequences; checked."""

    target: Target
    result: RouteResult
    replies: tuple[str, ...]
    contents: list[Content]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that has published: its messages have the channel's numbers from `first` to `end`.

    segments: (the channel's number, the call's sequence) where a run of both begins.
    """

    done: asyncio.Future[None]
    first: int
    end: int
    segments: list[tuple[int, int]]
    left: int
    confirmed: list[Range] = field(default_factory=list)
    rejected: list[Range] = field(default_factory=list)
    returned: list[messages_pb2.Returned] = field(default_factory=list)

    def sequences(self, low: int, high: int) -> list[Range]:
        """Return the call's sequences of numbers of the channel."""
        found = []
        begins = [number for number, _ in self.segments]
        at = bisect_right(begins, low) - 1
        while low < high:
            number, sequence = self.segments[at]
            at += 1
            stop = min(high, begins[at] if at < len(begins) else high)
            found.append((sequence + low - number, sequence + stop - number))
            low = stop
        return found

    def response(self) -> messages_pb2.PublishResponse:
        """Return the answer."""
        return messages_pb2.PublishResponse(
            confirmed=_ranges(self.confirmed),
            rejected=_ranges(self.rejected),
            returned=self.returned,
        )


class BatchPublisher(PublishChannel, CallGuest):
    """The PublishBatch calls of a user on a connection.

    State: the calls that wait for outcomes, by the numbers of their messages, which rise.
    """

    def __init__(
        self,
        services: StreamServices,
        caller: Caller,
        peer: str,
        ended: Callable[[BatchPublisher], None],
    ) -> None:
        """ended(self): called once, when it takes no more calls."""
        PublishChannel.__init__(self, services, caller)
        CallGuest.__init__(self, caller, self._uid, peer, services.clock_ms())
        self._ended = ended
        self._reason: tuple[grpc.StatusCode, str] | None = None
        self._waiting: list[_Waiting] = []
        #: Calls under way, those that have yet to publish among them.
        self._calls = 0
        self._turn = asyncio.Lock()
        self._is_offer_due = False
        self._timeout_s = services.limits.operation_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._used_s = self._loop.time()
        #: Done when it has ended.
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._reader = PublicationReader(services.messages.profile.max_message_size)
        self._idle = self._loop.call_later(IDLE_S, self._end_if_idle)

    # ---- calls ------------------------------------------------------------------------------

    async def publish(self, request: bytes) -> messages_pb2.PublishResponse:
        """Publish what a request has; return what became of it."""
        self._calls += 1
        try:
            return await self._published(request)
        finally:
            self._calls -= 1
            self._used_s = self._loop.time()

    async def _published(self, request: bytes) -> messages_pb2.PublishResponse:
        runs, segments, count = self._checked(request)
        if self._services.blocking_reason() or not self._may_go_on():
            await self._wait_for_turn()
            # Exchanges and rights may be others now.
            runs, segments, count = self._checked(request)
        if self._reason is not None:
            raise CallRefused(*self._reason)
        waiting = self._numbered(segments, count)
        self._waiting.append(waiting)
        try:
            self._publish(runs, waiting.first)
            if waiting.left:
                await self._outcomes_of(waiting)
        finally:
            if waiting.left:
                # No call waits for their outcomes any more.
                self._waiting.remove(waiting)
        return waiting.response()

    def _may_go_on(self) -> bool:
        return not self._turn.locked() and self._has_room(self._services.limits.unconfirmed_bytes)

    async def _wait_for_turn(self) -> None:
        """Hold calls back as a Publish call's reader is held back, in their order."""
        waiting = asyncio.create_task(self._take_turn())
        try:
            await first_of(waiting, self._closed)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _take_turn(self) -> None:
        async with self._turn:
            await self._wait_for_room()

    def _checked(self, request: bytes) -> tuple[list[_Run], list[tuple[int, int]], int]:
        """Return what is to be published; the segments' numbers count from 0."""
        found: list[Alike] = []
        self._reader.read(request, found)
        runs: list[_Run] = []
        segments: list[tuple[int, int]] = []
        count, expected = 0, 1
        for alike in found:
            if alike.first < expected:
                raise does_not_rise(alike.first, expected)
            if alike.first > expected or not segments:
                segments.append((count, alike.first))
            count += len(alike.bodies)
            expected = alike.first + len(alike.bodies)
            runs += self._runs_of(alike)
        return runs, segments, count

    def _runs_of(self, alike: Alike) -> list[_Run]:
        head = alike.head
        target = self._target(head.key)
        if target.result is not None and head.is_plain:
            contents = [(target.route, head.header, body, b"") for body in alike.bodies]
            return [_Run(target, target.result, target.replies, contents)]
        runs = []
        for body in alike.bodies:
            content, result, replies = self._pipeline.check(target, head.header, body)
            runs.append(_Run(target, result, replies, [content]))
        return runs

    def _numbered(self, segments: list[tuple[int, int]], count: int) -> _Waiting:
        first = self._confirms.published(count)
        return _Waiting(
            self._loop.create_future(),
            first,
            first + count,
            [(first + at, sequence) for at, sequence in segments],
            count,
        )

    def _publish(self, runs: list[_Run], number: int) -> None:
        for run in runs:
            self._send(run.target, run.result, run.contents, number, run.replies)
            number += len(run.contents)
        if not self._is_offer_due:
            # Calls that are there at once are one batch.
            self._is_offer_due = True
            self._loop.call_soon(self._offer)
        self._take_outcomes()

    async def _outcomes_of(self, waiting: _Waiting) -> None:
        # A third of what asyncio.timeout costs.
        timer = self._loop.call_later(self._timeout_s, self._late, waiting.done)
        try:
            await waiting.done
        finally:
            timer.cancel()

    def _late(self, done: asyncio.Future[None]) -> None:
        text = (
            f"no answer from a queue within {self._timeout_s:g} s: "
            "it may take the messages over later"
        )
        _end_with(done, CallRefused(grpc.StatusCode.UNAVAILABLE, text))

    def _offer(self) -> None:
        self._is_offer_due = False
        try:
            self._stream.offer()
        except Exception as defect:
            # Of ours: no outcome would come.
            self._fail(defect)

    def _fail(self, error: Exception) -> None:
        """End all calls that wait."""
        for waiting in self._waiting:
            _end_with(waiting.done, error)

    # ---- outcomes ---------------------------------------------------------------------------

    def returned(
        self,
        method: methods.BasicPublish,
        contents: Sequence[Content],
        first: int,
        why: tuple[int, str],
    ) -> None:
        """See PublishChannel."""
        waiting = self._of_number(first)
        if waiting is None:
            return
        code, text = why
        waiting.returned += [
            messages_pb2.Returned(sequence=sequence, reply_code=code, reply_text=text)
            for low, high in waiting.sequences(first, first + len(contents))
            for sequence in range(low, high)
        ]

    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """See PublishChannel."""
        for first, count, accepted in outcomes:
            self._confirms.answered(first, count, accepted)
        self._take_outcomes()

    def _take_outcomes(self) -> None:
        """Hand what is decided to its calls."""
        if not self._confirms:
            return
        confirmed, rejected = self._confirms.due_ranges()
        self._clock.confirmed(*self._confirms.take())
        for low, high in confirmed:
            self._hand_out(low, high, is_confirmed=True)
        for low, high in rejected:
            self._hand_out(low, high, is_confirmed=False)
        self._waiting = [waiting for waiting in self._waiting if waiting.left]
        self._room.set()

    def _hand_out(self, low: int, high: int, *, is_confirmed: bool) -> None:
        begin_at = bisect_right(self._waiting, low, key=_first) - 1
        for at in range(max(begin_at, 0), len(self._waiting)):
            waiting = self._waiting[at]
            if waiting.first >= high:
                return
            begin, stop = max(low, waiting.first), min(high, waiting.end)
            if begin >= stop:
                continue
            ranges = waiting.confirmed if is_confirmed else waiting.rejected
            ranges += waiting.sequences(begin, stop)
            waiting.left -= stop - begin
            if not waiting.left and not waiting.done.done():
                waiting.done.set_result(None)

    def _of_number(self, number: int) -> _Waiting | None:
        at = bisect_right(self._waiting, number, key=_first) - 1
        if at < 0 or number >= self._waiting[at].end:
            return None
        return self._waiting[at]

    # ---- the end ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Tell whether it takes calls."""
        return self._reason is None

    def end(self, code: grpc.StatusCode, text: str) -> None:
        """End its calls with a status."""
        if self._reason is not None:
            return
        self._reason = code, text
        self._idle.cancel()
        self._closed.set_result(None)
        self._fail(CallRefused(code, text))
        self._stream.leave()
        self._ended(self)

    def connection_lost(self) -> None:
        """The client is gone: its calls are cancelled with their connection."""
        self.end(grpc.StatusCode.CANCELLED, "the connection is closed")

    def _end_if_idle(self) -> None:
        idle_s = self._loop.time() - self._used_s
        if self._calls or idle_s < IDLE_S:
            left_s = IDLE_S if self._calls else IDLE_S - idle_s
            self._idle = self._loop.call_later(left_s, self._end_if_idle)
        else:
            self.end(grpc.StatusCode.UNAVAILABLE, "no call for a while")


def _end_with(done: asyncio.Future[None], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        # Looked at: a call that is being cancelled does not.
        done.exception()


def _first(waiting: _Waiting) -> int:
    return waiting.first


def _ranges(numbers: list[Range]) -> list[messages_pb2.SequenceRange]:
    return [
        messages_pb2.SequenceRange(first=low, last=high - 1) for low, high in normalize(numbers)
    ]
