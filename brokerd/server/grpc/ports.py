"""What the services of the gRPC port need of the member that they are at, by subject.

Each protocol names what this room uses and nothing else.  The dataclasses hold what the calls of a
service share; composition.py makes them once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.raft.messages import NodeId
from brokerd.server.catalog import ports, topology_batch
from brokerd.server.members import ports as members_ports

if TYPE_CHECKING:
    from brokerd.amqp.connection import AmqpConnection
    from brokerd.cluster.groups.group_client import GroupClient
    from brokerd.cluster.groups.host_events import GroupStatus
    from brokerd.config import LimitConfig
    from brokerd.core.alarms import AlarmSet
    from brokerd.core.catalog.catalog_effects import TopologyChanged
    from brokerd.core.catalog.catalog_machine import CatalogMachine
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.confirms import Confirms
    from brokerd.core.profiles import Profile
    from brokerd.core.queue.queue_machine import QueueMachine
    from brokerd.server.access.authentication import Authenticator
    from brokerd.server.access.blocked_clients import BlockedClients
    from brokerd.server.access.connections import GuestCall
    from brokerd.server.catalog.keyring import Keyring
    from brokerd.server.grpc.rpc_auth import Callers
    from brokerd.server.members.catalog_members import CatalogMembers
    from brokerd.server.memory_breakdown import MemoryBreakdown
    from brokerd.server.messages.delivery import DeliveryHub
    from brokerd.server.messages.ports import Process, Routing
    from brokerd.server.messages.publishing import OnWayLimits
    from brokerd.server.messages.reply_to import Replies
    from brokerd.server.variables import Variables


# ---- the Messages service -----------------------------------------------------------------------


class Topology(Protocol):
    """The objects of the cluster as this member sees them."""

    view: CatalogState
    #: Routes and rights that were looked up are good for as long as this stays the same.
    topology_revision: int


class Queues(ports.Queues, Protocol):
    """The queues, wherever their leaders are."""

    groups: GroupClient


class Calls(Protocol):
    """The register of who is connected, as far as calls stand in it."""

    @property
    def call_count(self) -> int:
        """Return how many calls are open."""
        ...

    def call_opened(self, call: GuestCall) -> None:
        """A call has been let in."""
        ...

    def call_gone(self, call: GuestCall) -> None:
        """A call has ended."""
        ...


@dataclass(slots=True, frozen=True)
class StreamServices:
    """What the Publish and Consume calls share."""

    limits: LimitConfig
    identity: Process
    topology: Topology
    queues: Queues
    messages: Routing
    deliveries: DeliveryHub
    replies: Replies
    on_way: OnWayLimits
    #: Those whom an alarm keeps from publishing.
    blocked: BlockedClients
    #: The wall clock.
    clock_ms: Callable[[], int]
    #: Why publishers wait, "" when no alarm is on anywhere (R-ALM-1).
    blocking_reason: Callable[[], str]


# ---- the Admin service --------------------------------------------------------------------------


class Catalog(ports.Catalog, Protocol):
    """The catalog, and who hears of its changes."""

    #: Told of each change; one that is full misses it.
    watchers: set[asyncio.Queue[TopologyChanged]]

    @property
    def machine(self) -> CatalogMachine:
        """Return what knows the last changes."""
        ...

    @property
    def keyring(self) -> Keyring:
        """Return what opens sealed parameters."""
        ...


class Groups(Protocol):
    """The groups of this member, and the members it hears."""

    def alive(self) -> set[NodeId]:
        """Return the members that are up, this one included."""
        ...

    def groups(self) -> list[int]:
        """Return the uids of all replicas here."""
        ...

    def has_group(self, uid: int) -> bool:
        """Tell whether a replica is here."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a group, None where that is not known here."""
        ...

    def status_of(self, uid: int) -> GroupStatus:
        """Return the state of a replica that is here."""
        ...


