"""Giving a member's leaderships away before it stops, so that nobody waits for an election.

Used by app.py (SIGTERM) and by the Admin service (Drain).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

#: How often it is looked at who leads by now.
POLL_S = 0.1


def transferable(broker: Broker, avoid: Collection[NodeId] = ()) -> list[int]:
    """Return the groups led here that another member that is up could lead, `avoid` aside."""
    others = broker.host.alive() - {NodeId(broker.node), *avoid}
    found = []
    for uid in broker.host.groups():
        status = broker.host.status_of(uid)
        if status.is_leader and not others.isdisjoint(status.members.voters):
            found.append(uid)
    return found


async def hand_over(broker: Broker, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
    """Give leaderships away, but not to `avoid`; return how many are left."""
    if broker.failure is not None:
        return 0
    deadline = time.monotonic() + timeout_s
    while (led := transferable(broker, avoid)) and time.monotonic() < deadline:
        others = broker.host.alive() - {NodeId(broker.node), *avoid}
        for uid in led:
            status = broker.host.status_of(uid)
            target = min(
                (node for node in status.members.voters if node in others),
                key=lambda node: (status.lag.get(node, 1 << 62), node),
            )
            broker.host.transfer_leadership(uid, target)
        await asyncio.sleep(POLL_S)
    return len(led)
