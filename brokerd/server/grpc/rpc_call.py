"""One gRPC call of a client: who calls is known before its body is read (ADR 18).

A call is also the context that services get; it has of grpc.aio's what they use, with the same
meaning.  rpc_connection.py hands it the stream's events.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn, Protocol
from urllib.parse import quote

import grpc

from brokerd.cluster.errors import CallRefused as MessageRefused
from brokerd.cluster.peer import grpc_messages
from brokerd.http2 import many_streams
from brokerd.http2.framing import Header
from brokerd.server.grpc import rpc_auth
from brokerd.server.grpc.rpc_budget import Budget
from brokerd.server.grpc.rpc_errors import TEXT_CHARACTERS_MAX, CallRefused

log = logging.getLogger(__name__)

#: SEC-47: one message of 16 MiB and its envelope.
RECEIVE_BYTES_MAX = 17 * 1024 * 1024
#: What a call may have on the way and unhandled once it is known who calls.
STREAM_BYTES = 256 * 1024
#: The same of one that sends half of that within this time, if there is room.
WIDE_BYTES = 1024 * 1024
FAST_S = 0.05
#: A message of which more than this is missing is promised its memory before it is asked for.
LARGE_BYTES = STREAM_BYTES // 2
#: The member stops: so long calls may take to answer what they have read.  What waits for an
#: election has its answer within it, a confirm as well as a declare.
ANSWERS_S = 3.0
#: A message in memory is at least that much more than its bytes.
MESSAGE_BYTES = 64
#: Deadlines beyond this (eleven days) are none; the loop's clock takes no such numbers.
TIMEOUT_S_MAX = 1e6

_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_HEADERS = many_streams.encode_headers(grpc_messages.response_headers())
_OK = many_streams.encode_headers([(b"grpc-status", b"0")])


class Connection(Protocol):
    """What a call came on (rpc_connection.py)."""

    peer: str
    http2: many_streams.Http2Server
    budget: Budget
    #: Calls whose answers may be large have turns.
    large_answers: asyncio.Semaphore

    async def log_in(self, call: RpcCall) -> rpc_auth.Caller:
        """Return the caller; CallRefused if the login fails."""
        ...

    def let_in(self, call: RpcCall) -> None:
        """A call needs no login."""
        ...

    def has_to_send(self, call: RpcCall) -> None:
        """A call has a message to send."""
        ...

    def flush_soon(self) -> None:
        """Write what is to be sent once the loop has done what it is at."""
        ...

    def call_ended(self, call: RpcCall) -> None:
        """A call has its status, or was given up."""
        ...

    def watch(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call lost() when the connection is gone, unless what is returned is called before."""
        ...


class CallEnded(Exception):
    """The call has its status: `abort` ends the work of its service with it."""