class KnownQueues(Protocol):
    """The queues of the catalog, and the replicas of this member."""

    #: Terms of the queues that this member leads.
    led: dict[int, int]

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None if it is deleted."""
        ...

    def queue_uids(self) -> list[int]:
        """Return the uids of all queues."""
        ...

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        ...


class TransactionFigures(Protocol):
    """What waits for a commit."""

    @property
    def publish_count(self) -> int:
        """Return how many messages wait."""
        ...

    settlement_count: int


class SharedLimit(Protocol):
    """The prefetch that the consumers of a channel share."""

    limit: int


class ListedChannel(Protocol):
    """An AMQP channel, as listings show it."""

    uid: int
    prefetch: int
    confirms: Confirms | None

    @property
    def tx(self) -> TransactionFigures | None:
        """Return the open transaction."""
        ...

    @property
    def consumers(self) -> Sized:
        """Return the consumers."""
        ...

    @property
    def unacked(self) -> Sized:
        """Return the deliveries that are not settled."""
        ...

    @property
    def shared(self) -> SharedLimit | None:
        """Return the prefetch of all consumers together."""
        ...


class Flow(Protocol):
    """Back-pressure of one connection."""

    @property
    def is_in_flow(self) -> bool:
        """Tell whether what is on its way to queues holds reading, or has a moment ago."""
        ...


class ListedConnection(Protocol):
    """An AMQP connection, as listings show it."""

    uid: int
    machine: AmqpConnection
    user: str
    vhost: str
    tls: bool
    peer: tuple[str, int]
    sock: tuple[str, int]
    connected_ms: int
    is_open: bool
    received_bytes: int
    sent_bytes: int

    @property
    def name(self) -> str:
        """Return RabbitMQ's form of a connection name."""
        ...

    @property
    def gate(self) -> Flow:
        """Return what holds its reading."""
        ...

    @property
    def sessions(self) -> Mapping[int, ListedChannel]:
        """Return the channels by number."""
        ...

    def close(self, code: int, text: str) -> None:
        """Close it, with the reason for the client and the log."""
        ...


class Clients(Protocol):
    """The AMQP connections of this member."""

    #: What other members last said of themselves: (memory used, limit, disk free, alarms).
    member_figures: dict[str, tuple[int, int, int, list[str]]]

    def __len__(self) -> int:
        """Return how many are open."""
        ...

    def all(self) -> Sequence[ListedConnection]:
        """Return the open ones."""
        ...

    def calls(self) -> Sequence[GuestCall]:
        """Return the calls of the Messages service that are open."""
        ...

    @property
    def blocked(self) -> BlockedClients:
        """Return those that an alarm keeps from publishing."""
        ...


class Monitor(Protocol):
    """Memory and disk of this member."""

    memory_used: int
    disk_free: int

    @property
    def memory_limit(self) -> int:
        """Return above how many bytes of memory publishers are blocked, 0 for never."""
        ...

    @property
    def disk_limit(self) -> int:
        """Return below how many free bytes publishers are blocked."""
        ...

    @property
    def breakdown(self) -> MemoryBreakdown:
        """Return what tells where the memory goes."""
        ...

    def check(self) -> None:
        """Look now."""
        ...

    def force(self, resource: str, on: bool) -> None:
        """Raise or clear an alarm by hand."""
        ...


class Endpoints(Protocol):
    """What stop_app closes and start_app opens."""

    is_open: bool

    async def pause(self, reason: str = ...) -> int:
        """Send AMQP clients away and stop listening; return how many there were."""
        ...

    async def resume(self) -> None:
        """Listen again."""
        ...


class Runtime(Protocol):
    """The running member; its parts are there once it has started."""

    alarms: AlarmSet

    @property
    def monitor(self) -> Monitor | None:
        """Return who watches memory and disk."""
        ...

    @property
    def endpoints(self) -> Endpoints | None:
        """Return what AMQP clients connect to."""
        ...

    def link_rows(self) -> list[dict[str, Any]]:
        """Return the federation links of this member."""
        ...

    def transferable(self, avoid: Collection[NodeId] = ()) -> list[int]:
        """Return the groups led here that another member could lead."""
        ...

    async def hand_over(self, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
        """Let others lead what is led here; return how many groups are left."""
        ...


@dataclass(slots=True, frozen=True)
class AdminServices:
    """What the calls of the Admin service share."""

    callers: Callers
    authenticator: Authenticator
    node: str
    incarnation: int
    profile: Profile
    catalog: Catalog
    #: Makes and deletes objects.
    objects: topology_batch.Room
    groups: Groups
    queues: KnownQueues
    #: What the members are asked.
    members: members_ports.Cluster
    #: Takes members in and lets them go, at the catalog's leader.
    catalog_members: CatalogMembers
    clients: Clients
    deliveries: DeliveryHub
    variables: Variables
    runtime: Runtime
