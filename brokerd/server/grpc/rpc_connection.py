"""One connection to the gRPC port on an asyncio socket: bytes, logins, calls (ADR 18).

Until somebody has logged in on it, a connection is a stranger's: it reads four kilobytes at a time,
nothing behind the request whose credentials are being checked, and has a time to come in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc

from brokerd.cluster.peer import grpc_messages
from brokerd.core.unauthenticated import parsed_address
from brokerd.http2 import framing, many_streams
from brokerd.http2.errors import Http2Error
from brokerd.server.access import operator_login
from brokerd.server.grpc import rpc_auth
from brokerd.server.grpc.rpc_budget import CONNECTION_BYTES_MAX, Budget
from brokerd.server.grpc.rpc_call import RpcCall, status_headers

log = logging.getLogger(__name__)

#: Calls at once.  HTTP/2's own limit is twice that: of a client that goes beyond this one, the next
#: call has a status at once, where it would else wait in the client until its deadline.
CALLS_MAX = 1000
#: Calls at once whose answers may have a MiB (get_call.py): a client that opens many and reads none
#: would have them all in memory.
LARGE_ANSWERS_MAX = 16
#: Methods that need no login; without one, a connection carries one such call at a time.
PUBLIC = frozenset((b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"))
#: Read at a time from a stranger, and from somebody known.
STRANGER_READ_BYTES = 4 * 1024
READ_BYTES = 256 * 1024
#: Written and not yet taken by the socket, before writing pauses; of one stream in its turn.
WRITE_BYTES = 256 * 1024
STRANGER_WRITE_BYTES = 16 * 1024
#: Answers to pings and the like that may wait for somebody known who does not read; beyond that
#: nothing is read from it.
ANSWER_BYTES_MAX = 1024 * 1024
#: How often a connection is looked at.
CHECK_S = 10.0
#: A timer that fires this much too late says that this process did not run.
LATE_S = 1.0
#: Checks without a byte after which it is asked for a sign of life, and given up.
ASKED_AFTER, SILENT_MAX = 3, 6
#: Checks at which the socket had taken nothing of what waits, after which it is given up (SEC-45).
STUCK_MAX = 6
#: How long a client that was told that no more calls are taken may take to close its connection.
FAREWELL_S = 0.5
#: How long one that is closed may take to read why.
LINGER_S = 2.0
#: What must have come of a large message from one check to the next.
PROGRESS_BYTES_MIN = 64 * 1024


class Server(Protocol):
    """What accepted a connection (grpc_server.py)."""

    callers: rpc_auth.Callers
    #: By path: /brokerd.v1.Admin/GetInfo.
    handlers: dict[bytes, Any]
    budget: Budget
    read_buffer: memoryview
    #: How long a call's client may take nothing of what is to be sent.
    write_timeout_s: float

    def connected(self, connection: RpcConnection) -> None:
        """A socket stands, TLS included."""
        ...

    def known(self, connection: RpcConnection) -> None:
        """Somebody has logged in on a connection."""
        ...

    def ended(self, connection: RpcConnection) -> None:
        """A connection is closed."""
        ...

    def complain(self, text: str, address: str) -> None:
        """Log what is wrong with a client."""
        ...


class RpcConnection(asyncio.BufferedProtocol):
    """Owns a socket from connection_made on.

    State: the calls by their streams, and the tasks of those that may still be winding up; those
    that have something to send, in turn; whether reading is held, for a login or for a reader that
    does not read.

    In one piece: it is asyncio's protocol and the driver of `Http2Server`; its calls are classes of
    their own.
    """

    def __init__(self, server: Server, address: str, port: int) -> None:
        parsed = parsed_address(address)
        self.address = host = address if parsed is None else str(parsed)
        kind, host = ("ipv6", f"%5B{host}%5D") if ":" in host else ("ipv4", host)
        self.peer = f"{kind}:{host}:{port}"
        self.is_stranger = True
        self.http2 = many_streams.Http2Server()
        self.budget = Budget(CONNECTION_BYTES_MAX, server.budget)
        self.calls: dict[int, RpcCall] = {}
        self.large_answers = asyncio.Semaphore(LARGE_ANSWERS_MAX)
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._operator: operator_login.OperatorCertificate | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: dict[RpcCall, None] = {}
        self._is_paused = False
        self._login: RpcCall | None = None
        self._is_held = False
        self._will_flush = False
        self._window_opened = False
        self._is_ending = False
        #: Checks since the last byte came.
        self._silent = 0
        #: Bytes that the socket had not taken at the last check, and for how many that is so.
        self._unsent = self._stuck = 0
        self._check_due = 0.0
        #: Calls whose large message was on the way at the last check, and what they had received.
        self._awaited: dict[RpcCall, int] = {}
        #: What calls had to send at the last check, and since when it is the same.
        self._unread: dict[RpcCall, tuple[memoryview, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Called when the connection is gone; by number, as a caller may watch twice.
        self._watching: dict[int, Callable[[], None]] = {}
        self._last_watch = 0

    # ---- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._is_ending:
            # Turned out while it was being set up.
            transport.abort()
            return
        self._operator = operator_login.certificate_of(transport.get_extra_info("peercert"))
        transport.set_write_buffer_limits(STRANGER_WRITE_BYTES)
        self._server.connected(self)
        self._check_later()
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        # One for all connections: it is emptied before the loop does anything else.
        return self._server.read_buffer[: STRANGER_READ_BYTES if self.is_stranger else READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._silent = 0
        if self._is_ending or (self.http2.is_leaving and not self.calls):
            return
        self.http2.receive(self._server.read_buffer[:nbytes])
        self._take_events()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._stuck = 0
        self._hold_or_read()
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self.calls.values()):
            call.cancel()
        for lost in list(self._watching.values()):
            lost()
        self._server.ended(self)

    # ---- what comes -----------------------------------------------------------------------------

    def _take_events(self) -> None:
        try:
            # Nothing behind a first request is looked at before it is known who sent it.
            data: list[many_streams.Data] = []
            while self._login is None and (event := self.http2.next_event()) is not None:
                if type(event) is many_streams.Data:
                    if data and data[0].stream is not event.stream:
                        self._take_data(data)
                        data = []
                    data.append(event)
                    continue
                if data:
                    self._take_data(data)
                    data = []
                self._take(event)
            if data:
                self._take_data(data)
            if self._window_opened:
                self._window_opened = False
                self._send()
        except Http2Error as error:
            self.end(error.code, str(error))
            self._server.complain(str(error), self.address)
            return
        self._hold_or_read()
        if self.http2.out:
            self._flush()

    def _take_data(self, frames: list[many_streams.Data]) -> None:
        """Hand out what one read brought of a stream at once: small messages have frames each."""
        call = self.calls.get(frames[0].stream.id)
        if call is not None:
            data = [frame.data for frame in frames]
            call.data_received(data[0] if len(data) == 1 else b"".join(data), frames[-1].ends)

    def _take(self, event: many_streams.Event) -> None:
        match event:
            case many_streams.Request(stream, headers):
                self._open(stream, dict(headers))
            case many_streams.Reset(stream):
                call = self.calls.get(stream.id)
                if call is not None:
                    call.cancel()
            case many_streams.WindowOpened():
                self._window_opened = True

    def _open(self, stream: many_streams.Stream, headers: Mapping[bytes, bytes]) -> None:
        if len(self.calls) >= CALLS_MAX:
            text = f"{CALLS_MAX} calls are open on this connection: open another one"
            self._refuse(stream, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            return
        if len(self._tasks) >= CALLS_MAX:
            # Their streams are gone, their work is not yet.
            self.http2.reset(stream, framing.REFUSED_STREAM)
            return
        if headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            self.http2.count_idle()
            block = many_streams.encode_headers([(b":status", b"415")])
            self.http2.send_headers(stream, block, ends=True)
            return
        path = headers.get(b":path", b"")
        is_public = path in PUBLIC
        if is_public and self.is_stranger:
            self.http2.count_idle()
            if self.calls:
                text = "one health check at a time without a login"
                self._refuse(stream, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                return
        handler = self._server.handlers.get(path)
        if handler is None:
            self._refuse_unknown(stream, "this method is not known here")
        elif headers.get(b"grpc-encoding", b"identity") != b"identity":
            self._refuse_unknown(stream, "compressed messages are not taken")
        else:
            call = RpcCall(self, stream, handler, headers, is_public=is_public)
            self.calls[stream.id] = call
            if self.is_stranger:
                self._login = call
            call.start()
            assert call.task is not None
            self._tasks.add(call.task)
            call.task.add_done_callback(self._tasks.discard)

    def _refuse_unknown(self, stream: many_streams.Stream, text: str) -> None:
        """SEC-48: neither unknown methods nor compression; the headers say what is taken."""
        self.http2.count_idle()
        self._refuse(stream, grpc.StatusCode.UNIMPLEMENTED, text)

    def _refuse(self, stream: many_streams.Stream, code: grpc.StatusCode, text: str) -> None:
        headers = [
            *grpc_messages.response_headers(),
            (b"grpc-accept-encoding", b"identity"),
            *status_headers(code, text),
        ]
        self.http2.send_headers(stream, many_streams.encode_headers(headers), ends=True)

    async def log_in(self, call: RpcCall) -> rpc_auth.Caller:
        """Return the caller; rpc_errors.CallRefused if the login fails."""
        callers, metadata = self._server.callers, rpc_auth.metadata_of(call)
        try:
            if self._operator is not None and "authorization" not in metadata:
                caller = callers.log_in_operator(self._operator, self.peer)
            else:
                caller = await callers.log_in(metadata, self.peer)
        finally:
            self._login_ended(call)
        if self.is_stranger:
            self._server.known(self)
            self.http2.trust()
            if not self._transport.is_closing():
                self._transport.set_write_buffer_limits(WRITE_BYTES)
        return caller

    def let_in(self, call: RpcCall) -> None:
        """A call needs no login, and its connection stays a stranger's."""
        self._login_ended(call)

    def _login_ended(self, call: RpcCall) -> None:
        if self._login is call:
            self._login = None
            # Later: what this call answers comes first, and what it says counts for what follows.
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._is_ending and self._login is None:
            self._take_events()

    def watch(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call lost() when it is gone, unless what is returned is called before."""
        self._last_watch = number = self._last_watch + 1
        self._watching[number] = lost
        return lambda: self._watching.pop(number, None) and None

    def call_ended(self, call: RpcCall) -> None:
        """A call has its status, or was given up."""
        self.calls.pop(call.stream.id, None)
        self._sending.pop(call, None)
        self._awaited.pop(call, None)
        self._unread.pop(call, None)
        self._login_ended(call)
        if self.http2.is_leaving and not self.calls:
            self._close_soon()

    def _hold_or_read(self) -> None:
        """Read only what can be dealt with."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        is_held = self._login is not None or (
            self._is_paused
            and (self.is_stranger or transport.get_write_buffer_size() > ANSWER_BYTES_MAX)
        )
        if is_held is not self._is_held:
            self._is_held = is_held
            if is_held:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # ---- what goes ------------------------------------------------------------------------------

    def has_to_send(self, call: RpcCall) -> None:
        """A call has a message to send."""
        self._sending[call] = None
        self._send()

    def _send(self) -> None:
        """Let those who have something to send have turns, as far as windows and socket let."""
        for call in list(self._sending):
            if self._is_paused or self._is_ending:
                break
            unsent = call.unsent
            if unsent is None:
                self._sending.pop(call, None)
                continue
            sent = self.http2.send_data(call.stream, unsent[:WRITE_BYTES])
            if sent == len(unsent):
                self._sending.pop(call, None)
                call.all_sent()
            elif sent:
                call.unsent = unsent[sent:]
                # Behind the others.
                del self._sending[call]
                self._sending[call] = None
                if sent == WRITE_BYTES:
                    self._loop.call_soon(self._send)
            if sent >= WRITE_BYTES // 4:
                self._flush()
        if self.http2.out:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write what is to be sent once the loop has done what it is at."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._will_flush = False
        self._flush()

    def _flush(self) -> None:
        out, transport = self.http2.data_to_send(), self._transport
        if out and transport is not None and not transport.is_closing():
            transport.write(b"".join(out))

    # ---- the end --------------------------------------------------------------------------------

    def leave(self, text: str) -> None:
        """Take no more calls; close once those that are open have ended."""
        if not self._is_ending:
            self.http2.send_goaway(framing.NO_ERROR, text)
            self._flush()
            if not self.calls:
                self._close_soon()

    def turn_out(self, text: str) -> None:
        """The same, and end what needs no login: a login that is being checked comes to its end."""
        self.leave(text)
        for call in list(self.calls.values()):
            if call.is_public:
                call.stop(text)

    def stop(self, text: str) -> None:
        """Take no more calls, and end the calls with what they have read answered (rpc_call.py)."""
        self.leave(text)
        for call in list(self.calls.values()):
            call.stop(text)

    def _close_soon(self) -> None:
        """Let the client close: were we the first, what it is sending would reset the connection,
        and with that what it has yet to read.
        """
        self._flush()
        self._loop.call_later(FAREWELL_S, self.end, None)

    def end(self, code: int | None, text: str = "") -> None:
        """Close when the socket has taken what was said last."""
        if self._is_ending:
            return
        if code is not None:
            self.http2.send_goaway(code, text)
        self._flush()
        self._is_ending = True
        if self._transport is not None:
            self._transport.close()
            # A client that does not read the last frames in time is cut off.
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def give_up(self) -> None:
        """Close at once."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()

    def _check_later(self) -> None:
        self._check_due = self._loop.time() + CHECK_S
        self._timer = self._loop.call_at(self._check_due, self._check)

    def _check(self) -> None:
        """Ask a silent one for a sign of life; give up what does not come, or go (SEC-45)."""
        if self._loop.time() - self._check_due > LATE_S:
            # What has come meanwhile was not read yet; the client is not to blame.
            self._silent = self._stuck = 0
            self._awaited.clear()
            self._unread.clear()
        else:
            unsent = self._transport.get_write_buffer_size() if self._is_paused else 0
            self._stuck = self._stuck + 1 if 0 < self._unsent <= unsent else 0
            self._unsent = unsent
            self._silent += 0 if self._is_held else 1
            if self._silent >= SILENT_MAX or self._stuck >= STUCK_MAX:
                self.give_up()
                return
            if self._silent == ASKED_AFTER:
                self.http2.send_ping()
                self._flush()
            self.http2.forgive()
            self._stop_stalled()
            if not self._is_paused:
                self._stop_unread()
        self._check_later()

    def _stop_stalled(self) -> None:
        """End large messages that do not come, so that their memory serves others."""
        before, self._awaited = self._awaited, {}
        for call in list(self.calls.values()):
            if not call.is_awaited or self._is_held:
                continue
            if call.received - before.get(call, -PROGRESS_BYTES_MIN) < PROGRESS_BYTES_MIN:
                call.stop_stalled()
            else:
                self._awaited[call] = call.received

    def _stop_unread(self) -> None:
        """End calls whose clients read nothing of them, though perhaps of others (SEC-45)."""
        now_s, before, self._unread = self._loop.time(), self._unread, {}
        for call in list(self._sending):
            unsent = call.unsent
            if unsent is None:
                continue
            earlier, since_s = before.get(call, (None, now_s))
            if earlier is not unsent:
                since_s = now_s
            if now_s - since_s >= self._server.write_timeout_s:
                call.stop_unread(self._server.write_timeout_s)
            else:
                self._unread[call] = unsent, since_s
