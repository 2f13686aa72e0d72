"""The part of the Admin service about members and leaders of quorum queues' groups (R-QQ-23).

Mixed into admin_service.AdminService, which authenticates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd.cluster.groups import placement
from brokerd.cluster.groups.placement import GroupHealth
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.grpc import rpc_auth
from brokerd.server.members import kept_aside, quorum_calls, replica_changes
from brokerd.server.members.replica_changes import EVERYTHING, MembershipError, Outcome

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import AdminServices

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

#: Where the caller does not say how long to wait.
CHANGE_MS = 60_000
TRANSFER_MS = 10_000
DEADLINE_MS_MAX = 86_400_000
#: Names in one answer.
NAMES_MAX = 10_000


class MembershipAdmin:
    """State: `_services`, set by AdminService."""

    _services: AdminServices

    async def _caller(self, context: Context, *, writes: bool) -> rpc_auth.Caller:
        tags = rpc_auth.WRITERS if writes else rpc_auth.READERS
        return await self._services.callers.authenticate(context, tags)

    async def ChangeQueueMembers(
        self, request: admin_pb2.ChangeQueueMembersRequest, context: Context
    ) -> AsyncIterator[admin_pb2.QueueMembersResult]:
        """Give a member a replica of queues, or take it away; one result for each as it is done."""
        caller = await self._caller(context, writes=True)
        queues = await self._selected(request.queues, context)
        is_growing = request.change == admin_pb2.ChangeQueueMembersRequest.GROW
        log.warning(
            "%s of member '%s' by user '%s'",
            "grow" if is_growing else "shrink",
            request.member,
            caller.user,
        )
        outcomes: asyncio.Queue[Outcome | None] = asyncio.Queue()
        work = asyncio.ensure_future(self._change(request, queues, outcomes))
        work.add_done_callback(lambda _: outcomes.put_nowait(None))
        try:
            while (outcome := await outcomes.get()) is not None:
                yield admin_pb2.QueueMembersResult(
                    vhost=outcome.vhost,
                    name=outcome.name,
                    size=outcome.size,
                    error=outcome.error,
                )
            work.result()
        except MembershipError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, MembershipError, Unavailable):
                await work

    async def _change(
        self,
        request: admin_pb2.ChangeQueueMembersRequest,
        queues: list[Queue],
        outcomes: asyncio.Queue[Outcome | None],
    ) -> None:
        timeout_s = _seconds(request.deadline_ms, CHANGE_MS)
        report = outcomes.put_nowait
        if request.change == admin_pb2.ChangeQueueMembersRequest.GROW:
            await replica_changes.grow_member(
                self._services.members,
                request.member,
                request.strategy or "all",
                queues=queues,
                timeout_s=timeout_s,
                report=report,
            )
        else:
            await replica_changes.shrink_member(
                self._services.members,
                request.member,
                queues=queues,
                timeout_s=timeout_s,
                report=report,
            )

    async def _selected(self, selection: admin_pb2.QueueSelection, context: Context) -> list[Queue]:
        if selection.name:
            return [await self._quorum_queue(selection.vhost, selection.name, context)]
        try:
            return replica_changes.matching_queues(
                self._services.members,
                selection.vhost_pattern or EVERYTHING,
                selection.queue_pattern or EVERYTHING,
            )
        except MembershipError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort does not return") from error

    async def _quorum_queue(self, vhost: str, name: str, context: Context) -> Queue:
        queue = self._services.catalog.view.queue(vhost, name)
        if queue is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")
            raise AssertionError("abort does not return")
        if queue.type != "quorum":
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"queue '{name}' in vhost '{vhost}' is a {queue.type} queue: it has one member, "
                "for good; only quorum queues are replicated",
            )
        return queue

    # ---- what is -----------------------------------------------------------------------------

    async def QuorumStatus(
        self, request: admin_pb2.QuorumStatusRequest, context: Context
    ) -> admin_pb2.QuorumStatusResponse:
        """Every member of a queue's group, as it says of itself."""
        await self._caller(context, writes=False)
        queue = await self._quorum_queue(request.vhost, request.name, context)
        rows = await quorum_calls.replica_rows(self._services.members, queue)
        stuck = await self._services.members.calls.ask_all(
            self._services.groups.alive(), "stuck", {"uids": [queue.uid]}
        )
        reasons = [text for answer in stuck.values() for text in answer["reasons"].values()]
        leader = max(
            (row for row in rows.values() if row["is_leader"]),
            key=lambda row: row["term"],
            default=None,
        )
        nodes = dict.fromkeys([*queue.members, *queue.wanted_members])
        members = []
        for node in nodes:
            reason = next((text for text in reasons if f"'{node}'" in text), "")
            member = _quorum_member(node, rows.get(node), leader, reason)
            domain = member_states.domain_of(self._services.catalog.view, node)
            member.host, member.zone = domain.host, domain.zone
            members.append(member)
        name = next((node for node, row in rows.items() if row is leader), "")
        return admin_pb2.QuorumStatusResponse(
            leader=name, members=members, warning=self._placement_fault(queue)
        )

    def _placement_fault(self, queue: Queue) -> str:
        """Return which replicas would fail together and what helps, "" if no two on a host do and
        the queue outlives each zone.
        """
        services = self._services
        view = services.catalog.view
        domains = member_states.domains(view)
        nodes = [NodeId(node) for node in queue.wanted_members]
        fault = domains.fault(nodes)
        if not fault:
            return ""
        better = domains.better(nodes, services.groups.alive() - member_states.resting(view))
        if better is None:
            return f"{fault}; no member that is up has a better place"
        leaver, comer = better
        return (
            f"{fault}; better: add_member {queue.name} {comer}, "
            f"then delete_member {queue.name} {leaver}"
        )

    async def CheckQuorum(
        self, request: admin_pb2.CheckQuorumRequest, context: Context
    ) -> admin_pb2.CheckQuorumResponse:
        """Queues that would lose their majority with this member, and those that take one in."""
        await self._caller(context, writes=False)
        services = self._services
        member = NodeId(request.member or services.node)
        if member not in services.catalog.view.members():
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"'{member}' is no member of the cluster; its members are "
                f"{', '.join(services.catalog.view.members())}",
            )
        queues = replica_changes.matching_queues(services.members)
        nodes = {node for queue in queues for node in queue.members}
        uids = [queue.uid for queue in queues]
        rows: dict[int, dict[str, dict[str, Any]]] = {}
        for start in range(0, len(uids), quorum_calls.BATCH):
            part = {"uids": uids[start : start + quorum_calls.BATCH]}
            for node, answer in (
                await services.members.calls.ask_all(nodes, "replicas", part)
            ).items():
                for row in answer["rows"]:
                    rows.setdefault(row["uid"], {})[node] = row
        found = admin_pb2.CheckQuorumResponse()
        health = [_health(queue, rows.get(queue.uid, {})) for queue in queues]
        critical = set(placement.critical_groups(health, member))
        for queue, state in zip(queues, health, strict=True):
            if queue.uid in critical and state.voters != (member,):
                found.critical.append(admin_pb2.QueueName(vhost=queue.vhost, name=queue.name))
            syncing = [node for node in queue.wanted_members if node not in state.voters]
            if syncing:
                reason = f"{', '.join(syncing)} has not caught up yet"
                found.syncing.append(
                    admin_pb2.QueueName(vhost=queue.vhost, name=queue.name, reason=reason)
                )
        del found.critical[NAMES_MAX:], found.syncing[NAMES_MAX:]
        return found

    # ---- leaders -----------------------------------------------------------------------------

    async def KeptAside(
        self, request: admin_pb2.KeptAsideRequest, context: Context
    ) -> admin_pb2.KeptAsideResponse:
        """What members keep aside; or republish one of them, or drop it."""
        is_word = request.action not in ("", kept_aside.SHOW)
        caller = await self._caller(context, writes=is_word)
        if not request.action:
            rows, unanswered = await kept_aside.rows_of_all(self._services.members)
            return admin_pb2.KeptAsideResponse(rows=kept_aside.dump(rows), unanswered=unanswered)
        if is_word:
            log.warning("%s of '%s' by user '%s'", request.action, request.id, caller.user)
        try:
            rows = await kept_aside.act(self._services.members, request.id, request.action)
        except kept_aside.Refused as refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        return admin_pb2.KeptAsideResponse(rows=kept_aside.dump(rows))

    async def TransferLeader(
        self, request: admin_pb2.TransferLeaderRequest, context: Context
    ) -> admin_pb2.TransferLeaderResponse:
        """Let a member lead a queue."""
        caller = await self._caller(context, writes=True)
        queue = await self._quorum_queue(request.vhost, request.name, context)
        log.info("leader of '%s' to '%s' by user '%s'", queue.name, request.member, caller.user)
        if request.member not in queue.members:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"'{request.member}' holds no replica of the queue; "
                f"its members are {', '.join(queue.members)}",
            )
        timeout_s = _seconds(request.deadline_ms, TRANSFER_MS)
        fault = await quorum_calls.transfer_leader(
            self._services.members, queue, request.member, timeout_s
        )
        if fault:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, fault)
        return admin_pb2.TransferLeaderResponse()

    async def RebalanceLeaders(
        self, request: admin_pb2.RebalanceLeadersRequest, context: Context
    ) -> admin_pb2.RebalanceLeadersResponse:
        """Spread leaders evenly over the members that are up and not in maintenance."""
        caller = await self._caller(context, writes=True)
        services = self._services
        queues = await self._selected(request.queues, context)
        log.warning("leaders are rebalanced by user '%s'", caller.user)
        moved, left = await quorum_calls.rebalance(
            services.members,
            queues,
            member_states.resting(services.catalog.view),
            _seconds(request.deadline_ms, TRANSFER_MS),
        )
        led, _ = await quorum_calls.leaders(services.members)
        counts = dict.fromkeys(services.catalog.view.members(), 0)
        for node in led.values():
            counts[node] = counts.get(node, 0) + 1
        return admin_pb2.RebalanceLeadersResponse(
            moved=moved,
            left=left,
            counts=[
                admin_pb2.LeaderCount(member=node, leaders=count) for node, count in counts.items()
            ],
        )


