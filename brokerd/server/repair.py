"""A replica that has lost messages for good leaves its queue's group and comes back with a new log.

A damaged replica gives up its vote and is refilled by its leader (cluster/inbox.py).  Entries below
its snapshot come with no command any more, and Raft has no way to ask for them: without this the
replica would wait, without a vote, until the last of these messages is settled.  The way out is
the one that people have, `delete_member` and `add_member`, as one wish in the catalog: the leader
checks that the others can do without, takes the replica out and in again, and the new log is filled
from its snapshot (replication.md §1, G8).  Whatever becomes of this member, the wish stands.

The catalog's replica needs none of this: its snapshots hold everything.  Started by app.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from brokerd.core.catalog_objects import Queue
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.membership_wishes import MembershipError, renew_member

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: How often it is looked.  A loss that lasts from one look to the next is acted on: consumers may
#: settle the messages before.
LOOK_S = 10.0
POLL_S = 0.2
#: How long one repair may take before the next one's turn; it goes on by itself behind that.
STEP_S = 120.0


async def watch(broker: Broker) -> None:
    """Repair one replica after the other, for as long as the broker runs."""
    repair = Repair(broker)
    while True:
        await asyncio.sleep(LOOK_S)
        await repair.look()


class Repair:
    """State: groups whose replica lacked messages at the last look."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lacking: set[int] = set()
        #: What could not be done was said once.
        self._said: set[int] = set()

    async def look(self) -> None:
        """Have made anew what still lacks messages."""
        found = self._find()
        self._said &= found
        lasting, self._lacking = found & self._lacking, found
        for uid in lasting:
            await self._renew(uid)

    def _find(self) -> set[int]:
        """Return the quorum queues in which nothing but another log would help the replica here."""
        broker = self._broker
        drivers = ((uid, broker.host.driver_of(uid)) for uid in broker.queue_uids())
        return {
            uid
            for uid, driver in drivers
            if driver is not None
            and driver.error is None
            and driver.is_damaged
            and driver.lacks_entries
        }

    async def _renew(self, uid: int) -> None:
        queue, driver = self._broker.queue_of(uid), self._broker.host.driver_of(uid)
        if queue is None or driver is None:
            return
        log_uid = driver.log_uid
        try:
            await renew_member(self._broker, self._broker.node, queue)
        except (MembershipError, Unavailable) as refusal:
            if uid not in self._said:
                self._said.add(uid)
                log.warning(
                    "%s: messages are lost on this disk, and its replica cannot be made anew yet: "
                    "%s",
                    _name(queue),
                    refusal,
                )
            return
        log.warning("%s: messages are lost on this disk, its replica is made anew", _name(queue))
        await self._wait_for_vote(uid, log_uid)

    async def _wait_for_vote(self, uid: int, before: int) -> None:
        """A new log has no vote before it holds what the others have, and nothing tells."""
        try:
            async with asyncio.timeout(STEP_S):
                while not self._is_whole(uid, before):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return
        if (queue := self._broker.queue_of(uid)) is not None:
            log.warning("%s: the replica is whole again", _name(queue))

    def _is_whole(self, uid: int, before: int) -> bool:
        """Tell whether the replica works with another log than before, or is not needed any more.

        Between the two logs there is none.
        """
        if self._broker.queue_of(uid) is None:
            return True
        driver = self._broker.host.driver_of(uid)
        return (
            driver is not None
            and driver.log_uid != before
            and driver.error is None
            and not driver.is_damaged
        )


def _name(queue: Queue) -> str:
    return f"queue '{queue.name}' in vhost '{queue.vhost}'"
