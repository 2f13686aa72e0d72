"""The Admin service: topology in batches, its changes as a stream, members, runtime settings.

A thin shell over the catalog and topology.py; used by the operator and by brokerctl.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd import __version__
from brokerd.core import catalog_commands, catalog_specs, effects, names
from brokerd.core.catalog_objects import Queue
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from brokerd.server import (
    admin_objects,
    admin_rows,
    admission,
    alarm_monitor,
    auth,
    rpc_auth,
    topology,
    tracing,
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
        """All objects as of one revision."""
        await self._reader(context)
        view = self._broker.view
        revision = view.revision
        kinds = list(request.kinds) or sorted(admin_objects.KINDS)
        for kind in kinds:
            if kind not in admin_objects.KINDS:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown kind '{kind}'")
        # Taken at once, so that pages are of one revision.
        objects = [
            admin_objects.listing(record)
            for kind in kinds
            for record in view.records(kind, request.vhost or None)
        ]
        for start in range(0, len(objects) or 1, PAGE):
            yield admin_pb2.TopologyPage(objects=objects[start : start + PAGE], revision=revision)

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
            results = [await self._apply(operation) for operation in request.operations]
            yield admin_pb2.ApplyResponse(results=results)

    async def _apply(self, operation: admin_pb2.Operation) -> admin_pb2.OperationResult:
        refused = admin_pb2.OperationResult.REFUSED
        if operation.kind not in admin_objects.KINDS:
            return admin_objects.failed(operation, refused, f"unknown kind '{operation.kind}'")
        try:
            if operation.action == admin_pb2.Operation.DELETE:
                return await self._delete(operation)
            if operation.action == admin_pb2.Operation.SET_OWNER:
                return await self._set_owner(operation)
            return await self._upsert(operation)
        except admin_objects.BadOperation as error:
            return admin_objects.failed(operation, refused, str(error))
        except Unavailable as error:
            return admin_objects.failed(
                operation, admin_pb2.OperationResult.UNAVAILABLE, str(error)
            )

    async def _upsert(self, operation: admin_pb2.Operation) -> admin_pb2.OperationResult:
        spec = admin_objects.spec_of(operation)
        owner = admin_objects.owner_of(operation.owner)
        precondition = admin_objects.precondition_of(operation)
        broker = self._broker
        if operation.kind == "user":
            spec = await self._hashed(operation.name, spec)
        if operation.kind == "queue" and broker.view.queue(operation.vhost, operation.name) is None:
            spec = self._new_queue(operation, spec)
            reply = await topology.create_queue(
                broker,
                operation.vhost,
                operation.name,
                spec,
                cause="admin",
                owner=owner,
                precondition=precondition,
                dry_run=operation.dry_run,
            )
        else:
            reply = await broker.write(
                catalog_commands.put(
                    operation.kind,
                    operation.vhost,
                    operation.name,
                    spec,
                    cause="admin",
                    owner=owner,
                    precondition=precondition,
                    dry_run=operation.dry_run,
                )
            )
        return admin_objects.result(operation, reply, broker.view.revision)

    def _new_queue(self, operation: admin_pb2.Operation, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a queue's whole spec: its members are chosen by what stands in it."""
        if self._broker.view.spec("vhost", "", operation.vhost) is None:
            raise admin_objects.BadOperation(f"vhost '{operation.vhost}' does not exist")
        if names.is_too_long(operation.name):
            raise admin_objects.BadOperation(f"name: longer than {names.NAME_BYTES_MAX} bytes")
        try:
            return catalog_specs.normalise(
                "queue", operation.vhost, operation.name, {"type": "classic", **spec}
            )
        except catalog_specs.SpecError as error:
            raise admin_objects.BadOperation(str(error)) from error

    async def _hashed(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Replace a password by its hash; the same password keeps the stored hash (no change)."""
        password = spec.pop("password", None)
        present = self._broker.view.user(name)
        if isinstance(password, str):
            stored = present.password_hash if present is not None else None
            if stored and await self._broker.checker.check(stored, password):
                spec["password_hash"] = stored
            else:
                spec["password_hash"] = await self._broker.checker.hash(password)
        elif "password_hash" not in spec and present is not None:
            spec["password_hash"] = present.password_hash
        return spec

    async def _delete(self, operation: admin_pb2.Operation) -> admin_pb2.OperationResult:
        broker = self._broker
        precondition = admin_objects.precondition_of(operation)
        record = broker.view.get(operation.kind, operation.vhost, operation.name)
        command = catalog_commands.delete(
            operation.kind,
            operation.vhost,
            operation.name,
            cause="admin",
            if_unused=operation.if_unused and operation.kind == "exchange",
            precondition=precondition,
            dry_run=operation.dry_run,
        )
        if not isinstance(record, Queue) or operation.dry_run:
            reply = await broker.write(command)
            if operation.kind == "vhost" and operation.name in broker.tracer.vhosts:
                # A vhost of this name that is made later is not traced.
                name = f"{tracing.SETTING}{operation.name}"
                await broker.write(catalog_commands.set_setting(name, None))
            return admin_objects.result(operation, reply, broker.view.revision)
        if precondition is not None:
            # The queue's own log decides about messages, the catalog about the record: the record
            # is checked first, so that a foreign queue is not emptied.
            reply = await broker.write({**command, "dry_run": True})
            if reply["code"] != catalog_commands.OK:
                return admin_objects.result(operation, reply, broker.view.revision)
        outcome = await topology.delete_queue(
            broker,
            record,
            if_empty=operation.if_empty,
            if_unused=operation.if_unused,
            cause="admin",
        )
        answer = admin_objects.failed(
            operation,
            admin_pb2.OperationResult.OK if outcome.done else admin_pb2.OperationResult.REFUSED,
            ""
            if outcome.done
            else f"queue '{record.name}' has {outcome.messages} messages and "
            f"{outcome.consumers} consumers",
            None if outcome.done else record,
        )
        answer.messages, answer.consumers = outcome.messages, outcome.consumers
        answer.revision = broker.view.revision
        return answer

    async def _set_owner(self, operation: admin_pb2.Operation) -> admin_pb2.OperationResult:
        reply = await self._broker.write(
            catalog_commands.set_owner(
                operation.kind,
                operation.vhost,
                operation.name,
                admin_objects.owner_of(operation.owner),
                precondition=admin_objects.precondition_of(operation),
                dry_run=operation.dry_run,
            )
        )
        return admin_objects.result(operation, reply, self._broker.view.revision)

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
