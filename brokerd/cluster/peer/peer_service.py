"""The receiving end of peer streams: admits members, hands their frames over, one call per frame.

Serves brokerd.v1.Peer/Exchange to any gRPC client.  Decodes nothing but the frame itself and
decides nothing but who may talk (SEC-3, SEC-4).  A stranger gets little: a handshake within
seconds, a few kilobytes, a few connections (SEC-32 to SEC-34).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeAlias

from google.protobuf.message import DecodeError

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import CallRefused, ClusterError, FrameError
from brokerd.cluster.peer import frame_entries, frames, grpc_messages, listening, security
from brokerd.cluster.peer.grpc_messages import Status
from brokerd.cluster.peer.peer_connection import PeerConnection
from brokerd.core.unauthenticated import Unauthenticated
from brokerd.http2 import framing, one_stream
from brokerd.http2.errors import Http2Error
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2

logger = logging.getLogger(__name__)

#: Distinct refusals that are logged; a refused peer comes again every second.
REFUSALS_LOGGED_MAX = 256
#: How long a refused peer may take to read why.
LINGER_S = 1.0
#: Pause after a connection that could not be accepted (no descriptors left).
ACCEPT_PAUSE_S = 0.1

#: What this node knows of one that starts and asks (peer.proto: Enquiry).
Describe: TypeAlias = Callable[[NodeId, peer_pb2.Enquiry], Awaitable[peer_pb2.Description]]


class FrameSink(Protocol):
    """What the host does with incoming streams; implemented by host.py."""

    def stream_opened(self, node: NodeId, incarnation: int) -> None:
        """A member's stream stands; it supersedes an earlier one."""
        ...

    def frame_received(
        self, node: NodeId, frame: peer_pb2.PeerFrame, cut: frame_entries.CutEntries
    ) -> None:
        """Take one frame, and the entries that were cut out of it; FrameError ends the stream."""
        ...

    def stream_closed(self, node: NodeId) -> None:
        """The member's current stream ended."""
        ...


