"""The part of the Admin service about members: who is there, who may stop, who comes and goes.

Mixed into admin_service.AdminService, which authenticates.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd.cluster.groups import membership_steps, placement
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.access.tls_listener import ListenError
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.catalog.member_states import LEAVING, MAINTENANCE
from brokerd.server.grpc import rpc_auth
from brokerd.server.listings import rows as listings
from brokerd.server.members import joining, replica_changes

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import AdminServices

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

REASONS_MAX = 16
DRAIN_MS = 10_000
#: How long a member may take to leave, where the caller does not say.
LEAVE_MS = 60_000
DEADLINE_MS_MAX = 3_600_000
POLL_S = 0.1
_NOT_THERE = "member '{}' is not in the cluster"


class LifecycleAdmin:
    """State: `_services`, set by AdminService."""

    _services: AdminServices

    async def _operator(self, context: Context, *, writes: bool) -> rpc_auth.Caller:
        tags = rpc_auth.WRITERS if writes else rpc_auth.READERS
        return await self._services.callers.authenticate(context, tags)

    async def MemberStatus(
        self, request: admin_pb2.MemberStatusRequest, context: Context
    ) -> admin_pb2.MemberStatusResponse:
        """The members of the cluster."""
        await self._operator(context, writes=False)
        leader = self._services.groups.leader_of(CATALOG_GROUP)
        critical = placement.critical_members(listings.group_health(self._services))
        return admin_pb2.MemberStatusResponse(
            members=[
                admin_pb2.Member(**row, quorum_critical=row["name"] in critical)
                for row in await listings.members(self._services, "")
            ],
            catalog_leader=leader or "",
        )

    async def SafeToStop(
        self, request: admin_pb2.SafeToStopRequest, context: Context
    ) -> admin_pb2.SafeToStopResponse:
        """May this member be stopped without any group led here losing its majority?

        Only leaders know how far the others are: ask every member for the whole answer.
        """
        await self._operator(context, writes=False)
        services = self._services
        groups = listings.group_health(services)
        member = NodeId(request.member)
        if placement.safe_to_stop(groups, member):
            return admin_pb2.SafeToStopResponse(safe=True)
        critical = placement.critical_groups(
            (group for group in groups if group.voters != (member,)), member
        )
        reasons = [
            f"{listings.group_name(services, uid)} would lose its majority"
            for uid in critical[:REASONS_MAX]
        ]
        return admin_pb2.SafeToStopResponse(safe=False, reasons=reasons)

    # ---- maintenance ------------------------------------------------------------------------

    async def Drain(
        self, request: admin_pb2.DrainRequest, context: Context
    ) -> admin_pb2.DrainResponse:
        """Put the called member into maintenance: others lead, AMQP clients are sent away."""
        caller = await self._operator(context, writes=True)
        services = self._services
        await self._must_be_here(request.member, "Drain", context)
        log.warning("drain by user '%s'", caller.user)
        await self._set_state(context, services.node, MAINTENANCE)
        avoid = member_states.resting(services.catalog.view)
        before = len(services.runtime.transferable(avoid))
        left = await services.runtime.hand_over(_deadline_s(request.deadline_ms, DRAIN_MS), avoid)
        closed = 0
        if services.runtime.endpoints is not None:
            closed = await services.runtime.endpoints.pause("in maintenance; revive ends it")
        return admin_pb2.DrainResponse(
            leaders_moved=max(0, before - left), leaders_left=left, connections_closed=closed
        )

    async def Revive(
        self, request: admin_pb2.ReviveRequest, context: Context
    ) -> admin_pb2.ReviveResponse:
        """End the called member's maintenance."""
        caller = await self._operator(context, writes=True)
        services = self._services
        await self._must_be_here(request.member, "Revive", context)
        log.warning("revive by user '%s'", caller.user)
        if member_states.is_leaving(services.catalog.view, services.node):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"member '{services.node}' leaves the cluster",
            )
        await self._set_state(context, services.node, None)
        if services.runtime.endpoints is not None:
            try:
                await services.runtime.endpoints.resume()
            except ListenError as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return admin_pb2.ReviveResponse()

    async def _must_be_here(self, member: str, call: str, context: Context) -> None:
        if member and member != self._services.node:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this is member '{self._services.node}': call {call} on '{member}' itself",
            )

    async def _set_state(self, context: Context, node: str, state: str | None) -> None:
        name = catalog_commands.member_state(node)
        await self._member_written(context, catalog_commands.set_setting(name, state))

    async def _member_written(self, context: Context, operation: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._services.objects.by(rpc_auth.author_of(context)).write(operation)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort does not return") from error

    # ---- coming and going -------------------------------------------------------------------

    async def AddMember(
        self, request: admin_pb2.MemberRequest, context: Context
    ) -> admin_pb2.MemberResponse:
        """Make a node a member; it joins the catalog when it is up, and can hold queues."""
        caller = await self._operator(context, writes=True)
        fault = joining.fault_of_member(self._services.members, request.name, request.peer_address)
        if fault and request.name not in self._services.catalog.view.members():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        if member_states.is_leaving(self._services.catalog.view, request.name):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"member '{request.name}' is leaving; add it when it has left",
            )
        log.warning("member '%s' added by user '%s'", request.name, caller.user)
        operation = catalog_commands.put_member(request.name, request.peer_address)
        reply = await self._member_written(context, operation)
        if reply["code"] not in (catalog_commands.OK, catalog_commands.UNCHANGED):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reply["text"])
        return admin_pb2.MemberResponse(members=list(self._services.catalog.view.members()))

    async def RemoveMember(
        self, request: admin_pb2.MemberRequest, context: Context
    ) -> admin_pb2.MemberResponse:
        """Take a node out of every queue's group, the catalog's, and the list of members.

        May be repeated after any failure; it goes on where it stopped.
        """
        caller = await self._operator(context, writes=True)
        services, name = self._services, request.name
        if name not in services.catalog.view.members():
            await context.abort(grpc.StatusCode.NOT_FOUND, _NOT_THERE.format(name))
        reasons = _faults_of_leaving(services, NodeId(name), force=request.force)
        if reasons:
            more = f", and {len(reasons) - REASONS_MAX} more" if len(reasons) > REASONS_MAX else ""
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"member '{name}' cannot leave: {'; '.join(reasons[:REASONS_MAX])}{more}",
            )
        log.warning("member '%s' is removed by user '%s'", name, caller.user)
        await self._set_state(context, name, LEAVING)
        try:
            async with asyncio.timeout(_deadline_s(request.deadline_ms, LEAVE_MS)):
                await self._leave(context, name)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"member '{name}' is still leaving; the cluster goes on with it, and "
                "forget_cluster_node can be repeated to wait for it",
            )
        return admin_pb2.MemberResponse(members=list(services.catalog.view.members()))

    async def _leave(self, context: Context, name: str) -> None:
        services = self._services
        for queue in _local_queues(services, name):
            await self._member_written(
                context,
                catalog_commands.delete(
                    "queue", queue.vhost, queue.name, uid=queue.uid, cause="node-removed"
                ),
            )
        try:
            outcomes = await replica_changes.shrink_member(services.members, name)
        except (replica_changes.MembershipError, Unavailable) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError("abort does not return") from error
        failed = [f"queue '{each.name}': {each.error}" for each in outcomes if each.error]
        if failed:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"member '{name}' is still in {len(failed)} queues: "
                + "; ".join(failed[:REASONS_MAX]),
            )
        # catalog_members.py, at the catalog's leader, does the rest.
        while name in services.catalog.view.members():
            services.catalog_members.wake()
            await asyncio.sleep(POLL_S)


