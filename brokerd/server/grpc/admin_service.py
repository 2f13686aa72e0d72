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
from brokerd.core import alarms
from brokerd.core.catalog import catalog_commands, catalog_effects
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from brokerd.server.access import auth
from brokerd.server.access.password_checker import NotChecked
from brokerd.server.catalog import admin_objects, audit, cluster_name, topology_batch
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.grpc import rpc_auth
from brokerd.server.grpc.admin_browse import BrowseAdmin
from brokerd.server.grpc.admin_lifecycle import LifecycleAdmin
from brokerd.server.grpc.admin_membership import MembershipAdmin
from brokerd.server.grpc.admin_runtime import RuntimeAdmin
from brokerd.server.grpc.admin_triage import TriageAdmin
from brokerd.server.listings import client_calls, dead_letter_rows
from brokerd.server.listings import rows as listings
from brokerd.server.members import federation_calls

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import AdminServices

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

#: Objects per page of a listing, rows per page of live rows.
PAGE = 500
OPERATIONS_MAX = 256
#: Changes that may wait for one watcher; one that falls further behind lists again.
WATCH_BACKLOG = 4096
WATCHERS_MAX = 256
#: Kind of List: the federation links of all members.
ALL_LINKS = "all_links"
#: The shovels of all members.
ALL_SHOVELS = "all_shovels"
BOOKMARK_S = 30.0
FEATURES = (
    "amqp-0-9-1",
    "quorum-queues",
    "dead-letter-at-least-once",
    "federation-exchange",
    "password-overlap",
)
#: Causes of removals by an object's own terms (TopologyEvent.cause).
OWN_TERMS = frozenset(("expired", "auto-delete"))
#: Settings that may be changed at run time; "@member" behind the name limits one to a member.
SETTINGS = (alarms.MEMORY_SETTING, alarms.DISK_SETTING, cluster_name.SETTING)


