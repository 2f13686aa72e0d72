"""The catalog at one member: its state as applied here, changes from here, and who hears of them.

What follows on this member from a change stands in server/catalog_events.py.  Built by
composition.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.config import LimitConfig
from brokerd.core.catalog import catalog_checks, catalog_commands
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import ConnectionId
from brokerd.core.profiles import Profile
from brokerd.server.catalog import sealed_parameters
from brokerd.server.catalog.catalog_writer import CatalogWriter, Unavailable
from brokerd.server.catalog.keyring import Keyring

log = logging.getLogger(__name__)

Listener = Callable[[TopologyChanged], None]


class Connections(Protocol):
    """The names of this process's connections."""

    def connection_id(self, uid: int) -> ConnectionId:
        """Return the cluster-wide id of a connection."""
        ...


class MemberCatalog:
    """State: who hears of changes, and how often the catalog changed here."""

    def __init__(
        self,
        profile: Profile,
        connections: Connections,
        host: Host,
        groups: GroupClient,
        limits: LimitConfig,
        keyring: Keyring,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """keyring: under which secrets go into the log.  spawn(work) runs a task that ends with the
        member.
        """
        self.profile = profile
        self.keyring = keyring
        self._connections = connections
        self._spawn = spawn
        self.machine = CatalogMachine(
            profile, on_restored=self._restored, on_restoring=self._restoring
        )
        #: What this member has applied; the same object for its whole life.
        self.view = self.machine.state
        self.writer = CatalogWriter(host, groups, self.view, limits)
        #: Rises with each change: cached checks and routes are kept with it.
        self.topology_revision = 1
        #: Called after changes of objects here (catalog_events.py), by those who come and go.
        self.topology_listeners: list[Listener] = []
        #: Queues that receive each change; a full one misses it, and starts again with a list.
        self.watchers: set[asyncio.Queue[TopologyChanged]] = set()
        #: Called when a snapshot is about to replace the state.
        self.restoring_listeners: list[Callable[[], None]] = []
        #: Called when a snapshot has replaced the state.
        self.restored_listeners: list[Callable[[], None]] = []

    def nudge(self) -> None:
        """Have the catalog's leader send something, if nothing is on its way to it."""
        self.writer.nudge()

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose one operation; return its reply once all members that are up have applied it.

        Unavailable without a majority.
        """
        catalog_checks.judge(operation, self.profile, self.view)
        sealed_parameters.seal(operation, self.view, self.keyring)
        return await self.writer.write(operation)

    def routes_changed(self) -> None:
        """Cached checks and routes are old, though no object has changed: other queues are down."""
        self.topology_revision += 1

    async def catch_up(self) -> None:
        """Return when all is applied here that was agreed upon before the call.

        Unavailable without a majority.
        """
        await self.writer.catch_up()

    def write_later(self, operation: dict[str, Any]) -> None:
        """Have an operation written without waiting for its answer."""
        self._spawn(self._write_quietly(operation))

    def exclusive_queues_end(self, connection_uid: int) -> asyncio.Task[None]:
        """A connection ended: its exclusive queues go (R-Q-9); done when they are gone."""
        # Even if none is known here yet: a declare may be on its way, in order before this.
        owner = self._connections.connection_id(connection_uid)
        return self._spawn(self._write_quietly(catalog_commands.connection_closed(owner)))

    async def _write_quietly(self, operation: dict[str, Any]) -> None:
        try:
            await self.write(operation)
        except Unavailable:
            log.warning("%s: no majority; it is done when the node starts again", operation["do"])

    def _restoring(self) -> None:
        for listener in self.restoring_listeners:
            listener()

    def _restored(self) -> None:
        for listener in self.restored_listeners:
            listener()
