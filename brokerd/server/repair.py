"""A replica that has lost messages for good leaves its queue's group and comes back with a new log.

A damaged replica gives up its vote and is refilled by its leader (cluster/inbox.py).  Entries below
its snapshot come with no command any more, and Raft has no way to ask for them: without this the
replica would wait, without a vote, until the last of these messages is settled.  The way out is the
one that people have, `delete_member` and `add_member`: the leader checks that the others can do
without, and the new log is filled from its snapshot (replication.md §1, G8).

The catalog's replica needs none of this: its snapshots hold everything.  Started by app.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from brokerd.server.catalog_writer import Unavailable
from brokerd.server.membership_wishes import MembershipError, grow_member, shrink_member

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: How often it is looked.  A loss that lasts from one look to the next is acted on: consumers may
#: settle the messages before.
LOOK_S = 10.0
POLL_S = 0.2
#: How long one half of a repair may take; it goes on by itself behind that.
STEP_S = 120.0


async def watch(broker: Broker) -> None:
    """Repair one replica after the other, for as long as the broker runs."""
    before: set[int] = set()
    while True:
        await asyncio.sleep(LOOK_S)
        found = _lacking(broker)
        for uid in found & before:
            await _repair(broker, uid)
        before = found


def _lacking(broker: Broker) -> set[int]:
    """Return the groups in which nothing but another log would help the replica here."""
    drivers = ((uid, broker.host.driver_of(uid)) for uid in broker.queue_uids())
    return {
        uid
        for uid, driver in drivers
        if driver is not None
        and driver.error is None
        and driver.is_damaged
        and driver.lacks_entries
    }


def _is_damaged(broker: Broker, uid: int) -> bool:
    driver = broker.host.driver_of(uid)
    return driver is not None and driver.error is None and driver.is_damaged


async def _repair(broker: Broker, uid: int) -> None:
    queue = broker.queue_of(uid)
    if queue is None or queue.type != "quorum":
        return
    name = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    log.warning("%s: messages are lost on this disk, its replica is made anew", name)
    try:
        for change in (shrink_member, grow_member):
            current = broker.queue_of(uid)
            if current is None:
                return
            outcomes = await change(broker, broker.node, queues=[current], timeout_s=STEP_S)
            if error := next((outcome.error for outcome in outcomes if outcome.error), ""):
                log.warning("%s: not repaired yet: %s", name, error)
                return
        async with asyncio.timeout(STEP_S):
            while _is_damaged(broker, uid):  # noqa: ASYNC110
                # A new log has no vote before it holds what the others have, and nothing tells.
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        log.warning("%s: the new replica is not filled yet", name)
        return
    except (MembershipError, Unavailable) as error:
        log.warning("%s: not repaired yet: %s", name, error)
        return
    log.warning("%s: the replica is whole again", name)