class PeerService:
    """Listens for members.

    State: open connections; `_unauthenticated`, those that are not admitted or not open yet; the
    current stream of each member.  Streams that are superseded are closed.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: int,
        config: HostConfig,
        is_member: Callable[[NodeId], bool],
        sink: FrameSink,
        tls: security.TlsContexts | None,
        describe: Describe | None = None,
    ) -> None:
        self.config = config
        self.sink = sink
        self._incarnation = incarnation
        self._describe = describe
        self.hello = frames.encode_hello(node, incarnation, config.cluster_id)
        self._node = node
        self._is_member = is_member
        self._tls = tls
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._connections: set[_IncomingStream] = set()
        limits = config.transport
        self._unauthenticated: Unauthenticated[_IncomingStream] = Unauthenticated(
            limits.unauthenticated_max, limits.unauthenticated_per_address_max
        )
        self._current: dict[NodeId, _IncomingStream] = {}
        self._refusals: set[str] = set()

    # ---- life -----------------------------------------------------------------------------------

    def bind(self, address: str) -> int:
        """Bind to "host:port" and return the port; OSError if that is impossible."""
        if self._tls is not None:
            try:
                self._tls.server()
            except OSError as error:
                raise OSError(f"cannot use the peer certificate: {error}") from error
        try:
            found = listening.listen(address)
        except OSError as error:
            reason = listening.in_words(error)
            raise OSError(f"cannot listen for peers on {address}: {reason}") from error
        self._listeners += found
        return int(found[0].getsockname()[1])

    def start(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._accepting.append(loop.create_task(self._accept(listener), name="peer listener"))

    async def close(self) -> None:
        """End all streams."""
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        lost = [connection.lost for connection in self._connections]
        for connection in list(self._connections):
            connection.give_up(None)
        if lost:
            await asyncio.wait(lost, timeout=LINGER_S)

    # ---- strangers ------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            found: socket.socket | None = None
            try:
                found, address = await loop.sock_accept(listener)
            except OSError as error:
                self.complain(f"cannot accept: {error}", "anybody")
            if found is None:
                await asyncio.sleep(ACCEPT_PAUSE_S)
            else:
                self._greet(found, str(address[0]))

    def _greet(self, found: socket.socket, address: str) -> None:
        found.setblocking(False)
        connection = _IncomingStream(self, address, found)
        evicted = self._unauthenticated.admit(connection, address)
        if evicted is not None:
            self.complain("too many connections that did not introduce themselves", address)
            evicted.evict()
        connection.handshake = self._start(self._shake_hands(found, connection))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Work for one stranger, of whom there are not many."""
        task = asyncio.get_running_loop().create_task(work)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        return task

    async def _shake_hands(self, found: socket.socket, connection: _IncomingStream) -> None:
        try:
            context = self._tls.server() if self._tls is not None else None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                found,
                ssl=context,
                ssl_handshake_timeout=self.config.transport.tls_timeout_s if context else None,
            )
        except OSError as error:
            found.close()
            self._unauthenticated.gone(connection)
            self.complain(f"handshake: {str(error) or type(error).__name__}", connection.address)
        except asyncio.CancelledError:
            found.close()
            raise
        finally:
            # The task holds the connection, too.
            connection.handshake = None

    def complain(self, text: str, address: str) -> None:
        """Log a reason once, not with each attempt."""
        if text not in self._refusals and len(self._refusals) < REFUSALS_LOGGED_MAX:
            self._refusals.add(text)
            logger.warning("refused a peer stream from=%s: %s", address, text)

    # ---- members --------------------------------------------------------------------------------

    def connected(self, connection: _IncomingStream) -> None:
        """A socket stands."""
        self._connections.add(connection)

    def check_hello(self, hello: peer_pb2.Hello, connection: _IncomingStream) -> NodeId:
        """Return who it is; CallRefused unless that member may talk to this one."""
        node, config = NodeId(hello.node), self.config
        if hello.cluster_id != config.cluster_id:
            raise CallRefused(Status.PERMISSION_DENIED, f"not cluster {hello.cluster_id!r}")
        if hello.protocol_version != frames.PROTOCOL_VERSION:
            raise CallRefused(
                Status.FAILED_PRECONDITION,
                f"peer protocol {hello.protocol_version}, here {frames.PROTOCOL_VERSION}",
            )
        if config.tls is not None and not security.is_member_certificate(connection.names(), node):
            raise CallRefused(Status.PERMISSION_DENIED, f"certificate is not of {node!r}")
        if node == self._node:
            raise CallRefused(Status.FAILED_PRECONDITION, f"{node!r} is no other member here")
        if not hello.HasField("enquiry"):
            self.check_member(node)
        return node

    def answer(self, hello: peer_pb2.Hello, connection: _IncomingStream) -> asyncio.Task[None]:
        """Answer a node that starts and asks what is known of it; it need not be a member."""
        return self._start(self._answer(hello, connection))

    async def _answer(self, hello: peer_pb2.Hello, connection: _IncomingStream) -> None:
        # Nothing known, unless somebody knows: standing UNKNOWN.
        description = peer_pb2.Description()
        if self._describe is not None:
            try:
                async with asyncio.timeout(self.config.transport.describe_timeout_s):
                    description = await self._describe(NodeId(hello.node), hello.enquiry)
            except (ClusterError, TimeoutError) as error:
                self.complain(f"cannot tell {hello.node!r} what is known: {error}", "here")
        connection.send_description(
            frames.encode_hello(
                self._node, self._incarnation, self.config.cluster_id, description=description
            )
        )

    def check_member(self, node: NodeId) -> None:
        """CallRefused if the node does not belong to the cluster, or not any more."""
        if not self._is_member(node):
            raise CallRefused(Status.FAILED_PRECONDITION, f"{node!r} is no other member here")

    def admitted(self, connection: _IncomingStream, node: NodeId, incarnation: int) -> None:
        """A member introduced itself; an earlier stream of it ends."""
        self._unauthenticated.gone(connection)
        earlier = self._current.get(node)
        self._current[node] = connection
        if earlier is not None:
            earlier.takes_messages = False
            earlier.give_up(None)
        self.sink.stream_opened(node, incarnation)

    def hold_reading(self, node: NodeId, is_held: bool) -> None:
        """Stop reading a member's stream, or go on: this node cannot take more just now."""
        connection = self._current.get(node)
        if connection is not None:
            connection.hold_reading(is_held)

    def ended(self, connection: _IncomingStream) -> None:
        """The stream hands nothing over any more."""
        node = connection.node
        if node is not None and self._current.get(node) is connection:
            del self._current[node]
            self.sink.stream_closed(node)

    def lost(self, connection: _IncomingStream) -> None:
        """The socket is closed."""
        self._unauthenticated.gone(connection)
        self._connections.discard(connection)
        self.ended(connection)


