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
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from brokerd.core.catalog_objects import Queue
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.membership_wishes import (
    MembershipError,
    Outcome,
    grow_member,
    shrink_member,
)

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: How often it is looked.  A loss that lasts from one look to the next is acted on: consumers may
#: settle the messages before.
LOOK_S = 10.0
POLL_S = 0.2
#: How long one half of a repair may take; it goes on by itself behind that.
STEP_S = 120.0

#: shrink_member or grow_member.
Change: TypeAlias = Callable[..., Awaitable[list[Outcome]]]


async def watch(broker: Broker) -> None:
    """Repair one replica after the other, for as long as the broker runs."""
    repair = Repair(broker)
    while True:
        await asyncio.sleep(LOOK_S)
        await repair.look()


class Repair:
    """State: groups whose replica lacked messages at the last look, and those that it has left and
    has yet to come back to.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lacking: set[int] = set()
        self._left: set[int] = set()
        #: What could not be done was said once.
        self._said: set[int] = set()

    async def look(self) -> None:
        """Take out what still lacks messages, and bring back what is out."""
        found = self._find()
        for uid in found & self._lacking:
            if await self._is_done(uid, shrink_member):
                self._left.add(uid)
        self._lacking = found
        for uid in list(self._left):
            if await self._is_done(uid, grow_member):
                self._left.discard(uid)
                await self._wait_for_vote(uid)
        self._said &= found | self._left

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

    async def _is_done(self, uid: int, change: Change) -> bool:
        """Tell whether the change was made, or is not needed any more."""
        queue = self._broker.queue_of(uid)
        if queue is None:
            return True
        try:
            outcomes = await change(
                self._broker, self._broker.node, queues=[queue], timeout_s=STEP_S
            )
            error = next((outcome.error for outcome in outcomes if outcome.error), "")
        except (MembershipError, Unavailable) as refusal:
            error = str(refusal)
        if error and uid not in self._said:
            self._said.add(uid)
            log.warning(
                "%s: messages are lost on this disk, and its replica cannot be made anew yet: %s",
                _name(queue),
                error,
            )
        elif not error and change is shrink_member:
            log.warning(
                "%s: messages are lost on this disk, its replica is made anew", _name(queue)
            )
        return not error

    async def _wait_for_vote(self, uid: int) -> None:
        """A new log has no vote before it holds what the others have, and nothing tells."""
        try:
            async with asyncio.timeout(STEP_S):
                while self._is_damaged(uid):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return
        if (queue := self._broker.queue_of(uid)) is not None:
            log.warning("%s: the replica is whole again", _name(queue))

    def _is_damaged(self, uid: int) -> bool:
        if self._broker.queue_of(uid) is None:
            return False
        driver = self._broker.host.driver_of(uid)
        return driver is not None and driver.error is None and driver.is_damaged


def _name(queue: Queue) -> str:
    return f"queue '{queue.name}' in vhost '{queue.vhost}'"
