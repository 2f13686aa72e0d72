"""What queues had counted when they ended here, for telemetry: a queue that is gone is not asked.

A queue that lived for less than an interval is known by this alone.  Kept by queues/directory.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions

#: Ends between two intervals; what is beyond is counted.  A thousand reply queues a second for ten
#: seconds, some kilobytes each.
ENDS_MAX = 10_000


class Groups(Protocol):
    """The replicas of this member."""

    def has_group(self, uid: int) -> bool:
        """Say whether there is one of a group."""
        ...

    def status_of(self, uid: int) -> GroupStatus:
        """Return the state of one that is here."""
        ...


class Queues(Protocol):
    """The queues that are here (queues/directory.py)."""

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a group."""
        ...

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        ...


@dataclass(slots=True, frozen=True)
class QueueEnd:
    """A queue that was led here, as it was at its end, and how many messages went with it."""

    queue: Queue
    overview: Mapping[str, Any]
    options: QueueOptions
    status: GroupStatus
    #: It expired, or went by itself (auto-delete); else it was deleted.
    is_expired: bool
    messages: int


class QueueEnds:
    """State: ends since they were taken last; messages of queues whose end is under way."""

    def __init__(self, queues: Queues, groups: Groups) -> None:
        self._queues = queues
        self._groups = groups
        self._ends: list[QueueEnd] = []
        self._under_way: dict[tuple[str, str], tuple[bool, int]] = {}
        #: Whether anybody takes them.
        self.is_wanted = False
        #: Ends beyond ENDS_MAX.
        self.lost = 0

    def dropped(self, vhost: str, queue: str, is_expired: bool, messages: int) -> None:
        """A queue ends with this number of messages; the catalog will say so."""
        if self.is_wanted and len(self._under_way) < ENDS_MAX:
            self._under_way[vhost, queue] = is_expired, messages

    def ending(self, uid: int) -> None:
        """A queue is no more; its replica is still here."""
        queue = self._queues.queue_of(uid)
        if queue is None or not self.is_wanted:
            return
        known = self._under_way.pop((queue.vhost, queue.name), None)
        if not self._queues.leads(uid) or not self._groups.has_group(uid):
            return
        if len(self._ends) >= ENDS_MAX:
            self.lost += 1
            return
        machine = self._queues.machine(uid)
        overview = machine.overview()
        is_expired = overview["deleted"] in ("expired", "auto-delete")
        left = overview["ready"] + overview["delayed"] + overview["unacked"]
        is_expired, messages = known or (is_expired, left)
        status = self._groups.status_of(uid)
        self._ends.append(QueueEnd(queue, overview, machine.options, status, is_expired, messages))

    def take(self) -> tuple[list[QueueEnd], int]:
        """Return the ends since the last time, and how many more there were."""
        ends, self._ends = self._ends, []
        lost, self.lost = self.lost, 0
        return ends, lost
