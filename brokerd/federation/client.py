"""A small asyncio AMQP 0-9-1 client over the amqp room's client role: what a federation link needs.

One `Connection` owns its socket; `Channel.call` sends a method and waits for its answer, deliveries
and confirms come by callback, all on the event loop.  Everything has a time-out, every failure is
a `ClientError` without credentials in its text.  For `link.py` and tests; not a client library.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from brokerd import __version__
from brokerd.amqp import events, methods, spec
from brokerd.amqp.config import ConnectionConfig, Credentials, Role
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.errors import AmqpError
from brokerd.amqp.frames import content_frames
from brokerd.amqp.methods import Method
from brokerd.federation.errors import ChannelClosed, ClientError, ConnectionLost, UpstreamError
from brokerd.federation.upstream import Address

#: From the first packet to open-ok, if the URI has no connection_timeout.
CONNECT_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_MS_MAX = 600_000
#: The answer of one of its addresses to the first packet.
ANSWER_TIMEOUT_S = 5.0
#: Any answer of the peer after that.
CALL_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
#: Methods sent on one channel whose answers are awaited.
PIPELINE_MAX = 256
HEARTBEAT_S = 10
HEARTBEAT_S_MAX = 65_535
CHANNELS_MAX = 64

#: What to do about an ssl.SSLError, by its reason.
_TLS_HINTS = {
    "WRONG_VERSION_NUMBER": ": no TLS is spoken there, where the URI must begin with amqp://",
    "CERTIFICATE_VERIFY_FAILED": (
        "; an authority that the system does not know is named in ca-certificates or ?cacertfile="
    ),
}

#: A run of deliveries; a read brings one or more, in order.
OnDeliveries = Callable[[events.DeliveriesReceived], None]


async def tls_context(address: Address, authorities: str | None) -> ssl.SSLContext | None:
    """Return what a URI's query says about TLS (R-FED-9); None for plain connections.

    authorities: PEM of the upstream's definition, trusted besides the URI's cacertfile.
    Own decision: the peer is verified unless the URI says verify=verify_none.
    """
    if not address.tls:
        return None
    verify = address.option("verify", "verify_peer")
    if verify not in ("verify_peer", "verify_none"):
        raise UpstreamError(f"{address.shown}: verify must be verify_peer or verify_none")
    try:
        # Files are read here.
        return await asyncio.to_thread(
            _build_context, address, authorities, verify == "verify_peer"
        )
    except (OSError, ssl.SSLError) as error:
        raise UpstreamError(f"{address.shown}: certificates cannot be used: {error}") from error


def _build_context(address: Address, authorities: str | None, verify: bool) -> ssl.SSLContext:
    # The system's authorities count only if nothing else is named.
    context = ssl.create_default_context(
        cafile=address.option("cacertfile") or None, cadata=authorities
    )
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := address.option("certfile"):
        context.load_cert_chain(certificate, address.option("keyfile") or None)
    return context


class Channel:
    """One channel.  Answers come in the order of the calls; `error` is set once it is closed."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.number = number
        self.error: ClientError | None = None
        self.on_deliveries: OnDeliveries | None = None
        #: The server ended a consumer, or the channel closed: called once with the reason.
        self.on_ended: Callable[[ClientError], None] | None = None
        #: (tag, multiple, confirmed)
        self.on_confirm: Callable[[int, bool, bool], None] | None = None
        #: channel.flow: whether the peer takes messages on this channel, and who hears of changes.
        self.is_flowing = True
        self.on_flow: Callable[[], None] | None = None
        #: A mandatory message came back: its exchange, its routing key and why; properties, body.
        self.on_return: Callable[[methods.BasicReturn, bytes, bytes], None] | None = None
        #: Properties and body that came with the last basic.get-ok.
        self.got: tuple[bytes, bytes] = (b"", b"")
        self._connection = connection
        #: Exchange, routing key and mandatory bit of the last publish, and its method frame.
        self._published_to: tuple[str, str, bool] | None = None
        self._publish_frame = b""
        self._waiting: deque[asyncio.Future[Method]] = deque()

    async def call(self, method: Method) -> Method:
        """Send a method and return the answer to it."""
        (answer,) = await self.call_all([method])
        return answer

    async def call_all(self, requests: list[Method]) -> list[Method]:
        """Send methods without waiting in between, a bounded number at a time."""
        answers: list[Method] = []
        for start in range(0, len(requests), PIPELINE_MAX):
            batch = [self._begin(method) for method in requests[start : start + PIPELINE_MAX]]
            self._connection.flush()
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    results = await asyncio.gather(*batch, return_exceptions=True)
            except TimeoutError:
                name = requests[start].NAME
                raise ConnectionLost(f"no answer to {name} within {CALL_TIMEOUT_S:g} s") from None
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                answers.append(result)
        return answers

    def ask(self, method: Method) -> asyncio.Future[Method]:
        """Send a method; the answer comes when it comes, without a time-out."""
        future = self._begin(method)
        self._connection.flush_soon()
        return future

    def cast(self, method: Method) -> None:
        """Send a method that has no answer; it goes out with the next flush."""
        if self.error is None:
            self._connection.machine.send(self.number, method)
            self._connection.flush_soon()

    def publish(
        self, exchange: str, routing_key: str, header: bytes, body: bytes, mandatory: bool = False
    ) -> None:
        """Send a message; `header` are raw properties."""
        self.publish_all(exchange, routing_key, header, [body], mandatory)

    def publish_all(
        self,
        exchange: str,
        routing_key: str,
        header: bytes,
        bodies: Iterable[bytes],
        mandatory: bool = False,
    ) -> None:
        """Send messages that are alike but for their bodies."""
        if self.error is None:
            where = (exchange, routing_key, mandatory)
            if where != self._published_to:
                method = methods.BasicPublish(
                    exchange=exchange, routing_key=routing_key, mandatory=mandatory
                )
                self._publish_frame = method.encode(self.number)
                self._published_to = where
            machine = self._connection.machine
            parts: list[bytes] = []
            for body in bodies:
                parts.append(self._publish_frame)
                parts += content_frames(
                    self.number, spec.CLASS_BASIC, header, body, machine.frame_max
                )
            machine.send_raw(b"".join(parts), self.number)
            self._connection.flush_soon()

    async def close(self) -> None:
        """Close the channel and wait for the answer."""
        if self.error is None:
            await self.call(methods.ChannelClose(200, "OK"))

    def _begin(self, method: Method) -> asyncio.Future[Method]:
        future: asyncio.Future[Method] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            self._waiting.append(future)
            self._connection.machine.send(self.number, method)
        return future

    def take(self, method: Method) -> None:
        """Handle a method of the peer."""
        if isinstance(method, methods.BasicNack):
            if self.on_confirm is not None:
                self.on_confirm(method.delivery_tag, method.multiple, False)
        elif isinstance(method, methods.BasicCancel):
            if self.on_ended is not None:
                self.on_ended(ChannelClosed("consumer cancelled by the upstream"))
        elif isinstance(method, methods.ChannelFlow):
            # Before and not after what goes on, and behind what was published: the peer may close
            # for a message that follows the answer to a pause (R-OLD-1).
            self.cast(methods.ChannelFlowOk(method.active))
            self.is_flowing = method.active
            if self.on_flow is not None:
                self.on_flow()
        elif self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(method)

    def end(self, error: ClientError) -> None:
        """The channel is gone: everybody who waits learns why."""
        if self.error is not None:
            return
        self.error = error
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
        if self.on_ended is not None:
            self.on_ended(error)


