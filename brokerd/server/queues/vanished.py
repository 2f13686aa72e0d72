"""Messages of queues that are deleted without a word of their own, which are counted and logged.

A vhost that goes takes its queues along.  And the others delete a queue of this member, or make it
anew, while this one is away (members/home_members.py): only this one knows what was in it.
It may never be opened again: after a restart the catalog tells of the deletion, or no longer knows
the queue, before the queues are opened, and only its log is there.  Notified by queues/replicas.py.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from typing import NamedTuple, Protocol

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue import queue_summary
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.storage.errors import CorruptLog, DamagedEntry

log = logging.getLogger(__name__)


class Vanished(NamedTuple):
    """A queue that the catalog has no more, and why if that is known."""

    uid: int
    vhost: str
    name: str
    cause: str = ""


class Groups(Protocol):
    """The replicas and logs of this member."""

    def has_group(self, uid: int) -> bool:
        """Say whether there is a replica of a group."""
        ...

    def read_alone(self, uid: int, machine: QueueMachine) -> bool:
        """Have a machine see what the log holds of a group whose one member is this one; False:
        there is none.
        """
        ...


class Queues(Protocol):
    """The queues that are here (queues/directory.py)."""

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def messages_of(self, uid: int) -> int:
        """Return how many messages are in a queue that has a replica here."""
        ...


class Dropped(Protocol):
    """Counts and logs (messages/dropped.py)."""

    def of_vanished(
        self, vhost: str, queue: str, cause: str, messages: int, *, was_away: bool
    ) -> None:
        """A queue is gone without its own word."""
        ...


class VanishedQueues:
    """State: until the queues are opened, those that this member's own catalog had, and those of
    whose deletion it was told.
    """

    def __init__(self, queues: Queues, groups: Groups, dropped: Dropped) -> None:
        self._queues = queues
        self._groups = groups
        self._dropped = dropped
        self._known: dict[int, Queue] = {}
        self._told: dict[int, Vanished] = {}
        self._is_loaded = False

    def remember(self, queues: Iterable[Queue]) -> None:
        """A snapshot is about to replace the catalog, in which these are: it tells of no
        deletions.
        """
        if not self._is_loaded:
            self._known |= {queue.uid: queue for queue in queues}

    def vanishing(self, gone: Vanished) -> None:
        """A queue is no more; its replica is still here, if one was opened."""
        uid = gone.uid
        if not self._groups.has_group(uid):
            if not self._is_loaded:
                self._told[uid] = gone
        elif self._queues.leads(uid):
            messages = self._queues.messages_of(uid)
            self._dropped.of_vanished(*gone[1:], messages, was_away=False)
        else:
            # Opened just now, say: it has no leader yet, or never gets one.
            self._read(gone)

    def loaded(self, known: Container[int]) -> None:
        """The queues that the catalog knows are open; logs of all others are still there."""
        for uid, queue in self._known.items():
            self._told.setdefault(uid, Vanished(uid, queue.vhost, queue.name))
        told, self._told, self._known, self._is_loaded = self._told, {}, {}, True
        for uid, gone in told.items():
            if uid not in known:
                self._read(gone)

    def _read(self, gone: Vanished) -> None:
        machine = QueueMachine()
        try:
            if not self._groups.read_alone(gone.uid, machine):
                return
        except (DamagedEntry, CorruptLog) as error:
            log.warning(
                "queue '%s' in vhost '%s' went while this member was away; how many messages it "
                "had cannot be read: %s",
                gone.name,
                gone.vhost,
                error,
            )
            return
        messages = queue_summary.messages_of(machine.summary())
        self._dropped.of_vanished(*gone[1:], messages, was_away=True)
