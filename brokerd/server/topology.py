"""Creating and deleting objects cluster-wide: the steps that need more than one proposal.

Used by AMQP sessions and by the Admin service, so that both do the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokerd.cluster import placement
from brokerd.cluster.errors import GroupGone
from brokerd.core import catalog_commands, policy, queue_commands
from brokerd.core.catalog_objects import ConnectionId, Owner, Queue
from brokerd.raft.messages import NodeId
from brokerd.server import catalog_members

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Deleted:
    """How the deletion of a queue went."""

    done: bool
    messages: int = 0
    consumers: int = 0


def choose_members(broker: Broker, vhost: str, name: str, spec: dict[str, Any]) -> list[str]:
    """Return the nodes that are to hold a new queue; the first is to lead it (R-QQ-4, R-QQ-5)."""
    if spec["type"] != "quorum":
        return [broker.node]
    here = NodeId(broker.node)
    resting = catalog_members.resting(broker)
    leaving = {node for node in resting if catalog_members.is_leaving(broker, node)}
    nodes = {NodeId(node) for node in broker.view.members()} - leaving or {here}
    # Who is in maintenance counts as one that is down: it fills up a group, and leads none.
    running = (broker.host.alive() | {here}) - resting
    queues = list(broker.view.queues())
    replicas = Counter(NodeId(node) for queue in queues for node in queue.members)
    size = spec.get("replicas") or spec["arguments"].get("x-quorum-initial-group-size")
    chosen = placement.choose_members(
        size or broker.config.queues.quorum_group_size,
        here,
        nodes,
        running,
        replicas,
        len(queues),
        broker.random,
    )
    probe = Queue(vhost, name, spec, 0, list(chosen))
    locator = policy.effective_queue(broker.view, probe).values.get("queue-leader-locator", "")
    # Who leads a group without a replica here is not known; the first member did at the beginning.
    leaders = Counter(
        broker.host.leader_of(queue.uid) or NodeId(queue.members[0])
        for queue in queues
        if queue.members
    )
    ordered = placement.leader_candidates(
        locator, here, chosen, running, leaders, len(queues), broker.random
    )
    return [str(node) for node in ordered]


async def create_queue(
    broker: Broker,
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
    """Put a queue; when it is new, wait until its leader works.  Returns the catalog's reply."""
    operation = catalog_commands.put(
        "queue",
        vhost,
        name,
        spec,
        cause=cause,
        declare=declare,
        owner=owner,
        precondition=precondition,
        uid=broker.new_group_uid(),
        members=choose_members(broker, vhost, name, spec),
        exclusive_owner=exclusive_owner,
        dry_run=dry_run,
    )
    reply = await broker.write(operation)
    queue = broker.view.queue(vhost, name)
    if reply["code"] == catalog_commands.OK and queue is not None and not dry_run:
        # A tick changes nothing; its answer says that the group has a leader with its options.
        await ask(broker, queue.uid, queue_commands.encode_tick())
    return reply


async def ask(broker: Broker, uid: int, command: bytes) -> bytes | None:
    """Return a queue's reply, None if it has been deleted."""
    try:
        return await broker.ask_queue(uid, command)
    except GroupGone:
        return None


async def delete_queue(
    broker: Broker, queue: Queue, *, if_empty: bool, if_unused: bool, cause: str
) -> Deleted:
    """Delete a queue: its own machine judges the conditions (atomically), then the catalog
    follows.
    """
    command = queue_commands.encode_delete(if_empty, if_unused, cause)
    raw = await ask(broker, queue.uid, command)
    if raw is None:
        return Deleted(True)
    fields = queue_commands.decode_reply(raw)
    messages, consumers = fields.get("messages", 0), fields.get("consumers", 0)
    if not fields.get("deleted", True):
        return Deleted(False, messages, consumers)
    operation = catalog_commands.delete(
        "queue", queue.vhost, queue.name, uid=queue.uid, cause=cause
    )
    await broker.write(operation)
    return Deleted(True, messages, consumers)


async def purge_queue(broker: Broker, queue: Queue) -> int:
    """Remove a queue's ready messages; return how many."""
    raw = await ask(broker, queue.uid, queue_commands.encode_purge())
    return 0 if raw is None else int(queue_commands.decode_reply(raw).get("messages", 0))


async def counts(broker: Broker, queue: Queue) -> tuple[int, int] | None:
    """Return ready messages and consumers for declare-ok (R-Q-3); None: the queue has ended.

    When None is returned the catalog knows it too, so that the name is free.
    """
    raw = await ask(broker, queue.uid, queue_commands.encode_declared())
    if raw is None:
        return None
    fields = queue_commands.decode_reply(raw)
    if not fields.get("deleted"):
        return fields["ready"], fields["consumers"]
    operation = catalog_commands.delete(
        "queue", queue.vhost, queue.name, uid=queue.uid, cause="declare"
    )
    await broker.write(operation)
    return None
