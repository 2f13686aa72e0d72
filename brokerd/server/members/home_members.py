"""Home members that are down: their classic queues refuse, or go with them (ADR 70).

A classic queue lives at one member.  Once that member has been silent for `home_down_after_ms`, the
others stop waiting for it.  A durable queue refuses whatever it is asked, with the member's name; a
queue that does not outlive its home (core/catalog/down_homes.py) is as if it were not there, and is
deleted once the silence has lasted `home_down_delete_ms`.  Consumers of both end.  When the member
is heard again, its queues take commands again; it finds by itself what was deleted or made anew.

A member whose disk does not answer (ADR 68) is there and has its clients: only its durable queues
refuse, for which a command would wait for the disk, and nothing ends.

Silence is a matter of time alone, so this looks by itself; start.py begins it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from brokerd.cluster.groups import damage
from brokerd.config import QueueConfig
from brokerd.core.catalog import catalog_commands, down_homes, names
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog import topology
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import ports
from brokerd.server.members.stuck_queues import QUEUE_BYTES_MAX, VHOST_BYTES_MAX

log = logging.getLogger(__name__)

#: Time between two looks: how late a member's silence is noticed at most.
LOOK_S = 0.25
#: Deletions of one command of the catalog.
DELETIONS_MAX = 256


class Silence(Protocol):
    """Who is heard, and who leads the catalog (cluster/groups/host.py)."""

    node: NodeId

    def silent_ms(self, node: NodeId) -> int:
        """Return for how long a member has not been heard; 0 while it counts as up."""
        ...

    def is_stalled(self, node: NodeId) -> bool:
        """Tell whether a member is up, this one perhaps, and its disk does not answer."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a group, None where that is not known here."""
        ...


class Consumers(Protocol):
    """The consumers of this member, by the groups of their queues."""

    def groups(self) -> Collection[int]:
        """Return the groups that have some."""
        ...

    def home_down(self, uid: int, reason: str) -> None:
        """Those of a group end."""
        ...


class Commands(Protocol):
    """Commands of this member to groups."""

    def home_down(self, node: NodeId, reason_of: Callable[[int], str]) -> None:
        """Those to groups that live at this member alone are refused."""
        ...

    def home_up(self, node: NodeId) -> None:
        """They are taken again."""
        ...


class Consumed(Protocol):
    """Which durable auto-delete queues have consumers (consumed_queues.py)."""

    def has_consumers(self, uid: int) -> bool:
        """Tell whether some member said so."""
        ...