def _deadline_s(deadline_ms: int, default_ms: int) -> float:
    return min(deadline_ms or default_ms, DEADLINE_MS_MAX) / 1000


def _local_queues(services: AdminServices, name: str) -> list[Queue]:
    """Return the queues that are on this member only and end with it."""
    return [queue for queue in services.catalog.view.queues() if queue.members == [name]]


def _faults_of_leaving(services: AdminServices, node: NodeId, *, force: bool) -> list[str]:
    """Return why a member must not leave now."""
    alive = frozenset(services.groups.alive())
    rest = [NodeId(name) for name in services.catalog.view.members() if name != node]
    if not rest:
        return ["it is the only member"]
    members = [node, *rest]
    up = [member for member in members if member in alive]
    if 2 * len(up) <= len(members):
        # Without a majority nothing can be changed, and a smaller one cannot be agreed upon.
        return [f"the cluster has no majority now: {len(up)} of {len(members)} members are up"]
    found = []
    fault = membership_steps.fault_of_removal(rest, alive)
    if fault is not None:
        found.append(f"the catalog: {fault}")
    for queue in services.catalog.view.queues():
        if node not in queue.members:
            continue
        others = [NodeId(name) for name in queue.members if name != node]
        where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
        if not others:
            if queue.durable and not force:
                found.append(f"{where} is only there (--force deletes it)")
            continue
        fault = membership_steps.fault_of_removal(others, alive)
        if fault is not None:
            found.append(f"{where}: {fault}")
    return found
