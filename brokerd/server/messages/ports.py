"""What this room needs of the member around it: one Protocol per subject.

Whoever builds the room's classes hands in something that has these; nothing here knows what that
is.  What only one module needs stands in that module.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.core.catalog.catalog_objects import ConnectionId, Queue
from brokerd.core.catalog.down_homes import DownHomes
from brokerd.core.catalog.router import Router, RouteResult
from brokerd.core.message import Content
from brokerd.core.profiles import Profile
from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import NodeId
from brokerd.server.messages.dropped import Dropped
from brokerd.server.messages.turn_batches import TurnBatches
from brokerd.telemetry.counters import Counters


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
    """What publishing channels are made of."""

    @property
    def batches(self) -> TurnBatches:
        """Return the way to the queues' leaders."""
        ...

    def next_uid(self) -> int:
        """Return the number of a new channel, unique within the incarnation."""
        ...


class Process(Sender, Protocol):
    """The numbers of connections and calls, too, which are unique within a life."""

    def connection_id(self, uid: int) -> ConnectionId:
        """Return the cluster-wide id of a connection of this process."""
        ...


class Counting(Protocol):
    """Who counts a message that has its route."""

    @property
    def profile(self) -> Profile:
        """Return which rules hold where they may differ."""
        ...

    @property
    def counters(self) -> Counters:
        """Return what counts for telemetry."""
        ...


class Routing(Counting, Protocol):
    """Where a message goes, and who counts it."""

    @property
    def router(self) -> Router:
        """Return what knows exchanges and bindings."""
        ...

    @property
    def down_homes(self) -> DownHomes:
        """Return which queues refuse, since their home member is down."""
        ...

    @property
    def dropped(self) -> Dropped:
        """Return what counts messages that went for no client's reason."""
        ...

    def unroutable(self, vhost: str, exchange: str, result: RouteResult, count: int) -> None:
        """No queue takes these messages."""
        ...

    def warn(self, text: str) -> None:
        """Log a warning, the same one now and then only."""
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


class Client(Protocol):
    """Somebody who publishes and consumes: an AMQP connection, a call of the Messages service."""

    @property
    def vhost(self) -> str:
        """Return where."""
        ...

    @property
    def user(self) -> str:
        """Return who has logged in."""
        ...
