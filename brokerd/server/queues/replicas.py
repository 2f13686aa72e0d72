"""The groups of queues that this member takes part in: opened and closed as the catalog says.

Receives every change of a queue, and all queues after a start or an installed snapshot; notifies
the components that work for a queue while it is here.  Built by composition.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass

from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.core.catalog import policy, queue_membership
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.queues.vanished import Vanished

OfGroup = Callable[[int], None]


@dataclass(slots=True, frozen=True)
class Listeners:
    """The callbacks of each event, called in order; the first argument is the group's uid."""

    #: A replica was opened: the number of members, and the catalog's revision that put it here.
    opened: Callable[[int, int, int], None]
    #: The queue goes on without this member: before its replica is closed, and after.
    leaving: Sequence[OfGroup]
    left: Sequence[OfGroup]
    #: The queue is no more: before its replica is closed, with its name and why, and by its uid,
    #: and after.
    vanishing: Callable[[Vanished], None]
    ending: Sequence[OfGroup]
    ended: Sequence[OfGroup]
    #: A queue that is led here may be another one now.
    changed: OfGroup
    #: The same, with the uids of these queues; the logs of all others are still there.
    logs_known: Callable[[Collection[int]], None]
    #: All queues are open of which the catalog knows after a start or an installed snapshot.
    loaded: Callable[[], None]


class QueueGroups:
    """State: how many queues were declared, whether the first reading of the catalog is done; which
    queues there are stands in queues/directory.py.
    """

    def __init__(
        self,
        host: Host,
        groups: GroupClient,
        view: CatalogState,
        records: dict[int, Queue],
        led: Container[int],
        listeners: Listeners,
    ) -> None:
        """records: all queues by their groups' uids, changed here only.  led: those whose leader is
        here, as they are whenever it is asked.
        """
        self._host = host
        self._groups = groups
        self._view = view
        self._led = led
        self._listeners = listeners
        self._queues = records
        #: All that the catalog knew at the start is open.
        self._is_loaded = False
        #: Queues that came into being since this member's start, for the metrics; and of these
        #: those that it is the first member of, so that over all members each counts once.
        self.declared_total = 0
        self.created_here_total = 0
        self.deleted_here_total = 0

    # ---- what the catalog says ------------------------------------------------------------------

    def load(self) -> None:
        """Open what the catalog says after a start or an installed snapshot."""
        known = set(self._queues)
        for queue in self._view.queues():
            known.discard(queue.uid)
            self._open(queue)
        for uid in known:
            queue = self._queues[uid]
            self._close(Vanished(uid, queue.vhost, queue.name))
        self._is_loaded = True
        # A catalog that is not whole may not know them any more.
        if not self._host.status_of(CATALOG_GROUP).is_damaged:
            self._listeners.logs_known(self._queues.keys())
            # Queues that were deleted, and groups that let go of this member, while it was away.
            self._host.forget_logs(())
        # What found no queue until now, since no change told of it, finds one.
        self._listeners.loaded()

    def topology_changed(self, change: TopologyChanged) -> None:
        """A queue was declared, deleted, or its members are others."""
        queue = self._view.queue(change.vhost, change.name)
        if change.deleted or queue is None or queue.uid != change.uid:
            self.deleted_here_total += self._is_first_of(self._queues.get(change.uid))
            cause = change.cause if change.deleted else ""
            self._close(Vanished(change.uid, change.vhost, change.name, cause))
        if not change.deleted and queue is not None:
            if queue.uid not in self._queues:
                self.declared_total += 1
                self.created_here_total += self._is_first_of(queue)
            self._open(queue)
            if queue.uid in self._led:
                self._listeners.changed(queue.uid)

    def _is_first_of(self, queue: Queue | None) -> bool:
        return queue is not None and queue.members[:1] == [self._host.node]

    def _open(self, queue: Queue) -> None:
        uid, membership, node = queue.uid, queue.membership, self._host.node
        self._queues[uid] = queue
        members = [NodeId(name) for name in queue.members]
        self._groups.set_members(uid, members)
        log_uid = queue_membership.log_uid(uid, membership, node)
        is_here = self._host.has_group(uid)
        if is_here and (node not in members or self._host.status_of(uid).log_uid != log_uid):
            self._leave(uid)
        if node in members and not self._host.has_group(uid):
            # Once the members have changed, only a log or a leader can say who they are.
            first = members if membership.is_founding else []
            # A queue never changes its type, so the machine knows it before its leader tells the
            # rest, which may come behind the first messages (QueueLeaders.propose).
            machine = QueueMachine(policy.first_queue_options(queue))
            volatile = not queue.durable
            self._host.open_group(
                uid,
                first,
                machine,
                volatile=volatile,
                log_uid=log_uid,
                is_made_now=self._is_loaded,
                is_first=node not in membership.joined,
            )
            since = queue_membership.since(membership, node)
            self._listeners.opened(uid, len(members), since)
            if members[0] == node:
                # The first member is the leader that the locator chose (R-QQ-5).
                self._host.transfer_leadership(uid, node)

    def _leave(self, uid: int) -> None:
        """The queue goes on without this member, whose clients go on with the queue."""
        for tell in self._listeners.leaving:
            tell(uid)
        self._host.close_group(uid, forget=True)
        for tell in self._listeners.left:
            tell(uid)

    def _close(self, gone: Vanished) -> None:
        uid = gone.uid
        self._listeners.vanishing(gone)
        for tell in self._listeners.ending:
            tell(uid)
        self._queues.pop(uid, None)
        if self._host.has_group(uid):
            self._host.close_group(uid, forget=True)
        self._groups.forget(uid)
        for tell in self._listeners.ended:
            tell(uid)
