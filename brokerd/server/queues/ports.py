"""What this room needs of the member around it: one Protocol per subject."""

from __future__ import annotations

from typing import Protocol

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import NodeId


class Identity(Protocol):
    """Which member this is, and in which of its lives."""

    @property
    def node(self) -> str:
        """Return this member's name."""
        ...

    @property
    def incarnation(self) -> int:
        """Return the number of this start; it rises."""
        ...


class Sender(Identity, Protocol):
    """The numbers of channels."""

    def next_uid(self) -> int:
        """Return the number of a new channel, unique within the incarnation."""
        ...


class Queues(Protocol):
    """The queues of the catalog, and the messages of those that have a replica here."""

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None if it has been deleted."""
        ...

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        ...

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def contents(self, uid: int, run: Run) -> list[Content]:
        """Return the messages of a run that is live here."""
        ...


class Members(Protocol):
    """The other members of the cluster."""

    def alive(self) -> set[NodeId]:
        """Return those that are heard."""
        ...

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Send one of them something that a group's leader has for it; it may get lost."""
        ...