class AdminService(
    LifecycleAdmin,
    MembershipAdmin,
    RuntimeAdmin,
    BrowseAdmin,
    TriageAdmin,
    admin_pb2_grpc.AdminServicer,
):
    """Owns nothing; every call authenticates first (rpc_auth.py)."""

    def __init__(self, services: AdminServices) -> None:
        self._services = services

    async def _reader(self, context: Context) -> rpc_auth.Caller:
        return await self._services.callers.authenticate(context, rpc_auth.READERS)

    async def _writer(self, context: Context) -> rpc_auth.Caller:
        return await self._services.callers.authenticate(context, rpc_auth.WRITERS)

    # ---- topology ---------------------------------------------------------------------------

    async def GetInfo(
        self, request: admin_pb2.GetInfoRequest, context: Context
    ) -> admin_pb2.GetInfoResponse:
        """Identity and version."""
        await self._reader(context)
        view = self._services.catalog.view
        return admin_pb2.GetInfoResponse(
            cluster_id=view.cluster_id,
            cluster_name=cluster_name.of(self._services.objects.config.cluster.name, view),
            node=self._services.node,
            version=__version__,
            features=FEATURES,
            revision=view.revision,
            feature_flags=self._feature_flags(),
        )

    async def ListTopology(
        self, request: admin_pb2.ListTopologyRequest, context: Context
    ) -> AsyncIterator[admin_pb2.TopologyPage]:
        """All objects, each as of the revision that the pages name or as of a later one.

        A client that follows the topology from that revision misses nothing: it receives what
        changed meanwhile, perhaps for the second time.
        """
        await self._reader(context)
        view, keyring = self._services.catalog.view, self._services.catalog.keyring
        revision = view.revision
        kinds = list(request.kinds) or sorted(admin_objects.KINDS)
        for kind in kinds:
            if kind not in admin_objects.KINDS:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown kind '{kind}'")
        records = [record for kind in kinds for record in view.records(kind, request.vhost or None)]
        ended = self._ended(kinds, request.vhost) if request.with_ended else []
        for start in range(0, len(records) or 1, PAGE):
            # Page by page, since a hundred thousand at once would hold everyone up for a second.
            present = (
                view.get(record.kind, record.vhost, record.name)
                for record in records[start : start + PAGE]
            )
            objects = [
                admin_objects.listing(record, keyring) for record in present if record is not None
            ]
            yield admin_pb2.TopologyPage(objects=objects, revision=revision, ended=ended)
            ended = []

    def _ended(self, kinds: list[str], vhost: str) -> list[admin_pb2.TopologyEvent]:
        return [
            self._event(change)
            for change in self._services.catalog.machine.removed_by(OWN_TERMS)
            if change.kind in kinds and vhost in ("", change.vhost)
        ]

    async def ApplyTopology(
        self, requests: AsyncIterator[admin_pb2.ApplyRequest], context: Context
    ) -> AsyncIterator[admin_pb2.ApplyResponse]:
        """Apply batches in order; each operation has its own result."""
        caller = await self._writer(context)
        objects = self._services.objects.by(rpc_auth.author_of(context))
        async for request in requests:
            await self._services.callers.check_tags(context, caller, rpc_auth.WRITERS)
            if len(request.operations) > OPERATIONS_MAX:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"more than {OPERATIONS_MAX} operations in one request",
                )
            results = await topology_batch.apply(objects, request.operations)
            yield admin_pb2.ApplyResponse(results=results)

    async def WatchTopology(
        self, request: admin_pb2.WatchTopologyRequest, context: Context
    ) -> AsyncIterator[admin_pb2.TopologyEvent]:
        """Changes since a revision, then as they come; COMPACTED: list again."""
        caller = await self._reader(context)
        services = self._services
        if len(services.catalog.watchers) >= WATCHERS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        watcher: asyncio.Queue[catalog_effects.TopologyChanged] = asyncio.Queue(WATCH_BACKLOG)
        # Registered before the past is read: nothing falls between.
        services.catalog.watchers.add(watcher)
        try:
            past = services.catalog.machine.changes_since(request.since_revision)
            # A revision that this catalog has not reached: the list was another cluster's.
            if past is None or request.since_revision > services.catalog.view.revision:
                yield _compacted(services.catalog.view.revision)
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
                        change=admin_pb2.TopologyEvent.BOOKMARK,
                        revision=services.catalog.view.revision,
                    )
                    continue
                await self._services.callers.check_tags(context, caller, rpc_auth.READERS)
                if change.revision > floor:
                    yield self._event(change)
                # A full one may have missed changes; this one was full before the last was taken.
                if watcher.qsize() >= WATCH_BACKLOG - 1:
                    yield _compacted(services.catalog.view.revision)
                    return
        finally:
            services.catalog.watchers.discard(watcher)

    def _event(self, change: catalog_effects.TopologyChanged) -> admin_pb2.TopologyEvent:
        record = (
            None
            if change.deleted
            else self._services.catalog.view.get(change.kind, change.vhost, change.name)
        )
        topology_object = (
            admin_objects.listing(record, self._services.catalog.keyring)
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
        """Rows of one kind as this member sees them; those of clients, links and dead letters also
        as all members do.
        """
        await self._reader(context)
        maker = listings.MAKERS.get(request.kind)
        if request.kind in (ALL_LINKS, ALL_SHOVELS):
            rows = await self._all_links(request.kind == ALL_SHOVELS, request.vhost)
        elif request.kind in client_calls.MAKERS:
            services = self._services
            rows = await client_calls.rows_of_all(
                services.members.calls, services.groups.alive(), request.kind, request.vhost
            )
        elif request.kind == dead_letter_rows.KIND:
            calls = self._services.members.calls
            rows = await dead_letter_rows.rows(self._services, calls, request.vhost)
        elif maker is not None:
            made = maker(self._services, request.vhost)
            rows = made if isinstance(made, list) else await made
        else:
            of_all = (ALL_LINKS, ALL_SHOVELS, dead_letter_rows.KIND)
            known = ", ".join(sorted((*listings.MAKERS, *client_calls.MAKERS, *of_all)))
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"unknown kind '{request.kind}'; known: {known}"
            )
            return
        for start in range(0, len(rows) or 1, PAGE):
            page = rows[start : start + PAGE]
            yield admin_pb2.ListPage(rows=[json.dumps(row, separators=(",", ":")) for row in page])

    async def _all_links(self, are_shovels: bool, vhost: str) -> list[dict[str, Any]]:
        services = self._services
        rows = await federation_calls.all_links(services.members.calls, services.groups.alive())
        return [
            row
            for row in rows
            # A member that did not answer may run either.
            if not row["id"]
            or (vhost in ("", row["vhost"]) and (row["type"] == "shovel") == are_shovels)
        ]

    async def RestartLink(
        self, request: admin_pb2.RestartLinkRequest, context: Context
    ) -> admin_pb2.RestartLinkResponse:
        """Have a federation link connect anew, whichever member runs it."""
        caller = await self._writer(context)
        services = self._services
        alive = services.groups.alive()
        member = await federation_calls.restart(services.members.calls, alive, request.id)
        log.info("federation link %s is restarted by '%s'", request.id, caller.user)
        return admin_pb2.RestartLinkResponse(member=member)

    # ---- settings -----------------------------------------------------------------------------

    async def SetSettings(
        self, request: admin_pb2.SetSettingsRequest, context: Context
    ) -> admin_pb2.SetSettingsResponse:
        """Change settings at run time: of this member, or of all."""
        await self._writer(context)
        services = self._services
        applied = {}
        for name, value in request.settings.items():
            if name not in SETTINGS:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"unknown setting '{name}'; known: {', '.join(SETTINGS)}",
                )
            is_name = name == cluster_name.SETTING
            check = cluster_name.problem(value) if is_name else alarms.check_setting(name, value)
            problem = check if value else None
            if problem:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
            key = name if request.all_members or is_name else f"{name}@{services.node}"
            await self._written(context, catalog_commands.set_setting(key, value or None))
            applied[name] = value
        if services.runtime.monitor is not None:
            services.runtime.monitor.check()
        return admin_pb2.SetSettingsResponse(settings=applied)

    async def PurgeQueue(
        self, request: admin_pb2.PurgeQueueRequest, context: Context
    ) -> admin_pb2.PurgeQueueResponse:
        """Remove a queue's ready messages, or the dead letters that wait in it."""
        await self._writer(context)
        queue = self._services.catalog.view.queue(request.vhost, request.name)
        if queue is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no queue '{request.name}' in vhost '{request.vhost}'",
            )
            raise AssertionError("abort does not return")
        try:
            queues = self._services.objects.queues
            purge = queues.discard_dead_letters if request.dead_letters else queues.purge
            messages = await purge(queue.uid)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort does not return") from error
        self._note(context, audit.purge(queue, messages))
        return admin_pb2.PurgeQueueResponse(messages=messages)

    async def Authenticate(
        self, request: admin_pb2.AuthenticateRequest, context: Context
    ) -> admin_pb2.AuthenticateResponse:
        """Check a user's password."""
        await self._reader(context)
        credentials = auth.credentials(request.user, request.password)
        try:
            verdict = await self._services.authenticator.enquire(credentials)
        except NotChecked as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort does not return") from error
        if verdict is None:
            return admin_pb2.AuthenticateResponse(ok=False)
        return admin_pb2.AuthenticateResponse(ok=True, tags=verdict.tags)


def _compacted(revision: int) -> admin_pb2.TopologyEvent:
    return admin_pb2.TopologyEvent(change=admin_pb2.TopologyEvent.COMPACTED, revision=revision)
