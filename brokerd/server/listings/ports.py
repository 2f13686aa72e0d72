"""What listings need of the member that they are about, by subject.

Each protocol names what this room reads and nothing else.  Front doors hand in what they share
(grpc/ports.py: AdminServices).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from brokerd.amqp.connection import AmqpConnection
    from brokerd.cluster.groups.group_clock import Moved
    from brokerd.cluster.groups.host_events import GroupStatus
    from brokerd.core.alarms import AlarmSet
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.identity import Identity
    from brokerd.core.confirms import Confirms
    from brokerd.core.profiles import Profile
    from brokerd.core.queue.queue_machine import QueueMachine
    from brokerd.raft.messages import NodeId
    from brokerd.server.access.blocked_clients import BlockedClients
    from brokerd.server.access.connections import GuestCall
    from brokerd.server.application_env import Variables
    from brokerd.server.catalog import ports, topology_batch
    from brokerd.server.listings.memory_breakdown import MemoryBreakdown
    from brokerd.server.queues.deliveries import DeliveryHub
    from brokerd.server.queues.table import QueueTable


class Groups(Protocol):
    """The groups of this member, and the members it hears."""

    def alive(self) -> set[NodeId]:
        """Return the members that are up, this one included."""
        ...

    def is_stalled(self, node: NodeId) -> bool:
        """Tell whether a member is up and its disk does not answer (ADR 68)."""
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

    def watch(self) -> Moved:
        """Return what tells which replicas have moved, from now on."""
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

    @property
    def table(self) -> QueueTable:
        """Return their figures, for callers that add up or sort all of them."""
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
    identity: Identity
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
    def call_count(self) -> int:
        """Return how many those are."""
        ...

    @property
    def channel_count(self) -> int:
        """Return how many channels are open; a call has one."""
        ...

    @property
    def blocked(self) -> BlockedClients:
        """Return those that an alarm keeps from publishing."""
        ...


class Stalls(Protocol):
    """When the disk did not answer (members/disk_watch.py)."""

    @property
    def count(self) -> int:
        """Return how many stalls have begun."""
        ...

    def total_s(self) -> float:
        """Return how long all stalls have lasted, the one under way included."""
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

    @property
    def stalls(self) -> Stalls:
        """Return what watches whether the disk answers."""
        ...


class Endpoints(Protocol):
    """What AMQP clients connect to."""

    @property
    def is_open(self) -> bool:
        """Tell whether AMQP is served."""
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


class Sources(Protocol):
    """All that rows are made of."""

    @property
    def node(self) -> str:
        """Return this member's name."""
        ...

    @property
    def incarnation(self) -> int:
        """Return in which of its lives it is."""
        ...

    @property
    def profile(self) -> Profile:
        """Return the switches of its profile."""
        ...

    @property
    def catalog(self) -> ports.Catalog:
        """Return the catalog."""
        ...

    @property
    def objects(self) -> topology_batch.Room:
        """Return the settings, and who traces."""
        ...

    @property
    def groups(self) -> Groups:
        """Return the replicas here."""
        ...

    @property
    def queues(self) -> KnownQueues:
        """Return the queues."""
        ...

    @property
    def clients(self) -> Clients:
        """Return who is connected."""
        ...

    @property
    def deliveries(self) -> DeliveryHub:
        """Return the consumers here."""
        ...

    @property
    def variables(self) -> Variables:
        """Return the settings that change at run time."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Return the running member."""
        ...

    @property
    def late_reason(self) -> Callable[[int], str]:
        """Return what says why a queue led here has not handed on what is due (uid), "" where
        nothing keeps it from doing so.
        """
        ...
