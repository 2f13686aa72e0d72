"""Creating and deleting objects cluster-wide: the steps that need more than one proposal.

Used by AMQP sessions and by the Admin service, so that both do the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from brokerd.cluster.groups import placement
from brokerd.core.catalog import catalog_commands, delayed_type, names, policy
from brokerd.core.catalog.catalog_objects import ConnectionId, Exchange, Owner, Queue, Record
from brokerd.core.queue.client_shapes import Counts, Deleted
from brokerd.raft.messages import NodeId
from brokerd.server.catalog import member_states, ports
from brokerd.server.catalog.catalog_writer import QueueStuck

log = logging.getLogger(__name__)

#: Cause of the deletion of queues that went down with their home member (members/home_members.py).
HOME_DOWN = "home-down"


#: What the queue of an exchange of type x-delayed-message looks like.
_DELAYED_QUEUE = {
    "type": "quorum",
    "durable": True,
    "auto_delete": False,
    "arguments": {"x-queue-type": "quorum"},
    "settings": {},
}


class Placement:
    """Chooses members and first leaders of new queues (R-QQ-4, R-QQ-5).

    State: who is there, and who holds and leads how many queues, as of its creation and with what
    it has chosen since.  For queues that are made together; not to be kept.
    """

    def __init__(self, cluster: ports.Cluster) -> None:
        self._cluster = cluster
        self._here = here = NodeId(cluster.node)
        view = cluster.view
        resting = member_states.resting(view)
        leaving = {node for node in resting if member_states.is_leaving(view, node)}
        self._nodes = {NodeId(node) for node in view.members()} - leaving or {here}
        # A member in maintenance counts as one that is down: it fills up a group, and leads none.
        # So does one that has never started: with its new disk it will have no vote until it is
        # refilled.  So does one whose disk does not answer: it cannot vote.
        started = {NodeId(node) for node in view.incarnations}
        up = (cluster.host.alive() & started | {here}) - resting
        self._running = {node for node in up if not cluster.host.is_stalled(node)}
        self._queue_count = sum(len(vhost.queues) for vhost in view.vhosts.values())
        self._replicas: Counter[NodeId] = Counter()
        self._leaders: Counter[NodeId] = Counter()
        self._domains = member_states.domains(view)
        # With more queues the counts are not used, and would make each queue dearer than the last.
        if self._queue_count < placement.RANDOM_QUEUES_MIN:
            self._count()

    def _count(self) -> None:
        # Who leads a group without a replica here is not known; the first member did at the
        # beginning.
        for queue in self._cluster.view.queues():
            self._replicas.update(NodeId(node) for node in queue.members)
            if queue.members:
                leader = self._cluster.host.leader_of(queue.uid)
                self._leaders[leader or NodeId(queue.members[0])] += 1

    def choose(
        self, vhost: str, name: str, spec: dict[str, Any], *, locator: str = ""
    ) -> list[str]:
        """Return the nodes that are to hold a new queue; the first is to lead it.

        locator: for a queue of which neither its arguments nor a policy say where it is led.
        """
        if spec["type"] == "quorum":
            chosen = self._of_group(vhost, name, spec, locator)
        else:
            chosen = [self._home(locator, is_durable=spec.get("durable", True))]
        self._replicas.update(chosen)
        self._leaders[chosen[0]] += 1
        self._queue_count += 1
        return [str(node) for node in chosen]

    def _home(self, locator: str, *, is_durable: bool) -> NodeId:
        """Return where a classic queue lives: here, unless it is to be where fewest are, or on a
        disk that does not answer while others do.
        """
        others = self._running - {self._here}
        is_stalled = is_durable and self._cluster.host.is_stalled(self._here)
        if not others or not (is_stalled or locator == placement.BALANCED):
            return self._here
        candidates = others if is_stalled else others | {self._here}
        return min(candidates, key=lambda node: (self._leaders[node], node != self._here, node))

    def _of_group(self, vhost: str, name: str, spec: dict[str, Any], locator: str) -> list[NodeId]:
        cluster = self._cluster
        size = spec.get("replicas") or spec["arguments"].get("x-quorum-initial-group-size")
        chosen = placement.choose_members(
            size=size or cluster.config.queues.quorum_group_size,
            client_node=self._here,
            members=self._nodes,
            running=self._running,
            replica_counts=self._replicas,
            queue_count=self._queue_count,
            shuffler=cluster.random,
            domains=self._domains,
        )
        probe = Queue(vhost, name, spec, 0, list(chosen))
        settings = policy.effective_queue(cluster.view, probe)
        ordered = placement.leader_candidates(
            settings.values.get("queue-leader-locator", locator),
            self._here,
            chosen,
            self._running,
            self._leaders,
            self._queue_count,
            cluster.random,
        )
        return list(ordered)


async def create_queue(
    objects: ports.Topology,
    vhost: str,
    name: str,
    spec: dict[str, Any],
    *,
    cause: str,
    declare: bool = False,
    owner: Owner | None = None,
    precondition: dict[str, Any] | None = None,
    exclusive_owner: ConnectionId | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Put a queue; when it is new, wait until its leader works.  Returns the catalog's reply.

    One of the same name that went down with its home member is deleted first.
    """
    view = objects.view
    if view.usable_queue(vhost, name) is None and not dry_run:
        await _delete_absent(objects, view.queue(vhost, name))
    operation = catalog_commands.put(
        "queue",
        vhost,
        name,
        spec,
        cause=cause,
        declare=declare,
        owner=owner,
        precondition=precondition,
        uid=objects.new_group_uid(),
        members=Placement(objects).choose(vhost, name, spec),
        exclusive_owner=exclusive_owner,
        dry_run=dry_run,
    )
    reply = await objects.write(operation)
    queue = objects.view.queue(vhost, name)
    if reply["code"] == catalog_commands.OK and queue is not None and not dry_run:
        await objects.queues.wait_for_leader(queue.uid)
    return reply


