"""A small broker in the test's process: the Admin service over a dictionary.

It keeps objects, hashes, owners and preconditions as the contract says (admin.proto), and pushes
changes to watchers. For tests of the operator that need to break things at will: `amqp_delete`
plays a client, `is_down` a broker that does not answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
from brokerd_operator.specs import arguments
from brokerd_operator.specs.model import Identity

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc

USER, PASSWORD = "admin", "secret"
CODE = admin_pb2.OperationResult
HIDDEN = {"user": ("password", "password_hash")}


class FakeBroker(admin_pb2_grpc.AdminServicer):
    """Owns objects, owners, and the server they are reached by."""

    def __init__(self) -> None:
        self.objects: dict[Identity, dict[str, Any]] = {}
        self.owners: dict[Identity, admin_pb2.Owner] = {}
        self.revisions: dict[Identity, int] = {}
        self.revision = 1
        self.cluster_id = "c1"
        #: Queues with so many messages refuse a guarded delete.
        self.messages: dict[str, int] = {}
        self.is_down = False
        #: Something that a broker may say no to.
        self.refuses_transient = True
        #: What its members keep aside.
        self.kept_aside: list[dict[str, Any]] = []
        self.unanswered: list[str] = []
        self.kept_aside_asked = 0
        self.members = [member(name) for name in ("fake-0", "fake-1", "fake-2")]
        self.member_calls = 0
        #: Rows of its federation links.
        self.links: list[dict[str, Any]] = []
        #: Where dead letters are, and how often it was asked.
        self.dead_letters: list[dict[str, Any]] = []
        self.dead_letters_asked = 0
        #: What a telemetry job has handed to it.
        self.findings: list[dict[str, Any]] = []
        #: Objects whose change would lose messages.
        self.buffers: set[Identity] = set()
        #: Members in maintenance.
        self.resting: set[str] = set()
        self.writes = 0
        self.batches: list[int] = []
        self.port = 0
        self._watchers: set[asyncio.Queue[admin_pb2.TopologyEvent]] = set()
        self._history: list[admin_pb2.TopologyEvent] = []
        self._server: grpc.aio.Server | None = None
        self.put(Identity("vhost", "", "/"), {"description": ""})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen on a free port of loopback, the same one after a stop."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        admin_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    # ---- what others do behind the operator's back --------------------------------------------

    def put(
        self, identity: Identity, spec: dict[str, Any], owner: Any = None, cause: str = "amqp:x"
    ) -> None:
        self.objects[identity] = spec
        if owner is not None:
            self.owners[identity] = owner
        self._changed(identity, cause)

    def remove(self, identity: Identity, cause: str = "amqp:x") -> None:
        self.objects.pop(identity, None)
        self.owners.pop(identity, None)
        self._changed(identity, cause)

    def named(self, kind: str) -> list[str]:
        # A copy: other threads than the broker's ask as well.
        return sorted(identity.name for identity in list(self.objects) if identity.kind == kind)

    def _changed(self, identity: Identity, cause: str) -> None:
        self.revision += 1
        self.revisions[identity] = self.revision
        gone = identity not in self.objects
        shown = self.shown(identity) if not gone else _bare(identity)
        event = admin_pb2.TopologyEvent(
            change=admin_pb2.TopologyEvent.DELETED if gone else admin_pb2.TopologyEvent.PUT,
            object=shown,
            revision=self.revision,
            cause=cause,
        )
        self._history.append(event)
        for watcher in self._watchers:
            watcher.put_nowait(event)

    def shown(self, identity: Identity) -> Any:
        spec = self.objects[identity]
        hidden = HIDDEN.get(identity.kind, ())
        listed = {key: value for key, value in spec.items() if key not in hidden}
        return admin_pb2.TopologyObject(
            kind=identity.kind,
            vhost=identity.vhost,
            name=identity.name,
            spec=arguments.canonical_json(listed),
            hash=arguments.digest(spec),
            owner=self.owners.get(identity),
            revision=self.revisions[identity],
        )

    # ---- the service --------------------------------------------------------------------------

    async def _check(self, context: Any) -> None:
        if self.is_down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no majority")
        metadata = dict(context.invocation_metadata())
        token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if metadata.get("authorization") != f"Basic {token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "login refused")

    async def GetInfo(self, request: Any, context: Any) -> Any:
        await self._check(context)
        return admin_pb2.GetInfoResponse(
            cluster_id=self.cluster_id,
            cluster_name="fake",
            node="fake-0",
            version="1",
            revision=self.revision,
        )

    async def Drain(self, request: Any, context: Any) -> Any:
        await self._check(context)
        self.resting.add(request.member)
        return admin_pb2.DrainResponse()

    async def Revive(self, request: Any, context: Any) -> Any:
        await self._check(context)
        self.resting.discard(request.member)
        return admin_pb2.ReviveResponse()

    async def ListTopology(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._check(context)
        shown = [self.shown(identity) for identity in self.objects]
        last = {(it.object.kind, it.object.vhost, it.object.name): it for it in self._history}
        ended = [event for event in last.values() if event.cause in ("expired", "auto-delete")]
        yield admin_pb2.TopologyPage(
            objects=shown, revision=self.revision, ended=ended if request.with_ended else []
        )

    async def WatchTopology(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._check(context)
        watcher: asyncio.Queue[Any] = asyncio.Queue()
        self._watchers.add(watcher)
        try:
            for event in list(self._history):
                if event.revision > request.since_revision:
                    yield event
            while True:
                yield await watcher.get()
        finally:
            self._watchers.discard(watcher)

    async def List(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._check(context)
        are_shovels = {"links": False, "shovels": True}.get(request.kind)
        rows = [row for row in self.links if (row.get("type") == "shovel") is are_shovels]
        if request.kind == "findings":
            rows = self.findings
        if request.kind == "dead_letters":
            self.dead_letters_asked += 1
            rows = self.dead_letters
        yield admin_pb2.ListPage(rows=[json.dumps(row) for row in rows])

    async def MemberStatus(self, request: Any, context: Any) -> Any:
        await self._check(context)
        self.member_calls += 1
        return admin_pb2.MemberStatusResponse(members=self.members)

    async def KeptAside(self, request: Any, context: Any) -> Any:
        await self._check(context)
        self.kept_aside_asked += 1
        rows = [json.dumps(row) for row in self.kept_aside]
        return admin_pb2.KeptAsideResponse(rows=rows, unanswered=self.unanswered)

    async def ApplyTopology(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await self._check(context)
        async for request in requests:
            self.batches.append(len(request.operations))
            results = [self._apply(operation) for operation in request.operations]
            yield admin_pb2.ApplyResponse(results=results)

    def _apply(self, operation: Any) -> Any:
        identity = Identity(operation.kind, operation.vhost, operation.name)
        present = identity in self.objects
        refused = self._precondition(operation, identity)
        if refused:
            return self._result(operation, identity, CODE.PRECONDITION, refused)
        if operation.action != admin_pb2.Operation.UPSERT and not present:
            return self._result(operation, identity, CODE.NOT_FOUND, "does not exist")
        if operation.dry_run:
            is_same = present and operation.spec == arguments.canonical_json(self.objects[identity])
            return self._result(operation, identity, CODE.UNCHANGED if is_same else CODE.OK)
        if identity in self.buffers and not operation.confirmed:
            refused = self._result(operation, identity, CODE.REFUSED, "messages would be lost")
            refused.needs_confirmation = True
            return refused
        self.writes += 1
        if operation.action == admin_pb2.Operation.DELETE:
            return self._delete(operation, identity)
        if operation.action == admin_pb2.Operation.UPSERT:
            spec = json.loads(operation.spec)
            if self.refuses_transient and spec.get("durable") is False:
                return self._result(operation, identity, CODE.REFUSED, "durable must be true")
            self.objects[identity] = spec
        self.owners.pop(identity, None)
        if operation.owner.managed_by:
            self.owners[identity] = operation.owner
        self._changed(identity, "admin")
        return self._result(operation, identity, CODE.OK)

    def _delete(self, operation: Any, identity: Identity) -> Any:
        count = self.messages.get(identity.name, 0)
        if operation.if_empty and count:
            return self._result(operation, identity, CODE.REFUSED, f"{count} messages")
        if identity.kind == "queue":
            for other, spec in list(self.objects.items()):
                if other.kind == "binding" and spec["destination"] == identity.name:
                    self.remove(other, "admin")
        self.remove(identity, "admin")
        return self._result(operation, identity, CODE.OK)

    def _precondition(self, operation: Any, identity: Identity) -> str:
        if not operation.HasField("precondition"):
            return ""
        wanted = operation.precondition
        present = identity in self.objects
        if wanted.absent:
            return "exists already" if present else ""
        if not present:
            return "does not exist"
        if wanted.hash and arguments.digest(self.objects[identity]) != wanted.hash:
            return "was changed meanwhile"
        owner = self.owners.get(identity)
        if wanted.owner_uid and (owner is None or owner.uid != wanted.owner_uid):
            return "belongs to another owner"
        return ""

    def _result(self, operation: Any, identity: Identity, code: Any, message: str = "") -> Any:
        current = self.shown(identity) if identity in self.objects else None
        return admin_pb2.OperationResult(
            id=operation.id, code=code, message=message, current=current, revision=self.revision
        )


def member(name: str, *alarms: str, is_critical: bool = False) -> Any:
    """A member as MemberStatus tells of it."""
    return admin_pb2.Member(name=name, running=True, alarms=alarms, quorum_critical=is_critical)


def _bare(identity: Identity) -> Any:
    return admin_pb2.TopologyObject(kind=identity.kind, vhost=identity.vhost, name=identity.name)
