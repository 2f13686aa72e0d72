"""Giving a member's leaderships away before it stops, so that no client waits for an election.

Used by app.py (SIGTERM) and by the Admin service (Drain).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.raft.messages import NodeId
from brokerd.server.members import ports

#: How often it is looked who leads by now.
POLL_S = 0.05
#: Groups handed over at once: a group takes no commands while its leadership is on its way.
AT_ONCE = 200
#: One that has not moved by then waits behind the others: its successor may be slow.
PATIENCE_S = 2.0


class Leadership:
    """The groups that this member leads, as others could lead them.  State: none of its own."""

    def __init__(self, host: ports.Replicas, has_failed: Callable[[], bool]) -> None:
        """has_failed: whether this member can promise nothing any more."""
        self._host = host
        self._has_failed = has_failed

    def transferable(self, avoid: Collection[NodeId] = ()) -> list[int]:
        """Return the groups led here that another member that is up could lead, `avoid` aside."""
        host, heirs = self._host, self._heirs(avoid)
        return [uid for uid in host.groups() if _led(host, uid, heirs) is not None]

    def _heirs(self, avoid: Collection[NodeId]) -> set[NodeId]:
        """Return the other members that can lead: one whose disk does not answer is not elected."""
        host = self._host
        heirs = host.alive() - {host.node, *avoid}
        return {node for node in heirs if not host.is_stalled(node)}

    async def hand_over(self, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
        """Give leaderships away, but not to `avoid`; return how many are left."""
        if self._has_failed():
            return 0
        host = self._host
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        waiting = deque(self.transferable(avoid))
        #: When each that is on its way was asked first.
        asked: dict[int, float] = {}
        while (waiting or asked) and clock() < deadline:
            heirs = self._heirs(avoid)
            while waiting and len(asked) < AT_ONCE:
                asked[waiting.popleft()] = clock()
            for uid in list(asked):
                status = _led(host, uid, heirs)
                if status is None:
                    del asked[uid]
                    continue
                # Again each time: a hand-over that came to nothing is forgotten.
                host.transfer_leadership(uid, _best_heir(status, heirs))
                if clock() - asked[uid] >= PATIENCE_S:
                    del asked[uid]
                    waiting.append(uid)
            await asyncio.sleep(POLL_S)
        return len(self.transferable(avoid))


def _led(host: ports.Replicas, uid: int, heirs: Collection[NodeId]) -> GroupStatus | None:
    """Return the state of a group that is led here and that one of the heirs could lead."""
    if host.leader_of(uid) != host.node:
        return None
    status = host.status_of(uid)
    can_go = status.is_leader and any(node in heirs for node in status.members.voters)
    return status if can_go else None


def _best_heir(status: GroupStatus, heirs: Collection[NodeId]) -> NodeId:
    """Return the one that holds most; nothing is known of those that lag behind by all."""
    lag, last = status.lag, status.last
    voters = [node for node in status.members.voters if node in heirs]
    return min(voters, key=lambda node: (lag.get(node, last), node))