async def make_delayed_queue(
    objects: ports.Topology, vhost: str, exchange: str, spec: dict[str, Any], *, cause: str
) -> None:
    """Make the queue that an exchange of type x-delayed-message needs, unless it is there.

    Before the exchange, so that no message finds the one without the other; a queue without its
    exchange is harmless, and the next declaration of the exchange takes it over.
    """
    name = names.delayed_queue(exchange)
    if spec.get("type") == delayed_type.TYPE and objects.view.queue(vhost, name) is None:
        await create_queue(objects, vhost, name, _DELAYED_QUEUE, cause=cause)


async def keeps_messages(objects: ports.Objects, exchange: Record | None) -> bool:
    """Tell whether this is an exchange of type x-delayed-message in which messages wait."""
    if not isinstance(exchange, Exchange) or exchange.type != delayed_type.TYPE:
        return False
    queue = objects.view.queue(exchange.vhost, names.delayed_queue(exchange.name))
    if queue is None:
        return False
    found = await objects.queues.declared(queue.uid)
    return found is not None and found.ready > 0


async def _delete_absent(objects: ports.Catalog, absent: Queue | None) -> None:
    if absent is not None:
        where = (absent.vhost, absent.name)
        await objects.write(
            catalog_commands.delete("queue", *where, uid=absent.uid, cause=HOME_DOWN)
        )


async def delete_queue(
    objects: ports.Objects, queue: Queue, *, if_empty: bool, if_unused: bool, cause: str
) -> Deleted:
    """Delete a queue: its own machine judges the conditions (atomically), then the catalog
    follows.

    One whose home member is down, or that waits with damage, is deleted by the catalog alone, if
    nothing need be judged; how many messages it had is not known.
    """
    deleted: Deleted | None
    try:
        deleted = await objects.queues.delete(
            queue.uid, if_empty=if_empty, if_unused=if_unused, cause=cause
        )
    except QueueStuck as reason:
        if if_empty or if_unused:
            raise
        log.warning("deleted by '%s' without its leader: %s", cause, reason)
        deleted = Deleted(True, unknown=str(reason))
    else:
        if deleted is None:
            return Deleted(True)
    if deleted.done:
        operation = catalog_commands.delete(
            "queue", queue.vhost, queue.name, uid=queue.uid, cause=cause
        )
        await objects.write(operation)
    return deleted


async def counts(objects: ports.Objects, queue: Queue) -> Counts | None:
    """Return what declare-ok says (R-Q-3); None: the queue has ended, and the catalog knows it too,
    so that the name is free.
    """
    found = await objects.queues.declared(queue.uid)
    if found is None and objects.view.queue(queue.vhost, queue.name) is queue:
        operation = catalog_commands.delete(
            "queue", queue.vhost, queue.name, uid=queue.uid, cause="declare"
        )
        await objects.write(operation)
    return found
