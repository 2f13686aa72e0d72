"""What AMQP clients connect to, and this member's federation links; opened and closed together.

`pause` and `resume` are rabbitmqctl's stop_app and start_app: AMQP clients are sent away and the
listeners close, while this member's groups, its gRPC services and its health endpoint go on.
Built by composition.py; asked by the Admin service.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from brokerd.config import BrokerConfig
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.identity import Identity
from brokerd.federation.supervisor import Supervisor
from brokerd.server.access.connections import Connections
from brokerd.server.amqp.connection import ClientConnection
from brokerd.server.amqp.listener import AmqpListener
from brokerd.server.catalog import ports
from brokerd.server.catalog.audit import Author
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.observe.health import HealthState

log = logging.getLogger(__name__)

SHUTDOWN = "broker forced connection closure with reason 'shutdown'"
STOPPED = "stopped by stop_app; start_app opens the listeners again"
#: How long clients may take to answer connection.close before their sockets are dropped.
GOODBYE_S = 3.0
#: The same when the process ends, which drops them anyway.
STOP_GOODBYE_S = 0.5
POLL_S = 0.02


class Endpoints:
    """Open only once the member knows the topology.  `is_open` says whether AMQP is served."""

    def __init__(
        self,
        config: BrokerConfig,
        health: HealthState,
        listener: AmqpListener,
        make_links: Callable[[], Supervisor],
        connections: Connections[ClientConnection],
        catalog: ports.Catalog,
    ) -> None:
        """make_links: a supervisor of links is good for being started once."""
        self._config = config
        self._health = health
        self._listener = listener
        self._make_links = make_links
        self._links = make_links()
        self._connections = connections
        self._catalog = catalog
        self.is_open = False
        self._changing = asyncio.Lock()

    def link_rows(self) -> list[dict[str, Any]]:
        """Return one row per federation link of this member."""
        return self._links.rows()

    def restart_link(self, link_id: str) -> bool:
        """Have a link connect anew; tell whether this member runs it."""
        return self._links.restart(link_id)

    async def connect_here(self, identity: Identity, author: Author | None = None) -> socket.socket:
        """Return a socket at whose other end this member serves AMQP (listener.py)."""
        return await self._listener.connect_here(identity, author)

    async def open(self) -> None:
        """Let AMQP clients in, and start the links."""
        await self._listener.start(self._config)
        self._links.start()
        self.is_open = True
        self._health.ready = True
        self._health.reason = ""

    async def pause(self, reason: str = STOPPED) -> int:
        """Send AMQP clients away and stop listening; return how many there were."""
        async with self._changing:
            if not self.is_open:
                return 0
            self.is_open = False
            self._health.ready = False
            self._health.reason = reason
            await self._links.stop()
            await self._listener.stop()
            count = await self._send_clients_away(GOODBYE_S)
            await self._end_transients()
            return count

    async def resume(self) -> None:
        """Listen again."""
        async with self._changing:
            if not self.is_open:
                self._links = self._make_links()
                await self.open()

    async def _send_clients_away(self, patience_s: float) -> int:
        connections = self._connections
        clients = connections.all()
        connections.close_all(SHUTDOWN)
        deadline = asyncio.get_running_loop().time() + patience_s
        # Sockets close one by one, and nothing tells when the last one has.
        while len(connections) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        for connection in [*connections.all(), *connections.leaving]:
            connection.abort()
        return len(clients)

    async def _end_transients(self) -> None:
        """Remove what does not survive a restart of this member (R-Q-9, R-EX-9)."""
        view, node = self._catalog.view, self._config.node_name
        gone = [
            ("queue", queue.vhost, queue.name)
            for queue in view.queues()
            if not queue.durable and queue.members == [node]
        ]
        if len(view.members()) <= 1:
            gone += [
                ("exchange", record.vhost, record.name)
                for record in view.records("exchange")
                if not record.spec()["durable"]
            ]
        operations = [
            catalog_commands.delete(kind, vhost, name, cause="node-restarted")
            for kind, vhost, name in gone
        ]
        if operations:
            try:
                await self._catalog.write({"do": "batch", "operations": operations})
            except Unavailable:
                log.warning("stop_app: no majority; transient objects stay")

    async def shut(self) -> None:
        """Accept no new clients; those that are connected stay."""
        self._health.ready = False
        self._health.reason = "this member stops"
        await self._listener.stop()

    async def close(self) -> None:
        """Say goodbye to clients, then stop listening."""
        await self._links.stop()
        await self._listener.stop()
        await self._send_clients_away(STOP_GOODBYE_S)
