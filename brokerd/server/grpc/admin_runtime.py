"""The half of the Admin service that scripts reach by brokerctl in place of rabbitmqctl: closing
connections, stopping and starting the endpoints, alarms by hand, tracing, variables, definitions.

Mixed into admin_service.AdminService, which authenticates.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import grpc

from brokerd.core.catalog import catalog_commands, features
from brokerd.rpc.v1 import admin_pb2
from brokerd.server import application_env
from brokerd.server.access.tls_listener import ListenError
from brokerd.server.catalog import admin_objects, audit
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.grpc import rpc_auth
from brokerd.server.listings import client_calls

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import AdminServices

log = logging.getLogger(__name__)

T = TypeVar("T")
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

#: Objects per page of an export.
PAGE = 500
RESOURCES = ("memory", "disk")
VALUE_BYTES_MAX = 64 * 1024
#: Between two connections that are closed; more would outlast any patience.
DELAY_MS_MAX = 60_000
DEFAULT_REASON = "closed by an administrator"


async def _started(part: T | None, context: Context) -> T:
    """Return a part of the member that is there once it has started."""
    if part is None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "this member is still starting")
        raise AssertionError("abort does not return")
    return part


def _is_open(row: dict[str, Any]) -> bool:
    return bool(row["state"] != "closing")


class RuntimeAdmin:
    """State: `_services`, set by AdminService."""

    _services: AdminServices

    async def _administrator(self, context: Context) -> rpc_auth.Caller:
        return await self._services.callers.authenticate(context, rpc_auth.WRITERS)

    async def _written(self, context: Context, operation: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._services.objects.by(rpc_auth.author_of(context)).write(operation)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort does not return") from error

    def _note(self, context: Context, fields: dict[str, Any]) -> None:
        self._services.objects.by(rpc_auth.author_of(context)).note(fields)

    # ---- feature flags ----------------------------------------------------------------------

    def _feature_flags(self) -> list[admin_pb2.FeatureFlag]:
        """The flags of this version, and those that a newer one has enabled."""
        view = self._services.catalog.view
        known = list(features.FEATURES)
        newer = sorted(view.enabled_features - set(features.names()))
        known += [features.Feature(name, "", "of a newer version") for name in newer]
        members = view.members() or {self._services.node: ""}
        return [
            admin_pb2.FeatureFlag(
                name=feature.name,
                since=feature.since,
                description=feature.description,
                enabled=feature.name in view.enabled_features,
                lacking=features.lacking(feature.name, members, view.understood_features),
            )
            for feature in known
        ]

    async def EnableFeatures(
        self, request: admin_pb2.EnableFeaturesRequest, context: Context
    ) -> admin_pb2.EnableFeaturesResponse:
        """Enable feature flags for good; refused while a member does not understand one."""
        await self._administrator(context)
        wanted = list(request.names) or list(features.names())
        reply = await self._written(context, catalog_commands.enable_features(wanted))
        if reply["code"] == catalog_commands.REFUSED:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reply["text"])
        return admin_pb2.EnableFeaturesResponse(enabled=wanted)

    # ---- connections ------------------------------------------------------------------------

    async def CloseConnection(
        self, request: admin_pb2.CloseConnectionRequest, context: Context
    ) -> admin_pb2.CloseConnectionResponse:
        """Close one AMQP connection of any member, named as listings name it, or end a call."""
        await self._administrator(context)
        services = self._services
        asked = services.members.calls, [request.id], request.reason or DEFAULT_REASON
        closed, silent = await client_calls.close({services.node}, *asked)
        if not closed:
            closed, silent = await client_calls.close(services.groups.alive(), *asked)
        for client in closed:
            self._note(context, audit.closing(client, 1))
        if silent and not closed:
            text = f"no answer from {', '.join(silent)}: it may have this connection"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        return admin_pb2.CloseConnectionResponse(found=bool(closed))

    async def CloseConnections(
        self, request: admin_pb2.CloseConnectionsRequest, context: Context
    ) -> admin_pb2.CloseConnectionsResponse:
        """Close the AMQP connections of this member, or of all, and end their calls, of one vhost
        or all.
        """
        await self._administrator(context)
        services, reason = self._services, request.reason or DEFAULT_REASON
        calls = services.members.calls
        members = services.groups.alive() if request.all_members else {services.node}
        kind = client_calls.ALL_CONNECTIONS
        rows = await client_calls.rows_of_all(calls, members, kind, request.vhost)
        silent = {row["node"] for row in rows if row.get("unanswered")}
        pids = [row["pid"] for row in rows if row["node"] not in silent and _is_open(row)]
        if request.limit:
            pids = pids[: request.limit]
        # With a pause one by one, else all at once.
        parts = [[pid] for pid in pids] if request.delay_ms else [pids]
        closed = 0
        for number, part in enumerate(parts):
            if number:
                await asyncio.sleep(min(request.delay_ms, DELAY_MS_MAX) / 1000)
            found, unanswered = await client_calls.close(members - silent, calls, part, reason)
            closed += len(found)
            silent.update(unanswered)
        if closed:
            self._note(context, audit.closing({"vhost": request.vhost}, closed))
        return admin_pb2.CloseConnectionsResponse(closed=closed, unanswered=sorted(silent))

    # ---- the member's endpoints -------------------------------------------------------------

    async def StopApp(
        self, request: admin_pb2.StopAppRequest, context: Context
    ) -> admin_pb2.StopAppResponse:
        """Close the listeners and all AMQP connections; this service and the groups go on."""
        caller = await self._administrator(context)
        endpoints = await _started(self._services.runtime.endpoints, context)
        log.warning("stop_app by user '%s'", caller.user)
        return admin_pb2.StopAppResponse(closed=await endpoints.pause())

    async def StartApp(
        self, request: admin_pb2.StartAppRequest, context: Context
    ) -> admin_pb2.StartAppResponse:
        """Open the listeners again."""
        caller = await self._administrator(context)
        endpoints = await _started(self._services.runtime.endpoints, context)
        log.warning("start_app by user '%s'", caller.user)
        try:
            await endpoints.resume()
        except ListenError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return admin_pb2.StartAppResponse()

    async def SetAlarm(
        self, request: admin_pb2.SetAlarmRequest, context: Context
    ) -> admin_pb2.SetAlarmResponse:
        """Raise or clear an alarm of this member by hand (R-ALM-1)."""
        caller = await self._administrator(context)
        if request.resource not in RESOURCES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"unknown resource '{request.resource}'; there are {', '.join(RESOURCES)}",
            )
        monitor = await _started(self._services.runtime.monitor, context)
        log.warning(
            "%s alarm %s by user '%s'",
            request.resource,
            "set" if request.on else "cleared",
            caller.user,
        )
        monitor.force(request.resource, request.on)
        return admin_pb2.SetAlarmResponse()

    async def SetVariable(
        self, request: admin_pb2.SetVariableRequest, context: Context
    ) -> admin_pb2.SetVariableResponse:
        """Change a variable of this member, until it ends."""
        await self._administrator(context)
        if len(request.value) > VALUE_BYTES_MAX:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the value is too long")
        try:
            self._services.variables.set(request.name, json.loads(request.value))
        except (application_env.BadVariable, ValueError, RecursionError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return admin_pb2.SetVariableResponse()

    # ---- the cluster ------------------------------------------------------------------------

    async def SetTracing(
        self, request: admin_pb2.SetTracingRequest, context: Context
    ) -> admin_pb2.SetTracingResponse:
        """Switch the firehose of a vhost, on all members (tracing.py)."""
        await self._administrator(context)
        name = catalog_commands.tracing(request.vhost)
        if request.on and self._services.catalog.view.spec("vhost", "", request.vhost) is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"Virtual host {request.vhost} does not exist"
            )
        await self._written(context, catalog_commands.set_setting(name, request.on or None))
        return admin_pb2.SetTracingResponse()

    async def ExportDefinitions(
        self, request: admin_pb2.ExportDefinitionsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.TopologyPage]:
        """All objects of one revision, with the hashes of passwords, and with the passwords of
        upstreams if they are asked for (SEC-20: for administrators only).
        """
        caller = await self._administrator(context)
        which = " with passwords" if request.with_passwords else ""
        log.warning("definitions%s exported by user '%s'", which, caller.user)
        catalog = self._services.catalog
        view, keyring = catalog.view, catalog.keyring
        revision, with_types = view.revision, self._services.profile.management_as_4_3
        # Specs are taken at once, since an export is of one revision, and written page by page.
        found = [
            (
                kind,
                record.vhost,
                record.name,
                admin_objects.exported(
                    record, keyring, with_passwords=request.with_passwords, with_types=with_types
                ),
            )
            for kind in sorted(admin_objects.KINDS)
            for record in view.records(kind, request.vhost or None)
        ]
        for start in range(0, len(found) or 1, PAGE):
            objects = [
                admin_pb2.TopologyObject(
                    kind=kind,
                    vhost=vhost,
                    name=name,
                    spec=json.dumps(spec, sort_keys=True, separators=(",", ":")),
                )
                for kind, vhost, name, spec in found[start : start + PAGE]
            ]
            yield admin_pb2.TopologyPage(objects=objects, revision=revision)
