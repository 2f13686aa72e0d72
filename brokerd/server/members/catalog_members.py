"""The catalog's own group follows the list of members that stands in the catalog.

Level-triggered and done by the group's leader, one step at a time, so that any leader goes on where
another one stopped: who is on the list learns and then votes; who leaves is taken out of the group
first and off the list after that.  In a large cluster only some vote, and the others learn for
good (ADR 44).  cluster/groups/membership_steps.py decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection

from brokerd.cluster.groups import membership_steps, placement
from brokerd.cluster.groups.membership_steps import GroupView, Step, StepKind
from brokerd.core.catalog import catalog_commands
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import ports
from brokerd.server.members.joining import VOTERS_MAX

log = logging.getLogger(__name__)

#: Seconds between looks: a step may wait for what gives no signal, such as a learner's catching up.
POLL_S = 0.5

_CHANGES = (StepKind.ADD_LEARNER, StepKind.PROMOTE, StepKind.REMOVE)
_SAID = {
    StepKind.ADD_LEARNER: "member %s joins the catalog as a learner",
    StepKind.PROMOTE: "member %s has caught up with the catalog and votes",
    StepKind.REMOVE: "member %s is taken out of the catalog's group",
    StepKind.HAND_OVER: "the catalog is handed over to %s",
    StepKind.RECORD_REMOVE: "member %s has left the cluster",
}


class CatalogMembers:
    """State: whether a change of the group is on its way."""

    def __init__(
        self, catalog: ports.Catalog, host: ports.Replicas, hand_over: ports.HandOver
    ) -> None:
        self._catalog = catalog
        self._host = host
        self._hand_over = hand_over
        self._woken = asyncio.Event()
        self._is_changing = False

    def wake(self) -> None:
        """Something changed that may ask for a step."""
        self._woken.set()

    async def run(self) -> None:
        """Work until the broker ends."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            self._woken.clear()
            step = self._next_step()
            if step is not None:
                await self._do(step)
            view = self._catalog.view
            if member_states.state_of(view, self._host.node):
                # An election may have chosen this member all the same.
                await self._hand_over(POLL_S, member_states.resting(view))

    def _next_step(self) -> Step | None:
        host, view = self._host, self._catalog.view
        if self._is_changing or not host.has_group(CATALOG_GROUP):
            return None
        status = host.status_of(CATALOG_GROUP)
        # What comes behind this looks at all pairs of members: only the leader has to.
        if not status.is_leader or status.applied < status.commit:
            return None
        members = [NodeId(name) for name in view.members()]
        wanted = [node for node in members if not self._may_go(node)]
        # Before the first member is on the list no member is to be taken out of the group.
        if not wanted:
            return None
        wanted = self._in_order(wanted, status.members.voters)
        group = GroupView(
            leader=host.node,
            members=members,
            wanted=wanted,
            configuration=status.members,
            may_change=status.may_change,
            alive=frozenset(host.alive()),
            configuration_index=status.members_index,
            last_index=status.last,
            match={node: status.last - lag for node, lag in status.lag.items()},
            voters_max=VOTERS_MAX,
        )
        return membership_steps.next_step(group)

    def _in_order(self, nodes: Collection[NodeId], voters: Collection[NodeId]) -> list[NodeId]:
        """Return them in the order in which they are to vote: as they are, then those that spread
        the voters most evenly over zones and hosts.
        """
        voting = [node for node in nodes if node in voters]
        if len(nodes) <= VOTERS_MAX or len(voting) == len(nodes):
            return list(nodes)
        domains = member_states.domains(self._catalog.view)
        # A place that cannot be taken now goes to the next one.
        alive = self._host.alive()
        able = [node for node in nodes if node in alive]
        first = placement.newcomers(able, voting, {}, len(able), domains)
        return [*dict.fromkeys([*voting, *first, *nodes])]

    def _may_go(self, node: NodeId) -> bool:
        """Tell whether a member is on its way out and no longer needed: the others stop talking to
        a member that is off the list, and a queue's group would have a voter less than it counts.
        """
        view = self._catalog.view
        is_leaving = member_states.is_leaving(view, node)
        return is_leaving and not member_states.holds_replicas(view, node)

    async def _do(self, step: Step) -> None:
        host = self._host
        if step.kind in _SAID:
            log.info(_SAID[step.kind], step.node)
        if step.kind in _CHANGES:
            self._is_changing = True
            configuration = host.status_of(CATALOG_GROUP).members
            wanted = membership_steps.changed(configuration, step)
            host.change_members(CATALOG_GROUP, wanted, self._changed)
        elif step.kind is StepKind.HAND_OVER:
            host.transfer_leadership(CATALOG_GROUP, step.node)
        elif step.kind is StepKind.RECORD_REMOVE:
            about = (
                catalog_commands.member_state(step.node),
                catalog_commands.member_domain(step.node),
            )
            operations = [catalog_commands.remove_member(step.node)]
            operations += [catalog_commands.set_setting(name, None) for name in about]
            with contextlib.suppress(Unavailable):
                await self._catalog.write({"do": "batch", "operations": operations})

    def _changed(self, accepted: bool, reply: bytes, _leader: NodeId | None) -> None:
        self._is_changing = False
        if not accepted:
            log.debug("the catalog's group was not changed: %s", reply.decode("utf-8", "replace"))
        self.wake()