class Connection(asyncio.Protocol):
    """One connection.  `lost` is why it ended, None while it lasts.

    In one piece: half of the methods are the table of the machine's events, a few lines each, and
    all of them touch the same socket, machine and channels.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self.machine = AmqpConnection(Role.CLIENT, config, self._now_ms())
        self.lost: ConnectionLost | None = None
        #: Called after all events of one read.
        self.on_read: Callable[[], None] | None = None
        #: The peer blocks publishers, with its reason, or ("") does so no more.
        self.on_blocked: Callable[[str], None] | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._channels: dict[int, Channel] = {}
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_handle: asyncio.Handle | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        vhost: str,
        name: str,
        authorities: str | None = None,
        sock: socket.socket | None = None,
    ) -> Connection:
        """Connect, log in, open the vhost.

        name: what the upstream's listings show.  authorities: PEM, None for the system's.
        sock: connected already, one of a pair; nothing is dialled then.
        """
        config = _config(address, vhost, name)
        timeout_ms = config.handshake_timeout_ms
        context = await tls_context(address, authorities)
        server_name = address.option("server_name_indication", address.host) if context else None
        loop = asyncio.get_running_loop()
        made: list[Connection] = []

        def make() -> Connection:
            made.append(cls(config))
            return made[-1]

        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if sock is None:
                    connected = await _connected(address)
                    await loop.create_connection(
                        make, sock=connected, ssl=context, server_hostname=server_name
                    )
                else:
                    await loop.create_unix_connection(make, sock=sock)
                await made[-1]._opened
        except TimeoutError:
            _abort(made)
            raise ConnectionLost(f"{address.shown}: no connection in {timeout_ms} ms") from None
        except OSError as error:
            _abort(made)
            raise _unreached(address, error) from error
        except BaseException:
            _abort(made)
            raise
        return made[-1]

    @property
    def local_name(self) -> str:
        """Return our address as the upstream's listings show it."""
        return "" if self._transport is None else _shown(self._transport.get_extra_info("sockname"))

    async def open_channel(self) -> Channel:
        """Open the next free channel."""
        number = next(
            (n for n in range(1, CHANNELS_MAX + 1) if n not in self._channels), CHANNELS_MAX + 1
        )
        if self.lost is not None:
            raise self.lost
        if number > CHANNELS_MAX:
            raise ClientError("too many channels")
        channel = self._channels[number] = Channel(self, number)
        await channel.call(methods.ChannelOpen())
        return channel

    async def wait_ended(self) -> ConnectionLost:
        """Wait for the end and return why."""
        await self._ended.wait()
        assert self.lost is not None
        return self.lost

    async def close(self) -> None:
        """Say goodbye; the socket is closed in any case when this returns."""
        if self.lost is None:
            self.resume_reading()
            self.machine.close(200, "Goodbye")
            self.flush()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._ended.wait()
            except TimeoutError:
                self._lose(ConnectionLost("closed"))
        self.abort()

    def leave(self) -> None:
        """Say goodbye and wait for no answer; what was published before still goes out."""
        if self.lost is None and self._transport is not None:
            self.machine.close(200, "Goodbye")
            self.flush()
            self._lose(ConnectionLost("closed"))
            self._transport.close()

    def abort(self) -> None:
        """End without a word."""
        self._lose(ConnectionLost("closed"))
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Take nothing more from the socket."""
        if self.lost is None and self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
            self.machine.pause_heartbeat_check()

    def resume_reading(self) -> None:
        """Read on."""
        if self.lost is None and self._transport is not None and not self._transport.is_reading():
            self.machine.resume_heartbeat_check()
            self._transport.resume_reading()

    def flush(self) -> None:
        """Write what is queued, and look at the clock."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        data = self.machine.data_to_send()
        if data:
            transport.write(data)
        if self.machine.wants_close:
            transport.close()
        else:
            self._arm()

    def flush_soon(self) -> None:
        """Write once for all that is queued in this turn of the loop."""
        if self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self.flush)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there: the protocol header goes out."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Feed the machine, hand out what it says."""
        try:
            self._dispatch(self.machine.receive_data(data, self._now_ms()))
        except AmqpError as error:
            self._lose(ConnectionLost(str(error)))
            self.abort()
            return
        if self.on_read is not None:
            self.on_read()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self._dispatch(self.machine.receive_eof(self._now_ms()))
        self._lose(ConnectionLost(str(error) if error else "connection closed"))

    # Inside.

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _arm(self) -> None:
        deadline = self.machine.next_deadline_ms
        if deadline is None or self.lost is not None:
            return
        when = deadline / 1000
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._dispatch(self.machine.tick(self._now_ms()))
        self.flush()

    def _dispatch(self, happened: list[events.Event]) -> None:
        for event in happened:
            _HANDLERS[type(event)](self, event)

    def _connection_opened(self, _: events.ConnectionOpened) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def _channel_opened(self, event: events.ChannelOpened) -> None:
        self._channels[event.channel].take(methods.ChannelOpenOk())

    def _channel_closed(self, event: events.ChannelClosed) -> None:
        channel = self._channels.pop(event.channel, None)
        if event.by_peer:
            self.machine.send(event.channel, methods.ChannelCloseOk())
        if channel is None:
            return
        if not event.by_peer:
            channel.take(methods.ChannelCloseOk())
        channel.end(ChannelClosed(event.text or "channel closed", event.code))

    def _channel_error(self, event: events.ChannelError) -> None:
        channel = self._channels.get(event.channel)
        if channel is not None:
            channel.end(ChannelClosed(event.text, event.code))

    def _method_received(self, event: events.MethodReceived) -> None:
        channel = self._channels.get(event.channel)
        if channel is not None:
            channel.take(event.method)

    def _deliveries_received(self, event: events.DeliveriesReceived) -> None:
        channel = self._channels.get(event.channel)
        if channel is not None and channel.on_deliveries is not None:
            channel.on_deliveries(event)

    def _content_received(self, event: events.ContentReceived) -> None:
        channel = self._channels.get(event.channel)
        method = event.method
        if channel is None:
            return
        if isinstance(method, methods.BasicGetOk):
            channel.got = event.header, event.body
            channel.take(method)
        elif isinstance(method, methods.BasicReturn) and channel.on_return is not None:
            channel.on_return(method, event.header, event.body)

    def _acks_received(self, event: events.AcksReceived) -> None:
        channel = self._channels.get(event.channel)
        if channel is not None and channel.on_confirm is not None:
            for tag, multiple in event.acks:
                channel.on_confirm(tag, multiple, True)

    def _blocked(self, event: events.Blocked) -> None:
        self._blocks(event.reason or "blocked")

    def _unblocked(self, _: events.Unblocked) -> None:
        self._blocks("")

    def _blocks(self, reason: str) -> None:
        if self.on_blocked is not None:
            self.on_blocked(reason)

    def _connection_closed(self, event: events.ConnectionClosed) -> None:
        if event.by_peer:
            self.machine.send(0, methods.ConnectionCloseOk())
        self._lose(ConnectionLost(event.text or "connection closed", event.code))

    def _connection_failed(self, event: events.ConnectionFailed) -> None:
        self._lose(ConnectionLost(event.reason, event.code))

    def _lose(self, error: ConnectionLost) -> None:
        """The first reason counts."""
        if self.lost is not None:
            return
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._opened.done():
            self._opened.set_exception(error)
            # The opener may have given up already, and does not ask then.
            self._opened.exception()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.end(error)
        self._ended.set()


