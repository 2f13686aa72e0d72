"""Changing the catalog from this member: propose, wait for the majority, then for the members.

What a client declared here it may use at any member at once: a change is answered when every member
that is up has applied it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from brokerd.cluster.errors import GroupGone, GroupUnavailable
from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.config import LimitConfig
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import CATALOG_GROUP, NodeId

log = logging.getLogger(__name__)

#: How long a change of the catalog waits for members that are up but slow.
SYNC_S = 2.0
#: A question or its answer is lost where no stream stands yet, or with one: it is asked again.
ASK_AGAIN_S = 0.25


class Unavailable(Exception):
    """No majority answered in time; the operation may still take effect."""


class QueueStuck(Unavailable):
    """A queue takes nothing for now: its home member is down, or its group waits with damage.  The
    text says which.
    """


class CatalogWriter:
    """Owns who waits for a revision to be applied, here (`_waiters`) or elsewhere (`_syncs`)."""

    def __init__(
        self, host: Host, groups: GroupClient, view: CatalogState, limits: LimitConfig
    ) -> None:
        self._host = host
        self._groups = groups
        self._view = view
        self._limits = limits
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._last_sync = 0
        self._syncs: dict[int, tuple[set[NodeId], asyncio.Future[None]]] = {}

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose one operation; return its reply once it is applied here and elsewhere."""
        reply = await self._write_here(operation)
        await self._applied_everywhere(reply.get("revision") or 0)
        return reply

    async def catch_up(self) -> None:
        """Return when all is applied here that was agreed upon before the call.

        Nothing is changed, so that no other member is asked: each member that starts has all others
        do this, and each of these would ask all others again.
        """
        await self._write_here({"do": "batch", "operations": []})

    def nudge(self) -> None:
        """Propose nothing, if nothing is on its way to the catalog's leader."""
        if self._groups.pending_bytes(CATALOG_GROUP) == 0:
            self._groups.send(CATALOG_GROUP, catalog_commands.encode_batch([]), _ignore)

    async def _write_here(self, operation: dict[str, Any]) -> dict[str, Any]:
        timeout_s = self._limits.operation_timeout_ms / 1000
        try:
            raw = await self._groups.request(
                CATALOG_GROUP, catalog_commands.encode(operation), timeout_s
            )
        except (GroupUnavailable, GroupGone) as error:
            raise Unavailable(str(error)) from error
        reply = catalog_commands.decode_reply(raw)
        await self._wait_applied(reply.get("revision") or 0, timeout_s)
        return reply

    async def _applied_everywhere(self, revision: int) -> None:
        """Wait for the other members that are up, so that a client finds there what it declared
        here.  Bounded: a member that does not answer is as good as down."""
        others = self._others()
        if not others:
            return
        self._last_sync += 1
        token = self._last_sync
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncs[token] = (set(others), future)
        payload = delivery_codec.encode_sync(token, revision)
        try:
            async with asyncio.timeout(SYNC_S):
                while not future.done() and (others := self._syncs[token][0] & self._others()):
                    for node in sorted(others):
                        self._host.send_delivery(
                            node, CATALOG_GROUP, 0, delivery_codec.DeliveryKind.SYNC, payload
                        )
                    await asyncio.wait((future,), timeout=ASK_AGAIN_S)
        except TimeoutError:
            log.warning("members %s lag behind revision %d", self._syncs[token][0], revision)
        finally:
            del self._syncs[token]

    def _others(self) -> set[NodeId]:
        """Return the other members that are up.  Who was taken out may be heard until it ends, and
        comes to no revision any more; who has a disk that does not answer comes to some only.
        """
        host, members = self._host, self._view.members()
        others = {node for node in host.alive() if node in members and not host.is_stalled(node)}
        return others - {host.node}

    async def sync(self, sender: NodeId, token: int, revision: int) -> None:
        """Another member wants to know when this one has applied a revision."""
        with contextlib.suppress(Unavailable):
            if self._comes_to_revisions():
                await self._wait_applied(revision, SYNC_S)
            payload = delivery_codec.encode_sync(token, revision)
            self._host.send_delivery(
                sender, CATALOG_GROUP, 0, delivery_codec.DeliveryKind.SYNCED, payload
            )

    def _comes_to_revisions(self) -> bool:
        """Tell whether others shall wait for the catalog here.  Not for one that is contradicted
        (keeping.py), nor while this member looks for its cluster: it admits no client before it
        has seen its own start in the catalog, which is a later revision (start.py).
        """
        host = self._host
        return host.has_group(CATALOG_GROUP) and not host.status_of(CATALOG_GROUP).is_contradicted

    def synced(self, sender: NodeId, token: int) -> None:
        """Another member has applied what it was asked for."""
        waiting = self._syncs.get(token)
        if waiting is not None:
            waiting[0].discard(sender)
            if not waiting[0] and not waiting[1].done():
                waiting[1].set_result(None)

    async def _wait_applied(self, revision: int, timeout_s: float) -> None:
        """Wait until this member has applied the catalog up to `revision` (read your writes).

        Not for long where the disk here does not answer: its leader sends it no more than a window.
        """
        if self._view.revision >= revision:
            return
        host, clock = self._host, asyncio.get_running_loop().time
        future = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, future))
        stalled_until_s = clock() + SYNC_S
        try:
            async with asyncio.timeout(timeout_s):
                # A snapshot that brings the revision wakes no waiter: it is looked at again.
                while not future.done() and self._view.revision < revision:
                    await asyncio.wait((future,), timeout=ASK_AGAIN_S)
                    if clock() >= stalled_until_s and host.is_stalled(host.node):
                        raise Unavailable(f"the disk of member '{host.node}' does not answer")
        except TimeoutError as error:
            raise Unavailable("this member lags behind") from error

    def applied(self) -> None:
        """This member has applied more of the catalog."""
        waiters, self._waiters = self._waiters, []
        for revision, future in waiters:
            if revision > self._view.revision:
                self._waiters.append((revision, future))
            elif not future.done():
                future.set_result(None)


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """What was proposed changes nothing."""
