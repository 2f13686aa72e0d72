"""One connection between members on an asyncio socket: bytes to http2.py and back, signs of life.

No task per message: what is read is handed over within the loop's call, what is sent is one write
per flush (design/hot-path.md rule 1).  transport.py dials with it, peer_service.py listens with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, assert_never

from brokerd.cluster.config import TransportConfig
from brokerd.cluster.errors import CallRefused
from brokerd.cluster.peer import grpc_messages
from brokerd.http2 import one_stream
from brokerd.http2.errors import Http2Error

#: Up to here the pieces of a write are joined, which is cheaper than to hand them over singly.
JOIN_BYTES_MAX = 64 * 1024
#: A timer that fires this much too late says that this process did not run, not that the other
#: side was silent.
LATE_S = 1.0


class PeerConnection(asyncio.Protocol):
    """Base of both ends.

    Owns the socket from connection_made on.  `lost` is done once it is closed; its result says
    why.  `can_send`: neither the socket nor the other side's window holds anything back.
    """

    def __init__(self, limits: TransportConfig, *, is_client: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.http2 = one_stream.Http2Connection(is_client=is_client)
        self.reader = grpc_messages.MessageReader(
            min(limits.hello_bytes_max, limits.receive_bytes_max)
        )
        self.lost: asyncio.Future[Exception | None] = self.loop.create_future()
        #: False: what still comes is dropped.
        self.takes_messages = True
        self._transport: asyncio.Transport | None = None
        self._joins_always = False
        self._is_paused = False
        self._reason: Exception | None = None
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._keepalive: asyncio.TimerHandle | None = None

    # ---- for the subclasses ---------------------------------------------------------------------

    def opened(self) -> None:
        """The socket stands, TLS included."""

    def message_received(self, message: bytes) -> None:
        """Take a message; CallRefused and FrameError end the call."""
        raise AssertionError("a subclass takes messages")

    def headers_received(self, event: one_stream.HeadersReceived) -> None:
        """Take headers or trailers; CallRefused ends the call."""
        raise AssertionError("a subclass takes headers")

    def stream_ended(self, code: int | None) -> None:
        """The other side sends no more; `code` if it reset the stream."""

    def can_send_again(self) -> None:
        """What held writing back is gone."""

    def refuse(self, error: CallRefused) -> None:
        """End the call for a message or header that is not allowed."""
        self.give_up(error)

    def hold_reading(self, is_held: bool) -> None:
        """Leave what comes to the socket's buffers for a while."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if is_held:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # ---- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._joins_always = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(self.limits.write_buffer_bytes)
        self._heard_at = self.loop.time()
        self._watch(self.limits.keepalive_time_ms / 1000)
        self.opened()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        connection = self.http2
        was_blocked = connection.is_blocked
        try:
            for event in connection.receive(data):
                if type(event) is memoryview:
                    if self.takes_messages:
                        for message in self.reader.feed(event):
                            self.message_received(message)
                else:
                    self._take(event)
        except CallRefused as refused:
            self.refuse(refused)
        except Http2Error as error:
            connection.send_goaway(error.code, str(error))
            self.flush()
            self._hang_up(error)
            return
        if connection.out:
            self.flush()
        if was_blocked and not connection.is_blocked and not self._is_paused:
            self.can_send_again()

    def _take(self, event: one_stream.Event) -> None:
        match event:
            case one_stream.HeadersReceived():
                self.headers_received(event)
                if event.ends_stream:
                    self.stream_ended(None)
            case one_stream.StreamEnded():
                self.stream_ended(event.code)
            case one_stream.GoingAway():
                text = event.text.decode("utf-8", "replace")
                self.give_up(ConnectionResetError(f"it goes away ({event.code}): {text}"))
            case memoryview():
                raise AssertionError("data is no event of its own here")
            case _:
                assert_never(event)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if not self.http2.is_blocked:
            self.can_send_again()

    def connection_lost(self, error: Exception | None) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self.lost.done():
            self.lost.set_result(self._reason or error)

    # ---- sending --------------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        """Whether a message that is sent now leaves now."""
        return not self._is_paused and not self.http2.is_blocked and not self.lost.done()

    def send_message(self, pieces: Sequence[bytes], size: int) -> None:
        """Send one gRPC message; it leaves with `flush`."""
        self.http2.send_data(
            (grpc_messages.prefix(size), *pieces), size + grpc_messages.PREFIX_BYTES
        )

    def flush(self) -> None:
        """Write what is to be sent, at once."""
        out, transport = self.http2.data_to_send(), self._transport
        if not out or transport is None or transport.is_closing():
            return
        if self._joins_always or sum(map(len, out)) <= JOIN_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    def give_up(self, reason: Exception | None) -> None:
        """Close at once; what the socket has not taken is lost."""
        if self._reason is None:
            self._reason = _bare(reason)
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Forget a connection that no caller will hear of."""
        self.connection_lost(None)

    def _hang_up(self, reason: Exception) -> None:
        """Close when the socket has taken what was said last; who does not read it shows no sign of
        life either."""
        self._reason = self._reason or _bare(reason)
        self.takes_messages = False
        if self._transport is not None:
            self._transport.close()

    # ---- signs of life --------------------------------------------------------------------------

    def _watch(self, after_s: float) -> None:
        due_at = self.loop.time() + after_s
        self._keepalive = self.loop.call_later(after_s, self._check, due_at)

    def _check(self, due_at: float) -> None:
        """Ask a silent peer for a sign of life, and give up one that stays silent."""
        limits, now = self.limits, self.loop.time()
        time_s, timeout_s = limits.keepalive_time_ms / 1000, limits.keepalive_timeout_ms / 1000
        if self._asked_at > self._heard_at:
            if now - due_at <= LATE_S:
                self.give_up(TimeoutError("no sign of life"))
            else:
                self._watch(timeout_s)
        elif now - self._heard_at < time_s:
            self._watch(self._heard_at + time_s - now)
        else:
            self._asked_at = now
            self.http2.send_ping()
            self.flush()
            self._watch(timeout_s)


def _bare(reason: Exception | None) -> Exception | None:
    """Return it without the way it came: the frames hold what was read, and this connection, so
    that both would stay until the garbage collector looks at old objects, which it seldom does.
    """
    if reason is not None:
        reason.__cause__ = reason.__context__ = reason.__traceback__ = None
    return reason
