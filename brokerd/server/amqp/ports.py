"""What AMQP connections and channels need of the member that they are at, by subject.

Each protocol names what this room uses and nothing else.  The two dataclasses hold what all
connections and all channels share; composition.py makes them once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol

from brokerd.server.access.connections import ClientT, Connections
from brokerd.server.catalog import ports

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_client import GroupClient
    from brokerd.config import BrokerConfig
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.message import Content
    from brokerd.core.profiles import Profile
    from brokerd.core.queue.effects import Run
    from brokerd.server.access.admission import Admission
    from brokerd.server.access.authentication import Authenticator
    from brokerd.server.loop.timers import DeadlineWheel
    from brokerd.server.messages.partial_messages import PartialMessages
    from brokerd.server.messages.ports import Process, Routing
    from brokerd.server.messages.reply_to import Replies
    from brokerd.server.messages.tracing import Tracer
    from brokerd.server.queues.client import QueueClient
    from brokerd.server.queues.deliveries import DeliveryHub
    from brokerd.telemetry.counters import Counters


class Catalog(ports.Catalog, Protocol):
    """The objects of the cluster as this member knows them, and changes of them."""

    #: Routes and rights that were looked up are good for as long as this stays the same.
    topology_revision: int

    def exclusive_queues_end(self, connection_uid: int) -> asyncio.Task[None]:
        """A connection has ended: its exclusive queues go (R-Q-9); done when they are gone."""
        ...


class Readable(Protocol):
    """Queues whose messages may be read here."""

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def contents_if_here(self, uid: int, run: Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        ...


class Queues(Readable, Protocol):
    """The queues, wherever their leaders are."""

    groups: GroupClient

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None once it is deleted."""
        ...


@dataclass(slots=True, frozen=True)
class ChannelServices:
    """What the channels of all connections share."""

    config: BrokerConfig
    profile: Profile
    identity: Process
    catalog: Catalog
    #: Makes and deletes queues.
    objects: ports.Audited
    queues: Queues
    queue_client: QueueClient
    messages: Routing
    deliveries: DeliveryHub
    replies: Replies
    tracer: Tracer
    counters: Counters
    #: The monotonic clock of the connections' deadlines, in milliseconds.
    now_ms: Callable[[], int]


@dataclass(slots=True, frozen=True)
class ConnectionServices(Generic[ClientT]):
    """What all connections share."""

    channels: ChannelServices
    connections: Connections[ClientT]
    authenticator: Authenticator
    admission: Admission
    wheel: DeadlineWheel
    partial_messages: PartialMessages
    #: The wall clock in milliseconds.
    clock_ms: Callable[[], int]
    #: The text of connection.blocked, "" when no alarm is on anywhere (R-ALM-1, -5).
    blocking_reason: Callable[[], str]
    #: Calls once all groups of the flush under way have run, or else soon.
    call_after_flush: Callable[[Callable[[], None]], None]
