"""The gRPC listener of outsiders: Admin, Messages and Telemetry on one port."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from brokerd.config import BrokerConfig
from brokerd.rpc.v1 import admin_pb2_grpc, messages_pb2_grpc, telemetry_pb2_grpc
from brokerd.server.admin_service import AdminService
from brokerd.server.listener import ListenError
from brokerd.server.message_service import MessageService

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: SEC-47: one message of 16 MiB and its envelope.
RECEIVE_BYTES_MAX = 17 * 1024 * 1024
CONCURRENT_STREAMS_MAX = 1000


class GrpcServer:
    """Owns the grpc.aio server of one member."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: grpc.aio.Server | None = None

    async def start(
        self, config: BrokerConfig, telemetry: telemetry_pb2_grpc.TelemetryServicer
    ) -> None:
        """Listen on port 5680, with TLS when there is a certificate."""
        port = config.port("grpc")
        if not port:
            return
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
                ("grpc.max_concurrent_streams", CONCURRENT_STREAMS_MAX),
                ("grpc.so_reuseport", 0),
            ],
            compression=grpc.Compression.NoCompression,
        )
        admin_pb2_grpc.add_AdminServicer_to_server(  # type: ignore[no-untyped-call]
            AdminService(self._broker), server
        )
        messages_pb2_grpc.add_MessagesServicer_to_server(  # type: ignore[no-untyped-call]
            MessageService(self._broker), server
        )
        telemetry_pb2_grpc.add_TelemetryServicer_to_server(  # type: ignore[no-untyped-call]
            telemetry, server
        )
        host = config.node.bind or "[::]"
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        address = f"{host}:{port}"
        try:
            if config.tls.cert_file:
                server.add_secure_port(address, _credentials(config))
            else:
                server.add_insecure_port(address)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {address} for gRPC: {error}") from error
        await server.start()
        self._server = server
        log.info("listening for gRPC on %s", address)

    async def stop(self) -> None:
        """End all calls."""
        if self._server is not None:
            await self._server.stop(grace=0.5)


def _credentials(config: BrokerConfig) -> grpc.ServerCredentials:
    tls = config.tls
    try:
        certificate = Path(tls.cert_file).read_bytes()
        key = Path(tls.key_file or tls.cert_file).read_bytes()
    except OSError as error:
        raise ListenError(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([(key, certificate)])