def _seconds(deadline_ms: int, default_ms: int) -> float:
    return min(deadline_ms or default_ms, DEADLINE_MS_MAX) / 1000


def _health(queue: Queue, rows: dict[str, dict[str, Any]]) -> GroupHealth:
    """Return a group's voters, and those of them that answer and are whole; without a leader that
    says more, the record's members are the voters.
    """
    leader = max(
        (row for row in rows.values() if row["is_leader"]), key=lambda row: row["term"], default={}
    )
    voters = tuple(NodeId(node) for node in leader.get("voters", queue.members))
    online = {NodeId(node) for node, row in rows.items() if not row["damaged"] and not row["error"]}
    return GroupHealth(queue.uid, voters, frozenset(online & set(voters)))


def _quorum_member(
    node: str, row: dict[str, Any] | None, leader: dict[str, Any] | None, reason: str
) -> admin_pb2.QuorumMember:
    membership = "none"
    if leader is not None and node in leader["voters"]:
        membership = "voter"
    elif leader is not None and node in leader["learners"]:
        membership = "promotable"
    if row is None:
        return admin_pb2.QuorumMember(
            member=node, state="noproc", membership=membership, problem=reason
        )
    state = "leader" if row is leader else "follower" if row["leader"] else "candidate"
    if row["error"]:
        state = "noproc"
    if row["damaged"]:
        reason = (
            "it has no vote until its leader has refilled it"
            if leader is not None
            else "it is damaged and has no vote, and there is no leader to refill it: start the "
            "members that are down; if that does not help, see 'brokerctl wal accept-loss'"
        )
    if row.get("contradicted"):
        reason = "its leader lacks what is committed here, which is kept aside: list_kept_aside"
    return admin_pb2.QuorumMember(
        member=node,
        state=state,
        membership=membership,
        last_index=row["last"],
        commit_index=row["commit"],
        applied_index=row["applied"],
        snapshot_index=row["snapshot"],
        term=row["term"],
        problem=row["error"] or reason,
    )
