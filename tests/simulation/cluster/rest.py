"""What holds at each member of a simulated cluster that has come to rest.  For world.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog import member_states
from brokerd.server.members.joining import VOTERS_MAX
from tests.simulation.cluster import administration

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.world import ClusterWorld

#: No group has fewer voters, and no cluster fewer members.
VOTERS_MIN = 3


def put_right(world: ClusterWorld, process: Process) -> str | None:
    """Have taken back what somebody wrote whom nobody heard before somebody else found all well;
    return what it was.
    """
    if world.scenario.dead_letters and not administration.is_bound(process):
        world.run_on(process, administration.quietly(administration.bind(process)), "bind")
        return f"at {process.node} dead letters have no way"
    for node in process.view.members():
        if world.members[NodeId(node)].is_out:
            # It was starting with an empty disk when it was removed, and its question came after
            # that: it was let in once more.
            world.take_out(NodeId(node))
            return f"at {process.node} {node} is a member again"
    for node in sorted(member_states.resting(process.view)):
        if member_states.is_leaving(process.view, node):
            # It had come back when a removal of before was heard; somebody ends that.
            world.take_out(NodeId(node))
            return f"at {process.node} {node} leaves"
        work = administration.set_maintenance(process, node, is_on=False)
        world.run_on(process, work, f"maintenance {node} ends")
        return f"at {process.node} {node} rests"
    return None


def obstacle_at(world: ClusterWorld, process: Process, inside: list[NodeId]) -> str | None:
    """Return what is not yet as the catalog at a member says; None: all is."""
    node, view, host = process.node, process.view, process.host
    if sorted(view.members()) != inside:
        return f"the catalog at {node} knows {sorted(view.members())}, there are {inside}"
    missing = [name for name in world.acknowledged if view.setting(name) is None]
    if missing:
        return f"the catalog at {node} lacks {missing}, which were acknowledged"
    status = host.status_of(CATALOG_GROUP)
    voters, learners = status.members.voters, status.members.learners
    # In a large cluster the others learn, and who was lost has given its place to one of them.
    wanted = min(VOTERS_MAX, len(inside))
    if sorted(voters + learners) != inside or len(voters) != wanted:
        return f"the catalog's group is {status.members}, the members are {inside}"
    if status.is_damaged:
        return f"the catalog at {node} is damaged"
    if host.alive() != set(inside):
        return f"{node} hears {sorted(host.alive())}"
    if world.members[node].is_refilling:
        return f"{node} counts as one that is being refilled"
    if process.membership.stuck:
        return f"{node} cannot change groups: {process.membership.stuck}"
    held = {CATALOG_GROUP}
    for queue in view.queues():
        if queue.membership.wanted is not None or queue.membership.returning:
            return f"{queue.name} at {node} wants {queue.membership}"
        if queue.type == "quorum" and len(queue.members) < min(VOTERS_MIN, len(inside)):
            return f"{queue.name} at {node} has {queue.members} only"
        if node in queue.members:
            held.add(queue.uid)
            group = host.status_of(queue.uid).members if host.has_group(queue.uid) else None
            if group is None or set(group.voters) != set(queue.members) or group.learners:
                return f"{queue.name} at {node} is {group}, its record {queue.members}"
        target = min(world.scenario.target_size, len(set(inside) - {*queue.membership.excluded}))
        if len(queue.members) < target:
            return f"{queue.name} at {node} has {queue.members}, its target size is {target}"
    if set(host.groups()) != held:
        return f"{node} holds {sorted(host.groups())}, its records are {sorted(held)}"
    return None
