"""The Admin service: topology in batches, its changes as a stream, members, runtime settings.

A thin shell over the catalog, topology.py and topology_batch.py; for the operator and brokerctl.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd import __version__
from brokerd.core import catalog_commands, effects
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from brokerd.server import (
    admin_objects,
    admin_rows,
    admission,
    alarm_monitor,
    auth,
    rpc_auth,
    topology,
    topology_batch,
)
from brokerd.server.admin_lifecycle import LifecycleAdmin
from brokerd.server.admin_membership import MembershipAdmin
from brokerd.server.admin_runtime import RuntimeAdmin
from brokerd.server.catalog_writer import Unavailable

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

#: Objects per page of a listing, rows per page of live rows.
PAGE = 500
OPERATIONS_MAX = 256
#: Changes that may wait for one watcher; one that falls further behind lists again.
WATCH_BACKLOG = 4096
WATCHERS_MAX = 256
BOOKMARK_S = 30.0
FEATURES = ("amqp-0-9-1", "quorum-queues", "dead-letter-at-least-once", "federation-exchange")
#: Settings that may be changed at run time; "@member" behind the name limits one to a member.
SETTINGS = (alarm_monitor.MEMORY_SETTING, alarm_monitor.DISK_SETTING)


class AdminService(LifecycleAdmin, MembershipAdmin, RuntimeAdmin, admin_pb2_grpc.AdminServicer):
    """Owns nothing; every call authenticates first (rpc_auth.py)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def _reader(self, context: Context) -> rpc_auth.Caller:
        return await rpc_auth.authenticate(self._broker, context, rpc_auth.READERS)

    async def _writer(self, context: Context) -> rpc_auth.Caller:
        return await rpc_auth.authenticate(self._broker, context, rpc_auth.WRITERS)

    # ---- topology ---------------------------------------------------------------------------

    async def GetInfo(
        self, request: admin_pb2.GetInfoRequest, context: Context
    ) -> admin_pb2.GetInfoResponse:
        """Identity and version."""
        await self._reader(context)
        view = self._broker.view
        return admin_pb2.GetInfoResponse(
            cluster_id=view.cluster_id,
            cluster_name=view.cluster_name,
            node=self._broker.node,
            version=__version__,
            features=FEATURES,
            revision=view.revision,
            feature_flags=self._feature_flags(),
        )

    async def ListTopology(
        self, request: admin_pb2.ListTopologyRequest, context: Context
    ) -> AsyncIterator[admin_pb2.TopologyPage]:
        """All objects, each as of the revision that the pages name or as of a later one.

        Whoever follows the topology from that revision misses nothing: it hears of what changed
        meanwhile, again perhaps.
        """
        await self._reader(context)
        view = self._broker.view
        revision = view.revision
        kinds = list(request.kinds) or sorted(admin_objects.KINDS)
        for kind in kinds:
            if kind not in admin_objects.KINDS:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown kind '{kind}'")
        records = [record for kind in kinds for record in view.records(kind, request.vhost or None)]
        for start in range(0, len(records) or 1, PAGE):
            # Page by page, since a hundred thousand at once would hold everyone up for a second.
            present = (
                view.get(record.kind, record.vhost, record.name)
                for record in records[start : start + PAGE]
            )
            objects = [admin_objects.listing(record) for record in present if record is not None]
            yield admin_pb2.TopologyPage(objects=objects, revision=revision)

    async def ApplyTopology(
        self, requests: AsyncIterator[admin_pb2.ApplyRequest], context: Context
    ) -> AsyncIterator[admin_pb2.ApplyResponse]:
        """Apply batches in order; each operation has its own result."""
        await self._writer(context)
        async for request in requests:
            if len(request.operations) > OPERATIONS_MAX:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"more than {OPERATIONS_MAX} operations in one request",
                )
            results = await topology_batch.apply(self._broker, request.operations)
            yield admin_pb2.ApplyResponse(results=results)

    async def WatchTopology(
        self, request: admin_pb2.WatchTopologyRequest, context: Context
    ) -> AsyncIterator[admin_pb2.TopologyEvent]:
        """Changes since a revision, then as they come; COMPACTED: list again."""
        await self._reader(context)
        broker = self._broker
        if len(broker.watchers) >= WATCHERS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        watcher: asyncio.Queue[effects.TopologyChanged] = asyncio.Queue(WATCH_BACKLOG)
        # Registered before the past is read: nothing falls between.
        broker.watchers.add(watcher)
        try:
            past = broker.catalog.changes_since(request.since_revision)
            # A revision that this catalog has not reached: the list was another cluster's.
            if past is None or request.since_revision > broker.view.revision:
                yield _compacted(broker.view.revision)
                return
            seen = request.since_revision
            for change in past:
                seen = max(seen, change.revision)
                yield self._event(change)
            floor = seen
            while True:
                try:
                    change = await asyncio.wait_for(watcher.get(), BOOKMARK_S)
                except TimeoutError:
                    yield admin_pb2.TopologyEvent(
                        change=admin_pb2.TopologyEvent.BOOKMARK, revision=broker.view.revision
                    )
                    continue
                if change.revision > floor:
                    yield self._event(change)
                # A full one may have missed changes; this one was full before the last was taken.
                if watcher.qsize() >= WATCH_BACKLOG - 1:
                    yield _compacted(broker.view.revision)
                    return
        finally:
            broker.watchers.discard(watcher)

    def _event(self, change: effects.TopologyChanged) -> admin_pb2.TopologyEvent:
        record = (
            None
            if change.deleted
            else self._broker.view.get(change.kind, change.vhost, change.name)
        )
        topology_object = (
            admin_objects.listing(record)
            if record is not None
            else admin_pb2.TopologyObject(kind=change.kind, vhost=change.vhost, name=change.name)
        )
        kind = admin_pb2.TopologyEvent.PUT
        if record is None:
            kind = admin_pb2.TopologyEvent.DELETED
        return admin_pb2.TopologyEvent(
            change=kind, object=topology_object, revision=change.revision, cause=change.cause
        )

    # ---- live figures -----------------------------------------------------------------------

    async def List(
        self, request: admin_pb2.ListRequest, context: Context
    ) -> AsyncIterator[admin_pb2.ListPage]:
        """Rows of one kind as this member sees them."""
        await self._reader(context)
        maker = admin_rows.MAKERS.get(request.kind)
        if maker is None:
            known = ", ".join(sorted(admin_rows.MAKERS))
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"unknown kind '{request.kind}'; known: {known}"
            )
            return
        rows = maker(self._broker, request.vhost)
        for start in range(0, len(rows) or 1, PAGE):
            page = rows[start : start + PAGE]
            yield admin_pb2.ListPage(rows=[json.dumps(row, separators=(",", ":")) for row in page])

    # ---- settings -----------------------------------------------------------------------------

    async def SetSettings(
        self, request: admin_pb2.SetSettingsRequest, context: Context
    ) -> admin_pb2.SetSettingsResponse:
        """Change settings at run time: of this member, or of all."""
        await self._writer(context)
        broker = self._broker
        applied = {}
        for name, value in request.settings.items():
            if name not in SETTINGS:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"unknown setting '{name}'; known: {', '.join(SETTINGS)}",
                )
            problem = alarm_monitor.check_setting(name, value) if value else None
            if problem:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
            key = name if request.all_members else f"{name}@{broker.node}"
            await self._written(context, catalog_commands.set_setting(key, value or None))
            applied[name] = value
        if broker.monitor is not None:
            broker.monitor.check()
        return admin_pb2.SetSettingsResponse(settings=applied)

    async def PurgeQueue(
        self, request: admin_pb2.PurgeQueueRequest, context: Context
    ) -> admin_pb2.PurgeQueueResponse:
        """Remove a queue's ready messages."""
        await self._writer(context)
        queue = self._broker.view.queue(request.vhost, request.name)
        if queue is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no queue '{request.name}' in vhost '{request.vhost}'",
            )
            raise AssertionError("abort does not return")
        try:
            return admin_pb2.PurgeQueueResponse(
                messages=await topology.purge_queue(self._broker, queue)
            )
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort does not return") from error

    async def Authenticate(
        self, request: admin_pb2.AuthenticateRequest, context: Context
    ) -> admin_pb2.AuthenticateResponse:
        """Check a user's password."""
        await self._reader(context)
        credentials = auth.credentials(request.user, request.password)
        verdict = await admission.authenticate(
            self._broker, credentials, "127.0.0.1", is_login=False
        )
        if verdict is None:
            return admin_pb2.AuthenticateResponse(ok=False)
        return admin_pb2.AuthenticateResponse(ok=True, tags=verdict[1])


def _compacted(revision: int) -> admin_pb2.TopologyEvent:
    return admin_pb2.TopologyEvent(change=admin_pb2.TopologyEvent.COMPACTED, revision=revision)
