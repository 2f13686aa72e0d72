"""The gRPC listener of outsiders: Admin, Messages, Telemetry, health and reflection (ADR 18)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from brokerd.cluster.peer import listening
from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.config import BrokerConfig, LimitConfig
from brokerd.core.unauthenticated import Unauthenticated, source_of
from brokerd.rpc.v1 import admin_pb2_grpc, messages_pb2, messages_pb2_grpc, telemetry_pb2_grpc
from brokerd.server.access.tls_listener import ListenerContext, ListenError, listener_context
from brokerd.server.grpc import rpc_call, rpc_connection
from brokerd.server.grpc.rpc_auth import Callers
from brokerd.server.grpc.rpc_budget import Budget
from brokerd.server.grpc.rpc_connection import READ_BYTES, RpcConnection

log = logging.getLogger(__name__)

#: What reflection lists.
SERVICES = (
    "brokerd.v1.Admin",
    "brokerd.v1.Messages",
    "brokerd.v1.Telemetry",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
)
#: SEC-33.
TLS_TIMEOUT_S = 5.0
#: Pause after a connection that could not be accepted (no descriptors left).
ACCEPT_PAUSE_S = 0.1
#: Complaints about clients come at most so often.
COMPLAIN_EVERY_S = 1.0


@dataclass(slots=True, frozen=True)
class Servicers:
    """What is served."""

    admin: admin_pb2_grpc.AdminServicer
    messages: messages_pb2_grpc.MessagesServicer
    telemetry: telemetry_pb2_grpc.TelemetryServicer
    health: health_pb2_grpc.HealthServicer


class GrpcServer:
    """Owns the listening sockets and what came in by them.

    State: connections that stand (`_connections`); those that were accepted, with the tasks that
    set them up, TLS included (`_arriving`); what counts as the address of each of both
    (`_sources`), and how many each address has (`_by_source`).

    In one piece: most of it are bounds and books that each accepted socket is held against.
    """

    def __init__(
        self,
        limits: LimitConfig,
        callers: Callers,
        servicers: Servicers,
        certificate_files: list[CertificateFiles[ssl.SSLContext]],
    ) -> None:
        """certificate_files gets what is listened with."""
        self.callers = callers
        self._servicers = servicers
        self._certificate_files = certificate_files
        #: By path: /brokerd.v1.Admin/GetInfo.
        self.handlers: dict[bytes, Any] = {}
        self.budget = Budget(limits.grpc_request_bytes)
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.write_timeout_s = limits.write_timeout_ms / 1000
        self._stranger_s = limits.handshake_timeout_ms / 1000
        self._connections_max = limits.grpc_connections
        self._connections_per_address_max = limits.grpc_connections_per_address
        self._unauthenticated: Unauthenticated[RpcConnection] = Unauthenticated(
            limits.unauthenticated, limits.unauthenticated_per_address
        )
        self._sources: dict[RpcConnection, str] = {}
        self._by_source: Counter[str] = Counter()
        self._tls: ListenerContext | None = None
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._arriving: dict[RpcConnection, asyncio.Task[None]] = {}
        self._connections: set[RpcConnection] = set()
        self._deadlines: dict[RpcConnection, asyncio.TimerHandle] = {}
        self._complained_s = 0.0
        #: No connection stands.
        self._empty = asyncio.Event()
        self._empty.set()

    # ---- what generated code asks of a server ---------------------------------------------------

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Serve these methods."""
        for name, handler in handlers.items():
            self.handlers[f"/{service}/{name}".encode()] = handler

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Nothing: they are the registered ones once more."""

    # ---- life -----------------------------------------------------------------------------------

    async def start(self, config: BrokerConfig) -> None:
        """Listen on port 5680, with TLS when there is a certificate."""
        port = config.port("grpc")
        if not port:
            return
        admin_pb2_grpc.add_AdminServicer_to_server(  # type: ignore[no-untyped-call]
            self._servicers.admin, self
        )
        messages_pb2_grpc.add_MessagesServicer_to_server(  # type: ignore[no-untyped-call]
            self._servicers.messages, self
        )
        # Not the generated one's: its requests come as octets, all that are there at once.
        self.handlers[b"/brokerd.v1.Messages/Publish"] = grpc.stream_stream_rpc_method_handler(
            self._servicers.messages.Publish,
            request_deserializer=None,
            response_serializer=messages_pb2.PublishResponse.SerializeToString,
        )
        self.handlers[b"/brokerd.v1.Messages/PublishBatch"] = grpc.unary_unary_rpc_method_handler(
            self._servicers.messages.PublishBatch,
            request_deserializer=bytes,
            response_serializer=messages_pb2.PublishResponse.SerializeToString,
        )
        telemetry_pb2_grpc.add_TelemetryServicer_to_server(  # type: ignore[no-untyped-call]
            self._servicers.telemetry, self
        )
        health_pb2_grpc.add_HealthServicer_to_server(
            self._servicers.health,
            self,  # type: ignore[arg-type]
        )
        # It goes through the generated code's own descriptors; to who has logged in.
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
            reflection.aio.ReflectionServicer(SERVICES), self
        )
        host = config.node.bind or "[::]"
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        address = f"{host}:{port}"
        if config.tls.cert_file:
            try:
                self._tls = listener_context(
                    "grpc", config.tls, config.auth.operator_ca_file, ["h2"]
                )
            except OSError as error:
                raise ListenError(str(error)) from error
            self._certificate_files.append(self._tls.files)
        elif config.auth.operator_ca_file:
            raise ListenError("auth.operator_ca_file needs tls.cert_file: certificates need TLS")
        try:
            self._listeners = listening.listen(address)
        except OSError as error:
            reason = listening.in_words(error)
            raise ListenError(f"cannot listen on {address} for gRPC: {reason}") from error
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.listen(config.listeners.backlog)
            self._accepting.append(loop.create_task(self._accept(listener), name="gRPC listener"))
        log.info("listening for gRPC on %s", address)

    async def stop(self) -> None:
        """End all calls, what they have read answered (rpc_call.py)."""
        tasks = [*self._accepting, *self._arriving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.stop("this member stops: try again, elsewhere")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rpc_call.ANSWERS_S + rpc_connection.FAREWELL_S):
                await self._empty.wait()
        for connection in list(self._connections):
            connection.give_up()
        # connection_lost comes with the loop's next turns.
        await asyncio.sleep(0)

    # ---- who comes ------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                found, address = await loop.sock_accept(listener)
            except OSError as error:
                self.complain(f"cannot accept: {error}", "anybody")
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._greet(found, str(address[0]), int(address[1]))

    def _greet(self, found: socket.socket, address: str, port: int) -> None:
        connection = RpcConnection(self, address, port)
        address = connection.address
        source = source_of(address)
        loser = self._unauthenticated.admit(
            connection,
            source,
            is_full=len(self._sources) >= self._connections_max,
            is_share_taken=self._by_source[source] >= self._connections_per_address_max,
        )
        if loser is connection:
            found.close()
            self.complain("too many connections", address)
            return
        if loser is not None:
            self.complain("too many connections that do not log in: the oldest goes", address)
            self._turn_out(loser)
        self._sources[connection] = source
        self._by_source[source] += 1
        found.setblocking(False)
        loop = asyncio.get_running_loop()
        self._deadlines[connection] = loop.call_later(
            self._stranger_s, self._turn_out_politely, connection
        )
        task = loop.create_task(self._set_up(found, connection))
        self._arriving[connection] = task
        task.add_done_callback(functools.partial(self._set_up_ended, connection, found))

    async def _set_up(self, found: socket.socket, connection: RpcConnection) -> None:
        try:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                found,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_TIMEOUT_S if self._tls is not None else None,
            )
        except OSError as error:
            found.close()
            self._forget(connection)
            self.complain(f"handshake: {str(error) or type(error).__name__}", connection.address)

    def _set_up_ended(
        self, connection: RpcConnection, found: socket.socket, task: asyncio.Task[None]
    ) -> None:
        """Tidy up here: a task that is cancelled before its first step runs no line of its own."""
        self._arriving.pop(connection, None)
        if task.cancelled():
            found.close()
            self._forget(connection)

    def _turn_out(self, connection: RpcConnection) -> None:
        """Close a stranger's connection at once, whether it stands or not."""
        task = self._arriving.get(connection)
        if task is not None and connection not in self._connections:
            task.cancel()
        connection.give_up()
        self._forget(connection)

    def _turn_out_politely(self, connection: RpcConnection) -> None:
        """Its time is over: a login that is being checked may still come to its end."""
        if connection in self._connections:
            connection.turn_out("nobody has logged in on this connection in time")
        else:
            self._turn_out(connection)

    def _forget(self, connection: RpcConnection) -> None:
        deadline = self._deadlines.pop(connection, None)
        if deadline is not None:
            deadline.cancel()
        self._unauthenticated.gone(connection)
        source = self._sources.pop(connection, None)
        if source is not None:
            self._by_source[source] -= 1
            if not self._by_source[source]:
                del self._by_source[source]

    def connected(self, connection: RpcConnection) -> None:
        """A socket stands, TLS included."""
        self._connections.add(connection)
        self._empty.clear()

    def known(self, connection: RpcConnection) -> None:
        """Somebody has logged in on a connection."""
        connection.is_stranger = False
        deadline = self._deadlines.pop(connection, None)
        if deadline is not None:
            deadline.cancel()
        self._unauthenticated.gone(connection)

    def ended(self, connection: RpcConnection) -> None:
        """A connection is closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        self._forget(connection)

    def complain(self, text: str, address: str) -> None:
        """Log what is wrong with a client; one line a second says enough of a thousand."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._complained_s >= COMPLAIN_EVERY_S:
            self._complained_s = now_s
            log.warning("gRPC from=%s: %s", address, text)
