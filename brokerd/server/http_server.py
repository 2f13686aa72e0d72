"""The HTTP listeners: few connections, short requests, so that no stranger wears a member out.

A connection counts by when it last sent a whole request head; over a limit the one that is longest
without makes room (core/unauthenticated.py), so that probes and Prometheus come through while
others hold what they can.  What the requests mean is health.py's and management/door.py's.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import http_exceptions, web, web_response

from brokerd.core.unauthenticated import Unauthenticated
from brokerd.server.access.proxied_listener import Network, ProxiedServer
from brokerd.server.access.proxy_header import Address

log = logging.getLogger(__name__)

# No versions for strangers, whose requests cannot be read among them: aiohttp answers those by
# itself, and has no setting for it.
vars(web_response)["SERVER_SOFTWARE"] = "brokerd"

#: From one request head to the next: the answer and the idle time together.  Longer than
#: Prometheus' interval of one minute.
NEXT_REQUEST_S = 75.0
#: Written and not taken by the client; the answers are smaller, but for the report.
WRITE_BUFFER_BYTES = 64 * 1024
BACKLOG = 128
#: Read at a time, of senders who are known and of others.
READ_BYTES, STRANGER_READ_BYTES = 128 * 1024, 4 * 1024
#: SEC-33: of TLS.
HANDSHAKE_S = 5.0
#: Limits in seconds and bytes on reading and dropping a body that no handler wants: a socket closed
#: with unread data takes the answer with it (RFC 9112, 9.6).
LINGER_S = 1.0
LINGER_BYTES = 16 << 20
#: Seconds between two log lines about requests that cannot be read.
COMPLAINT_S = 1.0
TOLD_CHARACTERS_MAX = 200


@dataclass(slots=True, frozen=True)
class HttpLimits:
    """What strangers may make a listener hold.  The defaults are for probes and scrapes."""

    #: Open connections, of all and of one address (SEC-34).  Probes and scrapes are a handful.
    connections_max: int = 256
    connections_per_address_max: int = 64
    #: From the socket to the first whole request head (SEC-32).
    first_request_s: float = 10.0
    #: Read of a connection since its last request was taken up: the request line, headers, a body
    #: that no handler wants, and requests that were sent without waiting.
    unanswered_bytes_max: int = 16 * 1024
    #: Requests may have bodies: what comes of one before its sender is known has to wait.
    has_bodies: bool = False


PROBES = HttpLimits()


class HttpServer:
    """Owns the listening sockets and what is open on them."""

    def __init__(self, app: web.Application, limits: HttpLimits = PROBES) -> None:
        self.limits = limits
        self._requests = logging.getLogger(f"{__name__}.requests")
        self._filter = _OneLine()
        self._requests.addFilter(self._filter)
        app.middlewares.insert(0, self._taken_up)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=NEXT_REQUEST_S,
            lingering_time=LINGER_S if limits.has_bodies else 0.0,
            logger=self._requests,
            # A small packed body may unpack into a huge one.
            auto_decompress=False,
        )
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._servers: list[asyncio.Server | ProxiedServer] = []
        self._unauthenticated: Unauthenticated[Guarded] = Unauthenticated(
            limits.connections_max, limits.connections_per_address_max
        )
        #: By the protocol that a request names.
        self._guarded: dict[Any, Guarded] = {}

    async def start(
        self,
        host: str | None,
        port: int,
        context: ssl.SSLContext | None = None,
        trusted: tuple[Network, ...] = (),
    ) -> None:
        """Listen, on one more port where it listens already; OSError if that is impossible.

        trusted: networks of proxies (proxied_listener.py).
        """
        if not self._servers:
            await self._runner.setup()
        if trusted:
            proxied = ProxiedServer(self._connection, trusted, context, "HTTP")
            await proxied.start(host, port, BACKLOG)
            self._servers.append(proxied)
            return
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._connection,
            host,
            port,
            ssl=context,
            reuse_address=True,
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
        )
        self._servers.append(server)

    async def cleanup(self) -> None:
        """Stop listening and end what is open."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()
        for connection in list(self._guarded.values()):
            connection.abort()
        self._requests.removeFilter(self._filter)

    def _connection(self, client: Address | None = None) -> Guarded:
        assert self._runner.server is not None
        return Guarded(self, self._runner.server(), client)

    def opened(self, connection: Guarded) -> None:
        """A client dialled; the one that is longest without a request may have to go for it."""
        self._guarded[connection.inner] = connection
        evicted = self._unauthenticated.admit(connection, connection.address)
        if evicted is not None:
            self._filter.warn("too many connections from %s", evicted.address)
            evicted.abort()

    def lost(self, connection: Guarded) -> None:
        """Its socket is closed."""
        self._guarded.pop(connection.inner, None)
        self._unauthenticated.gone(connection)

    @web.middleware
    async def _taken_up(self, request: web.Request, handler: Any) -> web.StreamResponse:
        connection = self._guarded.get(request.protocol)
        if connection is not None:
            connection.taken_up()
            self._unauthenticated.renew(connection)
            request[CONNECTION] = connection
        response = await handler(request)
        if connection is not None and self.limits.has_bodies and not request.content.is_eof():
            connection.allow(LINGER_BYTES)
        return cast(web.StreamResponse, response)

    def complain(self, text: str, address: str) -> None:
        """Log why a connection was dropped, not with each of them."""
        self._filter.warn(text, address)


