"""A replica that has lost messages for good leaves its queue's group and comes back with a new log.

A damaged replica gives up its vote and is refilled by its leader
(cluster/groups/replica_health.py), which is reminded where nothing else is said.
Entries below its snapshot come with no command any more, and Raft has no way to ask for them:
without this the replica would wait, without a vote, until the last of these messages is settled.
The way out is the one that people have, `delete_member` and `add_member`, as one wish in the
catalog: the leader checks that the others can do without, takes the replica out and in again, and
the new log is filled from its snapshot (replication.md §1, G8).  Whatever becomes of this member,
the wish stands.

The catalog's replica needs none of this: its snapshots hold everything.  Started by app.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import ports
from brokerd.server.members.replica_changes import MembershipError, renew_member

log = logging.getLogger(__name__)

#: How often it is looked.
LOOK_S = 1.0
#: Looks for which a loss must last before it is repaired: consumers may settle the messages before,
#: and a new log has all of the queue copied.
LOOKS = 3
#: Replicas that are made anew at once; their leaders work on as many (group_membership.py).
AT_ONCE = 16
POLL_S = 0.2
#: How long one repair may take before the next one's turn; it goes on by itself behind that.
STEP_S = 120.0


async def watch(repair: Repair) -> None:
    """Repair replicas for as long as the broker runs."""
    while True:
        await asyncio.sleep(LOOK_S)
        repair.look()


class Catalog(ports.Catalog, ports.Queues, Protocol):
    """The catalog, and its queues by their groups."""


class Damaged(Protocol):
    """Replicas here that have lost something (cluster/groups/refilling.py)."""

    def waiting(self) -> list[int]:
        """Return the groups whose replica here has no vote until their leader says something."""
        ...

    def lacking(self) -> list[int]:
        """Return the groups in which only another log would help the replica here."""
        ...


class Repair:
    """State: how many looks ago each group's replica lacked messages first; those that are being
    made anew.
    """

    def __init__(
        self,
        catalog: Catalog,
        host: ports.Replicas,
        damaged: Damaged,
        nudge: Callable[[Sequence[int]], None],
        spawn: ports.Spawn,
    ) -> None:
        """nudge: has leaders of groups say something (refill.py)."""
        self._catalog = catalog
        self._host = host
        self._damaged = damaged
        self._nudge = nudge
        self._spawn = spawn
        self._looks: dict[int, int] = {}
        self._working: set[int] = set()
        #: What could not be done was said once.
        self._said: set[int] = set()

    def look(self) -> None:
        """Have made anew what still lacks messages, and refilled what can be."""
        self._nudge(self._damaged.waiting())
        found = [uid for uid in self._damaged.lacking() if self._is_queue(uid)]
        self._said.intersection_update(found)
        self._looks = {uid: self._looks.get(uid, 0) + 1 for uid in found}
        for uid, looks in self._looks.items():
            if looks > LOOKS and uid not in self._working and len(self._working) < AT_ONCE:
                self._working.add(uid)
                self._spawn(self._work(uid))

    def _is_queue(self, uid: int) -> bool:
        return self._catalog.queue_of(uid) is not None

    async def _work(self, uid: int) -> None:
        try:
            await self._renew(uid)
        finally:
            self._working.discard(uid)

    async def _renew(self, uid: int) -> None:
        host, queue = self._host, self._catalog.queue_of(uid)
        if queue is None or not host.has_group(uid):
            return
        log_uid = host.status_of(uid).log_uid
        try:
            await renew_member(self._catalog, host, host.node, queue)
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
        if (queue := self._catalog.queue_of(uid)) is not None:
            log.warning("%s: the replica is whole again", _name(queue))

    def _is_whole(self, uid: int, before: int) -> bool:
        """Tell whether the replica works with another log than before, or is not needed any more.

        Between the two logs there is none.
        """
        host = self._host
        if self._catalog.queue_of(uid) is None:
            return True
        if not host.has_group(uid):
            return False
        status = host.status_of(uid)
        return status.log_uid != before and not (status.error or status.is_damaged)


def _name(queue: Queue) -> str:
    return f"queue '{queue.name}' in vhost '{queue.vhost}'"
