"""The catalog's own group follows the list of members that stands in the catalog.

Level-triggered and done by the group's leader, one step at a time, so that any leader goes on where
another one stopped: who is on the list learns and then votes; who leaves is taken out of the group
first and off the list after that.  cluster/membership_steps.py decides.  Built by broker.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from brokerd.cluster import membership_steps
from brokerd.cluster.membership_steps import GroupView, Step, StepKind
from brokerd.core import catalog_commands
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog_writer import Unavailable

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: A step may wait for something that wakes nobody, such as a learner that catches up.
POLL_S = 0.5
#: States of a member, besides "" (core/catalog_commands.py: member_state).
MAINTENANCE = "maintenance"
LEAVING = "leaving"

_CHANGES = (StepKind.ADD_LEARNER, StepKind.PROMOTE, StepKind.REMOVE)
_SAID = {
    StepKind.ADD_LEARNER: "member %s joins the catalog as a learner",
    StepKind.PROMOTE: "member %s has caught up with the catalog and votes",
    StepKind.REMOVE: "member %s is taken out of the catalog's group",
    StepKind.HAND_OVER: "the catalog is handed over to %s",
    StepKind.RECORD_REMOVE: "member %s has left the cluster",
}


def state_of(broker: Broker, node: str) -> str:
    """Return "maintenance", "leaving" or ""."""
    return str(broker.view.setting(catalog_commands.member_state(node), ""))


def resting(broker: Broker) -> set[NodeId]:
    """Return the members that shall get no new replicas and leaders."""
    return {NodeId(node) for node in broker.view.members() if state_of(broker, node)}


def is_leaving(broker: Broker, node: str) -> bool:
    """Tell whether a member is on its way out."""
    return state_of(broker, node) == LEAVING


class CatalogMembers:
    """State: whether a change of the group is on its way."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
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
            if state_of(self._broker, self._broker.node):
                # An election may have chosen this member all the same.
                await self._broker.hand_over(POLL_S, resting(self._broker))

    def _next_step(self) -> Step | None:
        broker = self._broker
        host = broker.host
        if self._is_changing or not host.has_group(CATALOG_GROUP):
            return None
        status = host.status_of(CATALOG_GROUP)
        members = [NodeId(name) for name in broker.view.members()]
        wanted = [node for node in members if not is_leaving(broker, node)]
        # Before the first member is on the list nobody is to be taken out of the group.
        if not status.is_leader or not wanted or status.applied < status.commit:
            return None
        view = GroupView(
            host.node,
            members,
            wanted,
            status.members,
            status.may_change,
            frozenset(host.alive()),
            status.members_index,
            status.last,
            {node: status.last - lag for node, lag in status.lag.items()},
        )
        return membership_steps.next_step(view)

    async def _do(self, step: Step) -> None:
        broker = self._broker
        if step.kind in _SAID:
            log.info(_SAID[step.kind], step.node)
        if step.kind in _CHANGES:
            self._is_changing = True
            configuration = broker.host.status_of(CATALOG_GROUP).members
            wanted = membership_steps.changed(configuration, step)
            broker.host.change_members(CATALOG_GROUP, wanted, self._changed)
        elif step.kind is StepKind.HAND_OVER:
            broker.host.transfer_leadership(CATALOG_GROUP, step.node)
        elif step.kind is StepKind.RECORD_REMOVE:
            state = catalog_commands.set_setting(catalog_commands.member_state(step.node), None)
            operations = [catalog_commands.remove_member(step.node), state]
            with contextlib.suppress(Unavailable):
                await broker.write({"do": "batch", "operations": operations})

    def _changed(self, accepted: bool, reply: bytes, _leader: NodeId | None) -> None:
        self._is_changing = False
        if not accepted:
            log.debug("the catalog's group was not changed: %s", reply.decode("utf-8", "replace"))
        self.wake()