def _config(address: Address, vhost: str, name: str) -> ConnectionConfig:
    """Return what a URI says of a connection; UpstreamError if that cannot be."""
    timeout_ms = address.integer("connection_timeout", CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT_MS_MAX)
    mechanism = address.option("auth_mechanism", "plain").lower()
    if mechanism not in ("plain", "amqplain"):
        raise UpstreamError(f"{address.shown}: auth_mechanism {mechanism} is not supported")
    return ConnectionConfig(
        credentials=Credentials(address.user, address.password),
        vhost=vhost,
        heartbeat_s=address.integer("heartbeat", HEARTBEAT_S, HEARTBEAT_S_MAX),
        channel_max=address.integer("channel_max", CHANNELS_MAX, CHANNELS_MAX) or CHANNELS_MAX,
        handshake_timeout_ms=timeout_ms,
        client_properties={
            "product": "brokerd",
            "version": __version__,
            "platform": "Python",
            "connection_name": name,
        },
    )


async def _connected(address: Address) -> socket.socket:
    """Return a socket to the first of the name's addresses that answers; OSError if none does.

    One behind a cut is left in time for the others, and for another try: the system would ask it
    again after 1, 3, 7, 15 s, however soon it is back.
    """
    loop = asyncio.get_running_loop()
    fault: OSError = OSError(errno.EADDRNOTAVAIL, f"{address.host} has no address")
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, place in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await loop.sock_connect(sock, place)
            return sock
        except TimeoutError:
            sock.close()
            fault = OSError(errno.EHOSTUNREACH, f"no answer within {ANSWER_TIMEOUT_S:g} s")
        except OSError as error:
            sock.close()
            fault = error
        except BaseException:
            sock.close()
            raise
    raise fault


def _unreached(address: Address, error: OSError) -> ConnectionLost:
    hint = _TLS_HINTS.get(error.reason, "") if isinstance(error, ssl.SSLError) else ""
    return ConnectionLost(f"{address.shown}: {error.strerror or error}{hint}")


def _abort(made: list[Connection]) -> None:
    for connection in made:
        connection.abort()


def _shown(sockname: object) -> str:
    if isinstance(sockname, tuple) and len(sockname) >= 2:
        host, port = sockname[0], sockname[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return ""


# What a client role emits; each handler takes its own event's class.
_HANDLERS: dict[type, Callable[..., None]] = {
    events.ConnectionOpened: Connection._connection_opened,
    events.ChannelOpened: Connection._channel_opened,
    events.ChannelClosed: Connection._channel_closed,
    events.ChannelError: Connection._channel_error,
    events.MethodReceived: Connection._method_received,
    events.DeliveriesReceived: Connection._deliveries_received,
    events.ContentReceived: Connection._content_received,
    events.AcksReceived: Connection._acks_received,
    events.Blocked: Connection._blocked,
    events.Unblocked: Connection._unblocked,
    events.ConnectionClosed: Connection._connection_closed,
    events.ConnectionFailed: Connection._connection_failed,
}