class Guarded(asyncio.BufferedProtocol):
    """Stands before aiohttp's protocol and ends what is too slow or sends too much.

    A buffered one, since it says how much is read at a time: of a stranger not the 256 KiB that a
    loop reads otherwise.
    """

    def __init__(
        self, server: HttpServer, inner: web.RequestHandler, client: Address | None = None
    ) -> None:
        """client: its address, where that is not the socket's peer."""
        self.inner = inner
        #: The client's; None: not known.
        self.peer = client
        self.address = "?"
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._unanswered = 0
        self._allowed = server.limits.unanswered_bytes_max
        #: Whether the sender of the present request is.
        self._is_known = False
        self._is_paused = False
        self._deadline: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        """Drop it."""
        if self._transport is not None:
            self._transport.abort()

    def taken_up(self) -> None:
        """A whole request head has come."""
        self._unanswered = 0
        self._allowed = self._server.limits.unanswered_bytes_max
        self._is_known = False
        self._go_on()
        self._within(NEXT_REQUEST_S)

    def allow(self, body_bytes: int) -> None:
        """The request's sender is known: a body of this size may come as well."""
        self._allowed = self._server.limits.unanswered_bytes_max + body_bytes
        self._is_known = True
        self._go_on()

    def _go_on(self) -> None:
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._is_paused = False

    def _within(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    # ---- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = self.peer or transport.get_extra_info("peername")
        if peer:
            self.peer = str(peer[0]), int(peer[1])
            self.address = self.peer[0]
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._within(self._server.limits.first_request_s)
        self.inner.connection_made(transport)
        self._server.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        # Of all connections: nothing else happens between this and buffer_updated().
        return self._server.buffer[: READ_BYTES if self._is_known else STRANGER_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(self._server.buffer[:nbytes]))

    def _received(self, data: bytes) -> None:
        self._unanswered += len(data)
        is_too_much = self._unanswered > self._allowed
        if is_too_much and self._server.limits.has_bodies and not self._is_known:
            # Clients send a body without being asked for it, and a password takes a moment.
            self._is_paused = True
            if self._transport is not None:
                self._transport.pause_reading()
        elif is_too_much:
            self._server.complain("more than a request from %s", self.address)
            self.abort()
            return
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        self.inner.eof_received()
        return False

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.lost(self)
        self.inner.connection_lost(error)


#: Where a request has the connection that it came by.
CONNECTION = web.RequestKey("connection", Guarded)


class _OneLine(logging.Filter):
    """What is wrong with requests: one line, at most once a second, with the number left out.

    A defect of ours keeps its traceback; it comes no more often either.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged_at = -COMPLAINT_S
        self._left_out = 0

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._logged_at < COMPLAINT_S:
            self._left_out += 1
            return False
        self._logged_at = now
        return True

    def _more(self) -> str:
        left_out, self._left_out = self._left_out, 0
        return f" ({left_out} more since the last line)" if left_out else ""

    def warn(self, text: str, address: str) -> None:
        """Log a line of our own."""
        if self._is_due():
            log.warning("HTTP: " + text + "%s", address, self._more())

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._is_due():
            return False
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, http_exceptions.HttpProcessingError):
            # The text quotes what was sent, over several lines.
            told = ascii(error.message.split("\n")[0][:TOLD_CHARACTERS_MAX])
            record.msg, record.args = "HTTP: %s: %s", (record.getMessage(), told)
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = record.exc_text = None
        record.msg, record.args = f"{record.getMessage()}{self._more()}", None
        return True
