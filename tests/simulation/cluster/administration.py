"""What people have members do: declare, delete, move replicas, take members out, spread leaders.

By the functions that the front doors call; a refusal or a missing majority ends it, and it is for
the world to try again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from brokerd.cluster.errors import GroupGone
from brokerd.cluster.groups import placement
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.catalog import member_states, topology
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import quorum_calls, replica_changes
from brokerd.server.members.replica_changes import MembershipError

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process

VHOST = "/"
QUORUM = {"x-queue-type": "quorum"}
SPEC = {"type": "quorum", "durable": True, "auto_delete": False, "settings": {}}
#: How long one attempt waits.
CHANGE_S = 2.0
VOTERS_MIN = 3

_T = TypeVar("_T")


async def quietly(work: Awaitable[_T]) -> _T | None:
    """Return what comes out; None where it was refused, or nobody answered."""
    try:
        return await work
    except (Unavailable, MembershipError, GroupGone):
        return None


def _spec(process: Process, uid: int) -> dict[str, Any]:
    world = process.world
    arguments = _arguments(process, uid)
    if world.queues[uid].targets:
        arguments |= {
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-delivery-limit": world.scenario.delivery_limit,
        }
    elif world.queues[uid].options.queue_type == "classic":
        return SPEC | {"type": "classic", "arguments": {}}
    else:
        arguments["x-delivery-limit"] = -1
    return SPEC | {"arguments": arguments}


def _arguments(process: Process, uid: int) -> dict[str, Any]:
    size = process.world.size_of(uid)
    return QUORUM | ({"x-quorum-initial-group-size": size} if size else {})


async def declare_first(process: Process) -> None:
    """Declare what clients use, as far as it is not there."""
    await quietly(_declare_first(process))


async def _declare_first(process: Process) -> None:
    world = process.world
    operations = []
    if world.scenario.target_size:
        policy = {
            "pattern": ".*",
            "apply-to": "quorum_queues",
            "definition": {"target-group-size": world.scenario.target_size},
        }
        operations.append(catalog_commands.put("policy", VHOST, "size", policy, cause="admin"))
    if world.scenario.dead_letters:
        exchange = {"type": "fanout"}
        operations.append(catalog_commands.put("exchange", VHOST, "dlx", exchange, cause="admin"))
    if operations:
        await process.write(catalog_commands.batch(operations))
    for uid in reversed(world.first_queues):
        name = world.queues[uid].name
        if process.queue_of(uid) is None:
            world.uid_of_next_queue = uid
            spec = _spec(process, uid)
            reply = await topology.create_queue(process.objects, VHOST, name, spec, cause="admin")
            # Somebody else may have declared it meanwhile, with other members.
            _expect(process, reply)
    if world.scenario.dead_letters:
        _expect(process, await bind(process))


async def bind(process: Process) -> dict[str, Any]:
    """Give dead letters their way."""
    spec = {"source": "dlx", "destination": "dead"}
    return await process.write(catalog_commands.put("binding", VHOST, "", spec, cause="admin"))


def is_bound(process: Process) -> bool:
    """Tell whether dead letters have their way."""
    return bool(_bindings(process))


def _bindings(process: Process) -> list[str]:
    rows = process.built.base.catalog.machine.objects("binding", VHOST)
    return [row["name"] for row in rows if row["spec"]["source"] == "dlx"]


async def unbind(process: Process) -> None:
    """Take their way from them."""
    for name in _bindings(process):
        operation = catalog_commands.delete("binding", VHOST, name, cause="admin")
        await quietly(process.write(operation))


def _expect(process: Process, reply: dict[str, Any]) -> None:
    is_done = reply["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED)
    process.world.oracle.require(is_done, f"{process.node}: {reply}")


async def declare_passing(process: Process, uid: int) -> None:
    """Declare a queue that no client uses."""
    spec = SPEC | {"arguments": _arguments(process, uid) | {"x-delivery-limit": -1}}
    work = topology.create_queue(process.objects, VHOST, f"passing{uid}", spec, cause="admin")
    await quietly(work)
    if process.view.queue(VHOST, f"passing{uid}") is not None:
        process.world.on_declared(process, uid)


async def delete_passing(process: Process, uid: int) -> None:
    """Delete it."""
    queue = process.queue_of(uid)
    if queue is None:
        return
    work = topology.delete_queue(
        process.objects, queue, if_empty=False, if_unused=False, cause="admin"
    )
    process.world.on_deleted(uid)
    await quietly(work)


async def move_replica(process: Process, queue: Queue, rng: random.Random) -> None:
    """Give a member a replica of a queue, or take one away while enough are left."""
    wanted = queue.wanted_members
    outside = sorted(set(process.view.members()) - {*wanted})
    if outside and (len(wanted) <= VOTERS_MIN or rng.random() < 0.5):
        node = rng.choice(outside)
        work = replica_changes.grow_member(
            process.cluster, node, queues=[queue], timeout_s=CHANGE_S
        )
    elif len(wanted) > VOTERS_MIN and set(wanted) == set(queue.members):
        node = rng.choice(sorted(wanted))
        if not process.world.may_take_out(queue.uid, node):
            return
        work = replica_changes.shrink_member(
            process.cluster, node, queues=[queue], timeout_s=CHANGE_S
        )
    else:
        return
    await quietly(work)


async def remove_member(process: Process, node: NodeId) -> None:
    """Take a member out of the cluster, as the Admin service does; somebody else holds what it
    held, first.
    """
    await quietly(_remove_member(process, node))
    if process.view.members() and node not in process.view.members():
        process.world.on_left(node)


async def _remove_member(process: Process, node: NodeId) -> None:
    view = process.view
    if node not in view.members():
        return
    setting = catalog_commands.set_setting(
        catalog_commands.member_state(node), member_states.LEAVING
    )
    await process.write(setting)
    if node not in view.members():
        await process.write(catalog_commands.set_setting(catalog_commands.member_state(node), None))
        return
    for queue in list(view.queues()):
        rest = {*queue.wanted_members} - {node}
        if node in queue.wanted_members and len(rest) < VOTERS_MIN:
            others = {*process.host.alive()} & {*view.members()} - {*queue.wanted_members, node}
            present = [NodeId(name) for name in sorted(rest)]
            # As people choose who look where members run.
            for other in placement.newcomers(others, present, {}, 1, process.world.places.domains):
                await replica_changes.grow_member(
                    process.cluster, other, queues=[queue], timeout_s=CHANGE_S
                )
    safe = [
        queue
        for queue in view.queues()
        if node not in queue.members
        or (
            len({*queue.members} - {node}) >= VOTERS_MIN
            and process.world.may_take_out(queue.uid, node)
        )
    ]
    await replica_changes.shrink_member(process.cluster, node, queues=safe, timeout_s=CHANGE_S)
    for _ in range(5):
        if node not in view.members():
            return
        await asyncio.sleep(0.2)


async def follow_advice(process: Process, queue: Queue) -> None:
    """Move a queue's replicas as `quorum_status` advises, one of them."""
    nodes = [NodeId(name) for name in queue.members]
    view = process.view
    domains = member_states.domains(view)
    exchange = domains.better(nodes, process.host.alive() - member_states.resting(view))
    if domains.fault(nodes) and exchange is not None:
        leaver, comer = exchange
        for change, node in (
            (replica_changes.grow_member, comer),
            (replica_changes.shrink_member, leaver),
        ):
            await change(process.cluster, node, queues=[queue], timeout_s=CHANGE_S)


async def set_maintenance(process: Process, node: NodeId, *, is_on: bool) -> None:
    """Let a member rest, or no longer."""
    if member_states.is_leaving(process.view, node) or node not in process.view.members():
        return
    value = member_states.MAINTENANCE if is_on else None
    name = catalog_commands.member_state(node)
    await quietly(process.write(catalog_commands.set_setting(name, value)))


async def rebalance(process: Process) -> None:
    """Spread leaders over the members that do not rest."""
    resting = member_states.resting(process.view)
    await quorum_calls.rebalance(process.cluster, list(process.view.queues()), resting, CHANGE_S)
