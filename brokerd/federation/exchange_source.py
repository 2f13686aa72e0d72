"""The source of a federated exchange: a queue at the upstream that its bindings fill.

Owns the link's names there and the bindings that were propagated (R-FX-1 to R-FX-10).  What is sent
for it is in `upstream_side.py`, which bindings in `link_bindings.py`; the link drives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from brokerd.federation import link_bindings, upstream_side
from brokerd.federation import upstream as upstreams
from brokerd.federation.client import Channel, Connection
from brokerd.federation.ends import Intake, Peer, Session
from brokerd.federation.errors import ClientError
from brokerd.federation.ports import Federated, Topology
from brokerd.federation.upstream import Upstream

#: R-FX-6.
CHECK_INTERVAL_S = 90.0
#: Binding changes that come together are sent together.
BINDING_DELAY_S = 0.02
CONSUMER_TAG = "federation-link"
#: Letters of the internal exchange: the first start takes B (R-FX-4).
_SECOND, _FIRST = upstreams.SUFFIXES


class ExchangeSource:
    """ends.Source.  Invariant: with `_commands`, `_propagated` is what is bound upstream."""

    def __init__(self, federated: Federated, upstream: Upstream, topology: Topology) -> None:
        self._federated = federated
        self._upstream = upstream
        self._topology = topology
        self._propagated = link_bindings.Propagated()
        self._bindings_changed = False
        self._next_check = 0.0
        self._backlog = upstream_side.Backlog()
        self._names: upstream_side.Names | None = None
        self._ends: link_bindings.Ends | None = None
        self._connection: Connection | None = None
        self._commands: Channel | None = None

    async def prepare(self, session: Session) -> Intake:
        """See Source: exchange, queue, internal exchange and bindings, in this order."""
        connection = self._connection = session.peer.connection
        names = self._names = self._names_at(session.peer)
        await upstream_side.declare_exchange(connection, names.exchange, self._federated)
        commands = self._commands = session.channel
        if not self._upstream.single_channel:
            commands = self._commands = await connection.open_channel()
            session.watch(commands)
        await upstream_side.declare_queue(session.channel, names.queue, self._upstream)
        present = await upstream_side.present_suffixes(connection, names)
        if len(present) > 1:
            present = [await self._finish_switch(session.peer)]
        old = present[0] if present else None
        suffix = _FIRST if old != _FIRST else _SECOND
        arguments = upstreams.internal_exchange_arguments(
            self._upstream.max_hops, self._topology.cluster_name, self._federated.vhost
        )
        await upstream_side.declare_internal_exchange(
            session.connect, commands, names, suffix, arguments
        )
        await self._fill(session.peer, suffix)
        if old is not None:
            await upstream_side.delete_internal(commands, names.internal(old))
        self._next_check = asyncio.get_running_loop().time() + CHECK_INTERVAL_S
        # Exclusive: another consumer would take messages away (R-FED-8).
        return Intake(names.queue, CONSUMER_TAG, exclusive=True)

    async def _finish_switch(self, peer: Peer) -> str:
        """A crash has left both internal exchanges, and either may lack bindings: one gets all of
        them before the other goes (R-FX-5).  It may have more than are wanted, so that it is the
        old one of the switch-over that follows.  Return its letter.
        """
        assert self._names is not None
        assert self._commands is not None
        await upstream_side.bind_queue(self._commands, self._names, _FIRST)
        await self._fill(peer, _FIRST)
        await upstream_side.delete_internal(self._commands, self._names.internal(_SECOND))
        return _FIRST

    async def _fill(self, peer: Peer, suffix: str) -> None:
        """Give an internal exchange all bindings that are wanted."""
        self._ends = self._ends_at(peer, suffix)
        self._propagated = link_bindings.Propagated()
        await self._propagate()

    async def follow(self) -> float | None:
        """See Source: bindings follow, and R-FX-6."""
        assert self._names is not None
        assert self._ends is not None
        assert self._connection is not None
        loop = asyncio.get_running_loop()
        if self._bindings_changed:
            await asyncio.sleep(BINDING_DELAY_S)
            await self._propagate()
        if loop.time() >= self._next_check:
            internal = self._names.internal(self._ends.suffix)
            if not await upstream_side.exchange_exists(self._connection, internal):
                raise ClientError(f"the internal exchange '{internal}' is gone")
            self._next_check = loop.time() + CHECK_INTERVAL_S
        assert self._commands is not None
        next_look_s = self._backlog.look(self._commands, self._names.queue)
        return max(0.0, min(self._next_check - loop.time(), next_look_s))

    def changed(self) -> None:
        """See Source: the downstream exchange's bindings are (perhaps) others now."""
        self._bindings_changed = True

    async def clean_up(self, connect: Callable[[], Awaitable[Peer]]) -> None:
        """See Source."""
        peer = await connect()
        await upstream_side.delete_all(peer.connection, self._names_at(peer))

    def figures(self) -> dict[str, Any]:
        """See Source."""
        return {"bindings": len(self._propagated), **self._backlog.figures()}

    async def _propagate(self) -> None:
        """Bring the upstream bindings up to date (R-FX-7..R-FX-10)."""
        assert self._names is not None
        assert self._ends is not None
        assert self._commands is not None
        self._bindings_changed = False
        local = self._federated
        found = self._topology.bindings(local.vhost, local.exchange)
        changes = self._propagated.update(link_bindings.desired(found, self._ends))
        if changes:
            await upstream_side.apply_bindings(
                self._commands,
                self._names.exchange,
                self._names.internal(self._ends.suffix),
                changes,
                self._upstream.bind_nowait,
            )

    def _names_at(self, peer: Peer) -> upstream_side.Names:
        local = self._federated
        exchange = self._upstream.exchange_name(local.exchange)
        cluster = self._topology.cluster_name
        queue = upstreams.queue_name(exchange, peer.vhost, cluster, local.vhost, local.exchange)
        return upstream_side.Names(exchange, queue)

    def _ends_at(self, peer: Peer, suffix: str) -> link_bindings.Ends:
        local = self._federated
        return link_bindings.Ends(
            self._topology.cluster_name,
            local.vhost,
            local.exchange,
            suffix,
            peer.cluster,
            peer.vhost,
            self._upstream.max_hops,
        )
