"""The receiving end of peer streams: admits members, hands their frames over, one call per frame.

Decodes nothing but the frame itself and decides nothing but who may talk (SEC-3, SEC-4).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, Protocol

import grpc

from brokerd.cluster import frames, security, transport
from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import FrameError
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2, peer_pb2_grpc

logger = logging.getLogger(__name__)

#: Distinct refusals that are logged; whoever is refused comes again every second.
REFUSALS_LOGGED_MAX = 256


class FrameSink(Protocol):
    """What the host does with incoming streams; implemented by host.py."""

    def stream_opened(self, node: NodeId, incarnation: int) -> None:
        """A member's stream stands; it supersedes an earlier one."""
        ...

    def frame_received(self, node: NodeId, frame: peer_pb2.PeerFrame) -> None:
        """Take one frame; FrameError ends the stream."""
        ...

    def stream_closed(self, node: NodeId) -> None:
        """The member's current stream ended."""
        ...


class PeerService(peer_pb2_grpc.PeerServicer):
    """Servicer of brokerd.v1.Peer.

    State: the current stream of each member; frames of superseded streams are not passed on.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: int,
        config: HostConfig,
        is_member: Callable[[NodeId], bool],
        sink: FrameSink,
    ) -> None:
        self._node = node
        self._config = config
        self._is_member = is_member
        self._sink = sink
        self._hello = peer_pb2.PeerFrame.FromString(
            transport.hello_frame(node, incarnation, config)
        )
        self._current: dict[NodeId, object] = {}
        self._refusals: set[str] = set()

    async def Exchange(
        self,
        request_iterator: AsyncIterator[peer_pb2.PeerFrame],
        context: grpc.aio.ServicerContext[peer_pb2.PeerFrame, peer_pb2.PeerFrame],
    ) -> None:
        """Serve one member's stream until it ends or a newer one replaces it."""
        hello = await self._admit(context)
        node = NodeId(hello.node)
        mark = object()
        self._current[node] = mark
        await context.write(self._hello)
        self._sink.stream_opened(node, hello.incarnation)
        try:
            while True:
                frame: Any = await context.read()
                if frame is grpc.aio.EOF or self._current.get(node) is not mark:
                    return
                if not self._is_member(node):
                    await self._refuse(
                        context, grpc.StatusCode.FAILED_PRECONDITION, f"{node!r} was removed"
                    )
                self._sink.frame_received(node, frame)
        except FrameError as error:
            logger.error("bad frame, closing the stream node=%s: %s", node, error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if self._current.get(node) is mark:
                del self._current[node]
                self._sink.stream_closed(node)

    async def _admit(
        self, context: grpc.aio.ServicerContext[peer_pb2.PeerFrame, peer_pb2.PeerFrame]
    ) -> peer_pb2.Hello:
        if not security.is_secret_right(context.invocation_metadata() or (), self._config.secret):
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "wrong cluster secret")
        frame: Any = await context.read()
        if frame is grpc.aio.EOF or not frame.HasField("hello"):
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "no hello")
        hello: peer_pb2.Hello = frame.hello
        node = NodeId(hello.node)
        if hello.cluster_id != self._config.cluster_id:
            await self._refuse(
                context, grpc.StatusCode.PERMISSION_DENIED, f"not cluster {hello.cluster_id!r}"
            )
        if hello.protocol_version != frames.PROTOCOL_VERSION:
            await self._refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"peer protocol {hello.protocol_version}, here {frames.PROTOCOL_VERSION}",
            )
        if self._config.tls is not None:
            names = security.names_in_certificate(context.auth_context())
            if not security.is_member_certificate(names, node):
                await self._refuse(
                    context, grpc.StatusCode.PERMISSION_DENIED, f"certificate is not of {node!r}"
                )
        if node == self._node or not self._is_member(node):
            await self._refuse(
                context, grpc.StatusCode.FAILED_PRECONDITION, f"{node!r} is no other member here"
            )
        return hello

    async def _refuse(
        self, context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, text: str
    ) -> NoReturn:
        if text not in self._refusals and len(self._refusals) < REFUSALS_LOGGED_MAX:
            self._refusals.add(text)
            logger.warning("refused a peer stream from=%s: %s", context.peer(), text)
        await context.abort(code, text)
        raise AssertionError("abort raises")


def create_server(service: PeerService, config: HostConfig) -> grpc.aio.Server:
    """Return a gRPC server for the service; `bind` it, then start it."""
    limits = config.transport
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.receive_bytes_max),
            ("grpc.max_send_message_length", limits.receive_bytes_max),
            ("grpc.so_reuseport", 0),
            # Peers probe idle connections; more often than this it is abuse.
            ("grpc.http2.min_ping_interval_without_data_ms", limits.keepalive_time_ms // 2),
            ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ],
        compression=grpc.Compression.NoCompression,
    )
    peer_pb2_grpc.add_PeerServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    return server


def bind(server: grpc.aio.Server, address: str, config: HostConfig) -> int:
    """Bind to "host:port" and return the port; OSError if that is impossible."""
    try:
        if config.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, security.server_credentials(config.tls))
    except RuntimeError as error:
        raise OSError(f"cannot listen for peers on {address}: {error}") from error
    if not port:
        raise OSError(f"cannot listen for peers on {address}")
    return port