class HomeMembers:
    """State: the members whose classic queues refuse, by whether they are down or stalled; which
    queues these are stands in the catalog's `down_homes`, written here only.
    """

    def __init__(
        self,
        config: QueueConfig,
        silence: Silence,
        catalog: ports.Catalog,
        queues: Mapping[int, Queue],
        consumers: Consumers,
        commands: Commands,
        consumed: Consumed,
        rerouted: Callable[[], None],
    ) -> None:
        """queues: all by their groups' uids.  rerouted: called when routes are other ones now."""
        self._after_ms = config.home_down_after_ms
        self._delete_ms = max(config.home_down_delete_ms, config.home_down_after_ms)
        self._silence = silence
        self._catalog = catalog
        self._queues = queues
        self._consumers = consumers
        self._commands = commands
        self._consumed = consumed
        self._rerouted = rerouted
        self._down: set[NodeId] = set()
        #: Members that are up, with a disk that does not answer.
        self._stalled: set[NodeId] = set()

    # ---- news -------------------------------------------------------------------------------

    def node_changed(self, node: NodeId, up: bool) -> None:
        """A member is heard again, or suspected."""
        if up and node in self._down:
            self._down.discard(node)
            self._take_back(node)
            log.info("home member %s is back: its classic queues take messages again", node)

    def _take_back(self, node: NodeId) -> None:
        for queue in self._of_home(node):
            self._catalog.view.down_homes.forget(queue.uid)
        self._commands.home_up(node)
        self._routes_changed()

    def queue_changed(self, change: TopologyChanged) -> None:
        """A queue was declared, deleted or changed."""
        if change.kind != "queue":
            return
        queue = self._queues.get(change.uid)
        if change.deleted or queue is None:
            self._catalog.view.down_homes.forget(change.uid)
        elif down_homes.has_home(queue) and queue.members[0] in self._down | self._stalled:
            self._judge(queue)
            self._routes_changed()

    def load(self) -> None:
        """The catalog was read anew, after a start or from a snapshot."""
        down = self._catalog.view.down_homes
        for uid in [uid for uid in (*down.absent, *down.refusing) if uid not in self._queues]:
            down.forget(uid)
        for node in self._down | self._stalled:
            for queue in self._of_home(node):
                self._judge(queue)
        self._routes_changed()

    # ---- looking ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Look for as long as the broker runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    async def run_deletions(self) -> None:
        """Delete what went with its home, for as long as the broker runs.

        Beside the looks: without a majority a deletion waits for its time-out, and another member
        may fall silent meanwhile.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            await self.delete_absent()

    async def delete_absent(self) -> None:
        """Delete the queues that went with members that have been silent for long enough."""
        for node in sorted(self._down):
            if self._silence.silent_ms(node) >= self._delete_ms:
                await self._delete_absent(node)

    def look(self) -> None:
        """See which members have been silent for too long, and whose disks do not answer."""
        members = {NodeId(name) for name in self._catalog.view.members()} | {self._silence.node}
        for node in sorted(members | self._down | self._stalled):
            is_stalled = self._silence.is_stalled(node)
            if node not in self._down and is_stalled != (node in self._stalled):
                self._stall_changed(node, is_stalled)
            silent_ms = 0 if node == self._silence.node else self._silence.silent_ms(node)
            if node not in self._down and silent_ms >= self._after_ms:
                self._went_down(node)

    def _of_home(self, node: NodeId) -> list[Queue]:
        return [
            queue
            for queue in self._queues.values()
            if down_homes.has_home(queue) and queue.members[0] == node
        ]

    def _stall_changed(self, node: NodeId, is_stalled: bool) -> None:
        if not is_stalled:
            self._stalled.discard(node)
            self._take_back(node)
            log.info("the disk of home member %s answers: its classic queues go on", node)
            return
        self._stalled.add(node)
        queues = self._of_home(node)
        for queue in queues:
            self._judge(queue)
        refusing = sum(queue.uid in self._catalog.view.down_homes.refusing for queue in queues)
        log.warning(
            "the disk of home member %s does not answer: %d of its classic queues refuse until "
            "it does",
            node,
            refusing,
        )
        self._routes_changed()
        self._commands.home_down(node, self.reason_of)

    def _went_down(self, node: NodeId) -> None:
        self._stalled.discard(node)
        self._down.add(node)
        queues = self._of_home(node)
        for queue in queues:
            self._judge(queue)
        absent = sum(queue.uid in self._catalog.view.down_homes.absent for queue in queues)
        log.warning(
            "home member %s is down: %d of its classic queues refuse until it is back, "
            "%d are gone unless it is back within %d s of silence",
            node,
            len(queues) - absent,
            absent,
            self._delete_ms // 1000,
        )
        self._routes_changed()
        self._commands.home_down(node, self.reason_of)
        with_consumers = set(self._consumers.groups())
        for queue in queues:
            if queue.uid in with_consumers:
                self._consumers.home_down(queue.uid, f"{_home(queue)} is down")

    def _judge(self, queue: Queue) -> None:
        down = self._catalog.view.down_homes
        down.forget(queue.uid)
        if queue.members[0] in self._stalled:
            # What is not durable is in memory alone, and does not wait for the disk.
            if queue.durable and queue.exclusive_owner is None:
                down.refusing.add(queue.uid)
            return
        has_consumers = queue.auto_delete and self._consumed.has_consumers(queue.uid)
        if down_homes.outlives_home(queue, has_consumers):
            down.refusing.add(queue.uid)
        else:
            down.absent.add(queue.uid)

    def reason_of(self, uid: int) -> str:
        """Return why a queue whose home is down takes nothing; "": it waits for its leader."""
        queue = self._queues.get(uid)
        if queue is None or not down_homes.has_home(queue):
            return ""
        if uid in self._catalog.view.down_homes.absent:
            return names.missing("queue", queue.vhost, queue.name)
        if queue.members[0] in self._stalled:
            is_refusing = uid in self._catalog.view.down_homes.refusing
            return f"{_home(queue)} has a disk that does not answer" if is_refusing else ""
        return f"{_home(queue)} is down"

    def _routes_changed(self) -> None:
        self._catalog.view.homes_changed()
        self._rerouted()

    async def _delete_absent(self, node: NodeId) -> None:
        """Delete what went with its home; the catalog's leader does it for all members."""
        while (
            node in self._down
            and self._silence.leader_of(CATALOG_GROUP) == self._silence.node
            and (gone := self._absent_of(node))
        ):
            operations = [
                catalog_commands.delete(
                    "queue", queue.vhost, queue.name, uid=queue.uid, cause=topology.HOME_DOWN
                )
                for queue in gone
            ]
            try:
                await self._catalog.write({"do": "batch", "operations": operations})
            except Unavailable as error:
                log.info("queues of the down member %s are not deleted yet: %s", node, error)
                return
            log.warning("%d queues went with their home member %s", len(gone), node)

    def _absent_of(self, node: NodeId) -> list[Queue]:
        found = []
        for uid in self._catalog.view.down_homes.absent:
            queue = self._queues.get(uid)
            if queue is not None and queue.members[0] == node:
                found.append(queue)
                if len(found) == DELETIONS_MAX:
                    break
        return found


def _home(queue: Queue) -> str:
    name = damage.shortened(queue.name, QUEUE_BYTES_MAX)
    vhost = damage.shortened(queue.vhost, VHOST_BYTES_MAX)
    return f"home member {queue.members[0]} of queue '{name}' in vhost '{vhost}'"
