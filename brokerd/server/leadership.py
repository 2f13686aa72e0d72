"""Giving a member's leaderships away before it stops, so that nobody waits for an election.

Used by app.py (SIGTERM) and by the Admin service (Drain).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

#: How often it is looked who leads by now.
POLL_S = 0.05
#: So many are handed over at once: a group takes no commands while its leadership is on its way.
AT_ONCE = 200
#: One that has not moved by then waits behind the others: its successor may be slow.
PATIENCE_S = 2.0


def transferable(broker: Broker, avoid: Collection[NodeId] = ()) -> list[int]:
    """Return the groups led here that another member that is up could lead, `avoid` aside."""
    heirs = broker.host.alive() - {NodeId(broker.node), *avoid}
    return [uid for uid in broker.host.groups() if _may_go(broker, uid, heirs)]


def _may_go(broker: Broker, uid: int, heirs: Collection[NodeId]) -> bool:
    driver = broker.host.driver_of(uid)
    return (
        driver is not None
        and driver.is_leader
        and any(node in heirs for node in driver.configuration.voters)
    )


def _best_heir(broker: Broker, uid: int, heirs: Collection[NodeId]) -> NodeId:
    driver = broker.host.driver_of(uid)
    assert driver is not None
    match = driver.replica.match_of
    voters = [node for node in driver.configuration.voters if node in heirs]
    return min(voters, key=lambda node: (-(match(node) or 0), node))


async def hand_over(broker: Broker, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
    """Give leaderships away, but not to `avoid`; return how many are left."""
    if broker.failure is not None:
        return 0
    clock = time.monotonic
    deadline = clock() + timeout_s
    waiting = deque(transferable(broker, avoid))
    #: When each that is on its way was asked first.
    asked: dict[int, float] = {}
    while (waiting or asked) and clock() < deadline:
        heirs = broker.host.alive() - {NodeId(broker.node), *avoid}
        while waiting and len(asked) < AT_ONCE:
            asked[waiting.popleft()] = clock()
        for uid in list(asked):
            if not _may_go(broker, uid, heirs):
                del asked[uid]
                continue
            # Again each time: a hand-over that came to nothing is forgotten.
            broker.host.transfer_leadership(uid, _best_heir(broker, uid, heirs))
            if clock() - asked[uid] >= PATIENCE_S:
                del asked[uid]
                waiting.append(uid)
        await asyncio.sleep(POLL_S)
    return len(transferable(broker, avoid))
