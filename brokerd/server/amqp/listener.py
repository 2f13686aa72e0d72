"""AMQP listeners: plain and TLS, IPv4 and IPv6, one ClientConnection per socket."""

from __future__ import annotations

import asyncio
import functools
import logging
import platform
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from brokerd import __version__
from brokerd.amqp.config import ConnectionConfig
from brokerd.cluster.peer import listening
from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.config import BrokerConfig, TlsConfig
from brokerd.core.catalog.identity import Identity
from brokerd.core.profiles import Profile
from brokerd.server.access import compatibility, proxied_listener
from brokerd.server.access.proxied_listener import ProxiedServer
from brokerd.server.access.proxy_header import Address
from brokerd.server.access.tls_listener import ListenerContext, ListenError, listener_context
from brokerd.server.amqp import consumer_timeout
from brokerd.server.amqp.connection import ClientConnection
from brokerd.server.amqp.own_connection import OwnConnection
from brokerd.server.amqp.ports import ConnectionServices
from brokerd.server.application_env import Variables
from brokerd.server.catalog import cluster_name
from brokerd.server.catalog.audit import Author

log = logging.getLogger(__name__)


def connection_config(
    config: BrokerConfig, profile: Profile, variables: Variables, cluster: str
) -> ConnectionConfig:
    """Return the limits and the identity that every client meets.  cluster: its name (R-FED-8)."""
    return ConnectionConfig(
        frame_max=variables.frame_max,
        frame_min=profile.frame_min,
        initial_frame_max=profile.frame_min,
        channel_max=variables.channel_max,
        heartbeat_s=variables.heartbeat,
        handshake_timeout_ms=config.limits.handshake_timeout_ms,
        max_message_size=profile.max_message_size,
        server_properties={
            "product": compatibility.compatible_product(profile),
            "version": compatibility.compatible_version(profile),
            "brokerd_version": __version__,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The brokerd authors",
            "information": "Licensed under the Apache License 2.0",
            "cluster_name": cluster,
        },
    )


class AmqpListener:
    """The open listening sockets of one member."""

    def __init__(
        self,
        services: ConnectionServices[ClientConnection],
        variables: Variables,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        certificate_files: list[CertificateFiles[ssl.SSLContext]],
    ) -> None:
        """spawn(work) runs a task that ends with the member; certificate_files gets what is
        listened with.
        """
        self._services = services
        self._variables = variables
        self._spawn = spawn
        self._certificate_files = certificate_files
        self._servers: list[asyncio.Server | ProxiedServer] = []
        self._is_watching = False
        #: What new connections meet, and the variables' revision and the name it was made of.
        self._settings: tuple[tuple[int, str], ConnectionConfig] | None = None

    async def connect_here(self, identity: Identity, author: Author | None = None) -> socket.socket:
        """Return a socket at whose other end this member serves AMQP, with somebody's rights and
        without a login; the user "": all rights.  author: see own_connection.py.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: OwnConnection(self._services, self._config_now(), identity, author), theirs
        )
        return ours

    def _connection(self, tls: bool, client: Address | None = None) -> ClientConnection:
        return ClientConnection(self._services, self._config_now(), tls, client)

    def _config_now(self) -> ConnectionConfig:
        variables, channels = self._variables, self._services.channels
        cluster = cluster_name.of(channels.config.cluster.name, channels.catalog.view)
        made_of = variables.revision, cluster
        if self._settings is None or self._settings[0] != made_of:
            made = connection_config(channels.config, channels.profile, variables, cluster)
            self._settings = made_of, made
        return self._settings[1]

    async def start(self, config: BrokerConfig) -> None:
        """Listen on 5672, and on 5671 when there is a certificate."""
        if not self._is_watching:
            self._is_watching = True
            timeout_ms = consumer_timeout.watched(self._services.channels.profile, config.queues)
            self._spawn(consumer_timeout.watch(timeout_ms, self._services.connections.all))
        if port := config.port("amqp"):
            await self._listen(config, port, None)
        if config.tls.cert_file and (port := config.port("amqps")):
            await self._listen(config, port, self._tls_context(config.tls))

    def _tls_context(self, tls: TlsConfig) -> ListenerContext:
        try:
            context = listener_context("amqps", tls, tls.ca_file)
        except OSError as error:
            raise ListenError(str(error)) from error
        self._certificate_files.append(context.files)
        return context

    async def _listen(
        self, config: BrokerConfig, port: int, context: ssl.SSLContext | None
    ) -> None:
        host, backlog = config.node.bind or None, config.listeners.backlog
        trusted = proxied_listener.networks(config.proxy_protocol.trusted)
        scheme = "AMQPS" if context is not None else "AMQP"
        try:
            server: asyncio.Server | ProxiedServer
            if trusted:
                server = ProxiedServer(
                    functools.partial(self._connection, context is not None),
                    trusted,
                    context,
                    scheme,
                )
                await server.start(host, port, backlog)
            else:
                server = await asyncio.get_running_loop().create_server(
                    lambda: self._connection(context is not None),
                    host,
                    port,
                    ssl=context,
                    backlog=backlog,
                    # SEC-33: a TLS handshake takes at most five seconds.
                    ssl_handshake_timeout=5.0 if context is not None else None,
                )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host or '*'}:{port} for AMQP: {listening.in_words(error)}"
            ) from error
        self._servers.append(server)
        log.info("listening for %s on %s port %d", scheme, host or "all addresses", port)

    async def stop(self) -> None:
        """Accept nothing more."""
        for server in self._servers:
            server.close()
        self._servers.clear()
