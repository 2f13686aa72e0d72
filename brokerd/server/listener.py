"""AMQP listeners: plain and TLS, IPv4 and IPv6, one ClientConnection per socket."""

from __future__ import annotations

import asyncio
import logging
import platform
import ssl
from pathlib import Path

from brokerd import __version__
from brokerd.amqp.config import ConnectionConfig
from brokerd.config import BrokerConfig, TlsConfig
from brokerd.server import consumer_timeout
from brokerd.server.broker import Broker
from brokerd.server.connection import ClientConnection

log = logging.getLogger(__name__)

#: What client libraries that look at versions are to believe (R-VER-1).
_COMPATIBLE_VERSIONS = {"rabbitmq-3.10": "3.10.8", "rabbitmq-3.13": "3.13.7"}


class ListenError(Exception):
    """A port cannot be listened on; the text says which and what to do."""


def compatible_version(broker: Broker) -> str:
    """Return the version of RabbitMQ that the active profile follows (R-VER-1)."""
    # What is laid over a profile (`rabbitmq-3.10+mrg`) does not make it another RabbitMQ.
    return _COMPATIBLE_VERSIONS.get(broker.profile.name.partition("+")[0], "4.3.5")


def compatible_product(broker: Broker) -> str:
    """Return the product's name: RabbitMQ's own profiles stand in for it by name too, as
    amqplib's suite asks; `brokerd_version` says what it really is (R-VER-1).
    """
    return "RabbitMQ" if broker.profile.name.startswith("rabbitmq-") else "brokerd"


def connection_config(broker: Broker) -> ConnectionConfig:
    """Return the limits and the identity that every client meets."""
    limits = broker.config.limits
    variables = broker.variables
    return ConnectionConfig(
        frame_max=variables.frame_max,
        frame_min=broker.profile.frame_min,
        initial_frame_max=broker.profile.frame_min,
        channel_max=variables.channel_max,
        heartbeat_s=variables.heartbeat,
        handshake_timeout_ms=limits.handshake_timeout_ms,
        max_message_size=broker.profile.max_message_size,
        server_properties={
            "product": compatible_product(broker),
            "version": compatible_version(broker),
            "brokerd_version": __version__,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The brokerd authors",
            "information": "Licensed under the Apache License 2.0",
            "cluster_name": broker.config.cluster.name,
        },
    )


class AmqpListener:
    """The open listening sockets of one member."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._servers: list[asyncio.Server] = []
        self._is_watching = False
        broker.topology_listeners += [
            broker.connections.topology_changed,
            broker.shared_counts.topology_changed,
        ]
        #: What new connections meet, and the revision of the variables it was made of.
        self._settings: tuple[int, ConnectionConfig] | None = None

    def _connection(self, tls: bool) -> ClientConnection:
        revision = self._broker.variables.revision
        if self._settings is None or self._settings[0] != revision:
            self._settings = revision, connection_config(self._broker)
        return ClientConnection(self._broker, self._settings[1], tls)

    async def start(self, config: BrokerConfig) -> None:
        """Listen on 5672, and on 5671 when there is a certificate."""
        if not self._is_watching:
            self._is_watching = True
            self._broker.spawn(consumer_timeout.watch(self._broker))
        if port := config.port("amqp"):
            await self._listen(config, port, None)
        if config.tls.cert_file and (port := config.port("amqps")):
            await self._listen(config, port, _tls_context(config.tls))

    async def _listen(
        self, config: BrokerConfig, port: int, context: ssl.SSLContext | None
    ) -> None:
        host = config.node.bind or None
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._connection(context is not None),
                host,
                port,
                ssl=context,
                backlog=config.listeners.backlog,
                # SEC-33: a TLS handshake takes at most five seconds.
                ssl_handshake_timeout=5.0 if context is not None else None,
            )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host or '*'}:{port} for AMQP: {error.strerror or error}; "
                "another broker may be running (see --port-offset)"
            ) from error
        self._servers.append(server)
        scheme = "AMQPS" if context is not None else "AMQP"
        log.info("listening for %s on %s port %d", scheme, host or "all addresses", port)

    async def stop(self) -> None:
        """Accept nothing more."""
        for server in self._servers:
            server.close()
        self._servers.clear()


def _tls_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(Path(tls.cert_file), Path(tls.key_file or tls.cert_file))
        if tls.ca_file:
            context.load_verify_locations(Path(tls.ca_file))
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"cannot use the certificate {tls.cert_file}: {error}") from error
    return context