class _IncomingStream(PeerConnection):
    """A connection to this member: request headers, a hello, then frames.

    `node` is set once it was admitted.  `_is_over`: a status was sent.
    """

    def __init__(self, service: PeerService, address: str, found: socket.socket) -> None:
        super().__init__(service.config.transport, is_client=False)
        self.address = address
        self.node: NodeId | None = None
        #: Until the socket is the event loop's, TLS included.
        self.handshake: asyncio.Task[None] | None = None
        self._found = found
        self._service = service
        self._is_called = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None

    def names(self) -> set[str]:
        """Return the names in the certificate of the other side."""
        assert self._transport is not None
        return security.names_in_certificate(self._transport.get_extra_info("peercert"))

    def opened(self) -> None:
        self._service.connected(self)
        self._timer = self.loop.call_later(self.limits.hello_timeout_s, self._too_slow)
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != security.ALPN:
            self._service.complain("TLS without h2", self.address)
            self.give_up(None)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._stop_timer()
        if self._answering is not None:
            self._answering.cancel()
        self._service.lost(self)
        reason = self.lost.result()
        if self.node is None and isinstance(reason, Http2Error):
            self._service.complain(str(reason), self.address)

    def evict(self) -> None:
        """Make room for a newcomer, however far this one is."""
        if self.handshake is not None:
            self.handshake.cancel()
            # A task that has not begun closes nothing.
            self._found.close()
        self.give_up(None)

    def _too_slow(self) -> None:
        if not self._is_over:
            self._service.complain("no hello in time", self.address)
        self.give_up(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def headers_received(self, event: one_stream.HeadersReceived) -> None:
        if self._is_called:
            return
        self._is_called = True
        grpc_messages.check_request(event.headers)
        metadata = grpc_messages.binary_metadata(event.headers)
        if not security.is_secret_right(metadata, self._service.config.secret):
            raise CallRefused(Status.UNAUTHENTICATED, "wrong cluster secret")

    def message_received(self, message: bytes) -> None:
        try:
            if self.node is None:
                self._introduced(peer_pb2.PeerFrame.FromString(message))
                return
            rest, cut = frame_entries.cut_entries(message)
            frame = peer_pb2.PeerFrame.FromString(rest)
            self._service.check_member(self.node)
            self._service.sink.frame_received(self.node, frame, cut)
        except (DecodeError, FrameError) as error:
            if self.node is not None:
                logger.error("bad frame, closing the stream node=%s: %s", self.node, error)
            raise CallRefused(Status.INVALID_ARGUMENT, str(error)) from error

    def _introduced(self, frame: peer_pb2.PeerFrame) -> None:
        if not frame.HasField("hello"):
            raise CallRefused(Status.INVALID_ARGUMENT, "no hello")
        node = self._service.check_hello(frame.hello, self)
        if frame.hello.HasField("enquiry"):
            self.takes_messages = False
            self._stop_timer()
            self._answering = self._service.answer(frame.hello, self)
            return
        self._stop_timer()
        self.node = node
        self.reader.bytes_max = self.limits.receive_bytes_max
        self.http2.send_headers(grpc_messages.response_headers())
        self.send_message((self._service.hello,), len(self._service.hello))
        self.http2.open_window(self.limits.window_bytes)
        self._service.admitted(self, node, frame.hello.incarnation)

    def send_description(self, hello: bytes) -> None:
        """Answer an enquiry; the call ends with it."""
        self.http2.send_headers(grpc_messages.response_headers())
        self.send_message((hello,), len(hello))
        self._end(Status.OK, "", is_answered=True)

    def stream_ended(self, code: int | None) -> None:
        if code is not None or self._is_over:
            self.give_up(None)
        elif self._answering is None:
            is_good = self.node is not None
            self._end(Status.OK if is_good else Status.INVALID_ARGUMENT, "")

    def refuse(self, error: CallRefused) -> None:
        """Say why, then let go; who does not read it in time is cut off."""
        if self._is_over:
            self.give_up(error)
            return
        self._service.complain(str(error), self.address)
        self._end(Status(error.status), str(error))

    def _end(self, status: Status, text: str, *, is_answered: bool = False) -> None:
        self._is_over = True
        self.takes_messages = False
        self._service.ended(self)
        is_answered = is_answered or self.node is not None
        headers = [] if is_answered else grpc_messages.response_headers()
        trailers = grpc_messages.status_headers(status, text)
        self.http2.send_headers([*headers, *trailers], ends_stream=True)
        self.http2.send_goaway(framing.NO_ERROR)
        self.flush()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self._too_slow)