class RpcCall:
    """State of one call.

    Invariant: `_counted` bytes of the connection's budget are this call's: what was received and is
    not handled (`_held`), or what it was promised (`_promised`) or may always have (`_reserved`) if
    that is more.

    In one piece: the one context that servicers see in the place of grpc.aio's, budget included.
    """

    def __init__(
        self,
        connection: Connection,
        stream: many_streams.Stream,
        handler: grpc.RpcMethodHandler[Any, Any],
        headers: Mapping[bytes, bytes],
        *,
        is_public: bool = False,
    ) -> None:
        self.stream = stream
        self.headers = headers
        #: Who calls, once that is known (rpc_auth.py).
        self.caller: rpc_auth.Caller | None = None
        #: Bytes of its body so far.
        self.received = 0
        #: Of anybody: nothing is asked but a health check (rpc_connection.py).
        self.is_public = is_public
        #: What waits to be sent, and who waits for that.
        self.unsent: memoryview | None = None
        self._sent: asyncio.Future[None] | None = None
        self._connection = connection
        self._handler: Any = handler
        self._reader = grpc_messages.MessageReader(RECEIVE_BYTES_MAX)
        self._messages: deque[bytes] = deque()
        self._has_ended = stream.has_ended
        self._arrived: asyncio.Future[None] | None = None
        self._held = 0
        self._taken = 0
        self._promised = 0
        self._reserved = 0
        self._opened_s = 0.0
        self._counted = 0
        self._is_finished = False
        #: It has a turn of `large_answers`.
        self._has_turn = False
        #: Why nothing more is read, once the member stops.
        self._farewell = ""
        self._sent_headers = False
        self._deadline: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to serve it."""
        loop = asyncio.get_running_loop()
        timeout_s = parse_timeout(self.headers.get(b"grpc-timeout", b""))
        if timeout_s is not None:
            self._deadline = loop.call_later(timeout_s, self._expire)
        self.task = loop.create_task(self._run())

    # ---- what comes -----------------------------------------------------------------------------

    def data_received(self, data: bytes, ends: bool) -> None:
        """Take data of the stream; the call is refused if it may not hold so much."""
        if self._is_finished or self._farewell:
            return
        try:
            messages = self._reader.feed(memoryview(data))
        except MessageRefused as error:
            self._end_with(_code(error.status), str(error))
            return
        self.received += len(data)
        self._held += len(data) + MESSAGE_BYTES * len(messages)
        if messages:
            # A promise was for the message that is whole now.
            self._promised = 0
            self._messages += messages
        self._has_ended = ends
        if not self._count():
            self._end_with(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many bytes of unfinished requests at this connection, or at this member",
            )
            return
        if messages or ends:
            self._wake()
        self.ask_for_more()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _count(self) -> bool:
        """Bring the budget up to date; False if there is not so much."""
        wanted = max(self._held, self._promised, self._reserved)
        change, budget = wanted - self._counted, self._connection.budget
        if change > 0 and not budget.take(change):
            return False
        self._counted = wanted
        if change < 0:
            budget.give(-change)
            budget.serve()
        return True

    def ask_for_more(self) -> None:
        """Open the stream's window as far as there is room for what comes."""
        stream = self.stream
        if self.caller is None or self._has_ended or self._is_finished or self._farewell:
            return
        missing = self._reader.missing
        if missing > LARGE_BYTES and not self._promised:
            budget = self._connection.budget
            if not self._take_promise() and not budget.wait(self._take_promise):
                self._end_with(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "too many large requests at this member"
                )
            return
        self._open_window(stream)

    def _open_window(self, stream: many_streams.Stream) -> None:
        window = max(STREAM_BYTES, self._reserved)
        room = max(window, self._promised) - self._held - stream.room
        # Not for every little, but for all that a message lacks.
        if room >= window // 2 or (room > 0 and self._reader.missing > stream.room):
            if not self._reserved:
                room += self._widen()
            self._connection.http2.allow(stream, room)
            self._connection.flush_soon()

    def _widen(self) -> int:
        """Let a fast call have more on the way from now on, if there is memory; return how much.

        What it has sent and we have not read cannot be seen: it is fast that empties its window
        soon after it was opened.
        """
        now_s = asyncio.get_running_loop().time()
        before_s, self._opened_s = self._opened_s, now_s
        change = max(WIDE_BYTES - self._counted, 0)
        if now_s - before_s > FAST_S or not self._connection.budget.reserve(change):
            return 0
        self._reserved = WIDE_BYTES
        self._counted += change
        return WIDE_BYTES - STREAM_BYTES

    def _take_promise(self) -> bool:
        """Get the memory for the whole of a large message; True as well if the call is over."""
        if self._is_finished:
            return True
        wanted = self._held + self._reader.missing + MESSAGE_BYTES
        change = max(wanted - self._counted, 0)
        if change and not self._connection.budget.promise(change):
            return False
        self._promised = wanted
        self._counted += change
        self._open_window(self.stream)
        return True

    def _release(self) -> None:
        """The message that was handed out last is handled."""
        self._held -= self._taken
        # What is promised for the next one was counted upon it.
        self._promised = max(0, self._promised - self._taken)
        self._taken = 0
        self._count()
        self.ask_for_more()

    async def _next(self) -> bytes | None:
        """Return the next message, None after the last; those handed out before stay counted."""
        while not self._messages:
            if self._has_ended:
                if self._reader.missing:
                    raise CallRefused(grpc.StatusCode.INTERNAL, "the last message is not whole")
                return None
            if self._farewell:
                raise CallRefused(grpc.StatusCode.UNAVAILABLE, self._farewell)
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self._pop()

    def _pop(self) -> bytes:
        message = self._messages.popleft()
        self._taken += len(message) + grpc_messages.PREFIX_BYTES + MESSAGE_BYTES
        return message

    async def _requests(self) -> AsyncIterator[Any]:
        while True:
            self._release()
            message = await self._next()
            if message is None:
                return
            yield self._decode(message)

    async def _batches(self) -> AsyncIterator[list[bytes]]:
        """Give what has come at once, as it came; it stays counted until more is asked for."""
        while True:
            self._release()
            message = await self._next()
            if message is None:
                return
            batch = [message]
            while self._messages:
                batch.append(self._pop())
            yield batch

    async def _request(self) -> Any:
        """Return the request of a call that has one; its bytes are counted until the call ends."""
        message = await self._next()
        if message is None or await self._next() is not None:
            raise CallRefused(grpc.StatusCode.INTERNAL, "this method takes exactly one message")
        return self._decode(message)

    def _decode(self, message: bytes) -> Any:
        try:
            return self._handler.request_deserializer(message)
        except Exception as error:
            text = f"the request cannot be read: {error}"
            raise CallRefused(grpc.StatusCode.INVALID_ARGUMENT, text) from error

    # ---- the service's side: grpc.aio.ServicerContext --------------------------------------------

    def peer(self) -> str:
        """Return the caller's address as gRPC spells it."""
        return self._connection.peer

    def watch_connection(self, lost: Callable[[], None]) -> Callable[[], None]:
        """See Connection.watch."""
        return self._connection.watch(lost)

    async def wait_for_turn(self) -> None:
        """Wait until few calls of this connection have answers of some size in memory, as this one
        may from now on: a turn ends with its call, once the answer has been sent.
        """
        await self._connection.large_answers.acquire()
        self._has_turn = not self._is_finished
        if self._is_finished:
            self._connection.large_answers.release()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that are not HTTP/2's own."""
        return tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self.headers.items()
            if not name.startswith(b":")
        )

    async def send_initial_metadata(self, metadata: object) -> None:
        """Send the headers of the answer."""
        self._send_headers()

    def _send_headers(self) -> None:
        if not self._sent_headers and not self._is_finished:
            self._sent_headers = True
            self._connection.http2.send_headers(self.stream, _HEADERS)
            self._connection.flush_soon()

    async def write(self, message: Any) -> None:
        """Send a message; returns when it is on its way."""
        if self._is_finished:
            raise CallEnded
        self._send_headers()
        data = self._handler.response_serializer(message)
        self.unsent = memoryview(grpc_messages.prefix(len(data)) + data)
        # It may wait for long to be sent: once in memory is enough.
        del message, data
        self._sent = asyncio.get_running_loop().create_future()
        self._connection.has_to_send(self)
        await self._sent

    def all_sent(self) -> None:
        """What waited has been sent."""
        self.unsent = None
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with a status."""
        self.finish(code, details)
        raise CallEnded

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, code: grpc.StatusCode, text: str = "") -> None:
        """Send the status, unless there was one."""
        if self._is_finished:
            return
        if code is grpc.StatusCode.OK:
            self._send_headers()
            block = _OK
        else:
            headers = status_headers(code, text)
            if not self._sent_headers:
                headers = grpc_messages.response_headers() + headers
            block = many_streams.encode_headers(headers)
        self._connection.http2.send_headers(self.stream, block, ends=True)
        self._connection.flush_soon()
        self._let_go()

    def _let_go(self) -> None:
        self._is_finished = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._messages.clear()
        self._reader = grpc_messages.MessageReader(RECEIVE_BYTES_MAX)
        self.unsent = None
        budget = self._connection.budget
        budget.leave(self._take_promise)
        counted, self._counted = self._counted, 0
        self._held = self._taken = self._promised = self._reserved = 0
        self._connection.call_ended(self)
        if self._has_turn:
            self._has_turn = False
            self._connection.large_answers.release()
        budget.give(counted)
        budget.serve()

    def _end_with(self, code: grpc.StatusCode, text: str) -> None:
        """End the call from outside its work."""
        self.finish(code, text)
        if self.task is not None:
            self.task.cancel()

    def _expire(self) -> None:
        self._end_with(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def stop(self, text: str) -> None:
        """The member stops: what has been read is still answered, then the call ends UNAVAILABLE.

        The client knows then that what it sent and has no answer to was never taken.
        """
        self._farewell = text
        self._wake()
        # A watch, as a rule, has no end of its own.
        is_watch = self._handler.response_streaming and not self._handler.request_streaming
        left_s = 0.0 if is_watch else ANSWERS_S
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(
            left_s, self._end_with, grpc.StatusCode.UNAVAILABLE, text
        )

    def stop_stalled(self) -> None:
        """End a large message that does not come, so that its memory serves others."""
        self._end_with(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request came too slowly")

    def stop_unread(self, timeout_s: float) -> None:
        """End it, since its client takes nothing of what is sent."""
        text = f"its answers were not read for {timeout_s:g} seconds (limits.write_timeout_ms)"
        self._end_with(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    @property
    def is_awaited(self) -> bool:
        """Whether a message that memory was promised for is on its way."""
        return bool(self._promised) and not self._has_ended

    def cancel(self) -> None:
        """The other side has given it up, or is gone."""
        if not self._is_finished:
            self._let_go()
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            if self.is_public:
                # No more of its body is asked for than HTTP/2 lets everybody send.
                self._connection.let_in(self)
            else:
                self.caller = await self._connection.log_in(self)
                self.ask_for_more()
            await self._serve()
            self.finish(grpc.StatusCode.OK)
        except CallEnded:
            pass
        except CallRefused as error:
            self.finish(error.code, str(error))
        except asyncio.CancelledError:
            self.finish(grpc.StatusCode.CANCELLED, "the call was cancelled")
            raise
        except Exception as error:
            log.exception("gRPC %s failed", self.headers.get(b":path", b"").decode("latin-1"))
            self.finish(grpc.StatusCode.INTERNAL, f"Unexpected {type(error)}: {error}")

    async def _serve(self) -> None:
        handler = self._handler
        argument: Any
        if not handler.request_streaming:
            argument = await self._request()
        elif handler.request_deserializer is None:
            argument = self._batches()
        else:
            argument = self._requests()
        if not handler.response_streaming:
            work = handler.stream_unary if handler.request_streaming else handler.unary_unary
            await self.write(await work(argument, self))
            return
        work = handler.stream_stream if handler.request_streaming else handler.unary_stream
        answers = work(argument, self)
        if not inspect.isasyncgen(answers):
            await answers
            return
        try:
            async for answer in answers:
                await self.write(answer)
        finally:
            await answers.aclose()


def _code(status: int) -> grpc.StatusCode:
    return grpc.StatusCode[grpc_messages.Status(status).name]


def status_headers(code: grpc.StatusCode, text: str) -> list[Header]:
    """Return the trailers that end a call."""
    number: int = code.value[0]
    # Names that are quoted in it may be no UTF-8.
    safe = " !\"#$&'()*+,/:;<=>?@[]^`{|}"
    message = quote(text[:TEXT_CHARACTERS_MAX], safe=safe, errors="replace")
    return [(b"grpc-status", b"%d" % number), (b"grpc-message", message.encode())]


def parse_timeout(text: bytes) -> float | None:
    """Return the seconds of a grpc-timeout header; None: no deadline."""
    unit = _UNIT_S.get(text[-1:])
    if unit is None or len(text) > 9 or not text[:-1].isdigit():
        return None
    seconds = int(text[:-1]) * unit
    return seconds if seconds < TIMEOUT_S_MAX else None
