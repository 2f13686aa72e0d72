"""What people and leaving members ask for: a member more or less in queues' groups (R-QQ-23).

A wish is written into the catalog and brought about by each group's leader (group_membership.py);
here it is checked beforehand, so that a refusal can say what to do, and watched until it is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from brokerd.cluster.groups import membership_steps
from brokerd.core.catalog import catalog_commands, patterns
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.members import ports

#: How often it is looked how far the groups are.
POLL_S = 0.2
#: Queues that one question or one command of the catalog names.
BATCH = 200
STRATEGIES = ("all", "even")
EVERYTHING = ".*"


class MembershipError(Exception):
    """Nothing was changed; the text says why and what to do."""


@dataclass(slots=True)
class Outcome:
    """How it went with one queue; `error` is "" where it went well."""

    vhost: str
    name: str
    #: Members of the group afterwards.
    size: int
    error: str = ""


Report: TypeAlias = Callable[[Outcome], None]


def matching_queues(
    catalog: ports.Catalog, vhost_pattern: str = EVERYTHING, queue_pattern: str = EVERYTHING
) -> list[Queue]:
    """Return the quorum queues whose vhost and name match; MembershipError for a bad pattern."""
    for pattern in (vhost_pattern, queue_pattern):
        fault = patterns.error(pattern)
        if fault is not None:
            raise MembershipError(f"'{pattern}' is not a regular expression: {fault}")
    found = [
        queue
        for queue in catalog.view.queues()
        if queue.type == "quorum"
        and patterns.matches(vhost_pattern, queue.vhost)
        and patterns.matches(queue_pattern, queue.name)
    ]
    return sorted(found, key=lambda queue: (queue.vhost, queue.name))


async def grow_member(
    cluster: ports.Cluster,
    node: str,
    strategy: str = "all",
    *,
    queues: list[Queue] | None = None,
    timeout_s: float | None = None,
    report: Report | None = None,
) -> list[Outcome]:
    """Give `node` a replica of each quorum queue (of `queues`) that it has none of, and wait until
    it votes.  strategy "even": only of those with an even number of members.

    MembershipError: the node cannot take any.  Unavailable: the catalog has no majority.
    """
    if strategy not in STRATEGIES:
        raise MembershipError(f"unknown strategy '{strategy}'; there are all and even")
    _require_running(cluster, node)
    chosen = [
        queue
        for queue in (matching_queues(cluster) if queues is None else queues)
        if node not in queue.wanted_members
        and (strategy == "all" or len(queue.wanted_members) % 2 == 0)
    ]
    return await _ReplicaChanges(cluster, node, True, report).run(chosen, timeout_s)


async def shrink_member(
    cluster: ports.Cluster,
    node: str,
    *,
    queues: list[Queue] | None = None,
    timeout_s: float | None = None,
    report: Report | None = None,
) -> list[Outcome]:
    """Take `node` out of each quorum queue's group (of `queues`), and wait until it is; it may be
    down.  Queues that cannot do without it are among the outcomes, with the reason.

    MembershipError: not in this cluster.  Unavailable: the catalog has no majority.
    """
    chosen = [
        queue
        for queue in (matching_queues(cluster) if queues is None else queues)
        if node in queue.members or node in queue.wanted_members
    ]
    return await _ReplicaChanges(cluster, node, False, report).run(chosen, timeout_s)


async def renew_member(
    catalog: ports.Catalog, host: ports.Replicas, node: str, queue: Queue
) -> None:
    """Have `node` leave the queue's group and come back with a new log.

    Both are one wish in the catalog, so that the group's leader sees to them even if `node` ends in
    between.  It need not have come true when this returns; asking again is harmless.

    MembershipError: the group cannot do without it now.  Unavailable: the catalog has no majority.
    """
    fault = _fault_of_removal(host, NodeId(node), queue)
    if fault is None:
        operation = catalog_commands.want_queue_members(
            queue.vhost, queue.name, queue.uid, remove=[node], is_automatic=True, comes_back=True
        )
        reply = await catalog.write(operation)
        if reply["code"] not in (catalog_commands.OK, catalog_commands.UNCHANGED):
            fault = str(reply["text"])
    if fault is not None:
        raise MembershipError(fault)


def _fault_of_removal(host: ports.Replicas, node: NodeId, queue: Queue) -> str | None:
    members = [NodeId(name) for name in queue.members]
    if node not in members:
        return None
    rest = [name for name in members if name != node]
    fault = membership_steps.fault_of_removal(rest, frozenset(host.alive()))
    if fault is not None and not rest:
        return f"{fault}: delete the queue, or grow it to another member first"
    return fault


def _require_running(cluster: ports.Cluster, node: str) -> None:
    members = cluster.view.members()
    if node not in members:
        raise MembershipError(
            f"'{node}' is no member of the cluster; its members are {', '.join(members)}"
        )
    if NodeId(node) not in cluster.host.alive():
        raise MembershipError(f"member '{node}' is down: start it first")


class _ReplicaChanges:
    """One member, many queues: writes the wishes, watches them come true."""

    def __init__(
        self, cluster: ports.Cluster, node: str, is_growing: bool, report: Report | None
    ) -> None:
        self._cluster = cluster
        self._node = NodeId(node)
        self._is_growing = is_growing
        self._report = report
        self._outcomes: list[Outcome] = []

    async def run(self, queues: list[Queue], timeout_s: float | None) -> list[Outcome]:
        pending: dict[int, Queue] = {}
        for start in range(0, len(queues), BATCH):
            pending |= await self._write(queues[start : start + BATCH])
        try:
            async with asyncio.timeout(timeout_s):
                while pending:
                    await self._look(pending)
                    if pending:
                        await asyncio.sleep(POLL_S)
        except TimeoutError:
            await self._give_up(pending)
        return sorted(self._outcomes, key=lambda outcome: (outcome.vhost, outcome.name))

    def _ended(self, queue: Queue, error: str = "", size: int | None = None) -> None:
        members = len(queue.wanted_members) if size is None else size
        outcome = Outcome(queue.vhost, queue.name, members, error)
        self._outcomes.append(outcome)
        if self._report is not None:
            self._report(outcome)

    async def _write(self, queues: list[Queue]) -> dict[int, Queue]:
        """Write the wishes of a batch; return the queues that are to be watched."""
        operations: list[dict[str, Any]] = []
        asked: list[Queue] = []
        node = [str(self._node)]
        add, remove = (node, []) if self._is_growing else ([], node)
        for queue in queues:
            fault = None
            if not self._is_growing:
                fault = _fault_of_removal(self._cluster.host, self._node, queue)
            if fault is not None:
                self._ended(queue, fault, len(queue.members))
                continue
            asked.append(queue)
            operations.append(
                catalog_commands.want_queue_members(
                    queue.vhost, queue.name, queue.uid, add=add, remove=remove
                )
            )
        if not operations:
            return {}
        reply = await self._cluster.write({"do": "batch", "operations": operations})
        watched = {}
        for queue, result in zip(asked, reply["results"], strict=True):
            if result["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED):
                watched[queue.uid] = queue
            else:
                self._ended(queue, result["text"], len(queue.members))
        return watched

    async def _look(self, pending: dict[int, Queue]) -> None:
        """Take the queues out of `pending` whose wish has come true, or never will."""
        votes = await self._votes(pending) if self._is_growing else {}
        for uid, queue in list(pending.items()):
            current = self._cluster.queue_of(uid)
            if current is None:
                self._ended(queue, "the queue was deleted", 0)
            elif (self._node in current.wanted_members) != self._is_growing:
                self._ended(current, "the opposite was asked for meanwhile", len(current.members))
            elif self._is_growing and uid in votes:
                self._ended(current, size=votes[uid])
            elif not self._is_growing and self._node not in current.members:
                self._ended(current, size=len(current.members))
            else:
                continue
            del pending[uid]

    async def _votes(self, pending: dict[int, Queue]) -> dict[int, int]:
        """Return the queues in which the new member votes, as it says itself: how many do."""
        uids = list(pending)
        found = {}
        for start in range(0, len(uids), BATCH):
            part = {"uids": uids[start : start + BATCH]}
            answer = await self._cluster.calls.ask(self._node, "replicas", part)
            if answer is None:
                break
            for row in answer["rows"]:
                if self._node in row["voters"]:
                    found[int(row["uid"])] = len(row["voters"])
        return found

    async def _give_up(self, pending: dict[int, Queue]) -> None:
        alive = self._cluster.host.alive()
        fields = {"uids": list(pending)[:BATCH]}
        answers = await self._cluster.calls.ask_all(alive, "stuck", fields)
        reasons = {
            int(uid): reason
            for answer in answers.values()
            for uid, reason in answer["reasons"].items()
        }
        for uid, queue in pending.items():
            reason = reasons.get(uid, "it is under way")
            self._ended(queue, f"not done yet, and goes on: {reason}", len(queue.members))
