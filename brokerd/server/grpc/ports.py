"""What the services of the gRPC port need of the member that they are at, by subject.

Each protocol names what this room uses and nothing else.  The dataclasses hold what the calls of a
service share; composition.py makes them once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brokerd.raft.messages import NodeId
from brokerd.server.catalog import ports, topology_batch
from brokerd.server.listings import ports as listings_ports
from brokerd.server.members import ports as members_ports

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_client import GroupClient
    from brokerd.config import LimitConfig
    from brokerd.core.catalog.catalog_effects import TopologyChanged
    from brokerd.core.catalog.catalog_machine import CatalogMachine
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.message import Content
    from brokerd.core.profiles import Profile
    from brokerd.core.queue.effects import Run
    from brokerd.server.access.authentication import Authenticator
    from brokerd.server.access.blocked_clients import BlockedClients
    from brokerd.server.access.connections import GuestCall
    from brokerd.server.application_env import Variables
    from brokerd.server.catalog.keyring import Keyring
    from brokerd.server.grpc.rpc_auth import Callers
    from brokerd.server.listings.browses import Browses
    from brokerd.server.listings.job_ports import QueueJobs
    from brokerd.server.listings.triages import Triages
    from brokerd.server.members.catalog_members import CatalogMembers
    from brokerd.server.messages.ports import Process, Routing
    from brokerd.server.messages.reply_to import Replies
    from brokerd.server.queues.client import QueueClient
    from brokerd.server.queues.deliveries import DeliveryHub


# ---- the Messages service -----------------------------------------------------------------------


class Topology(Protocol):
    """The objects of the cluster as this member sees them."""

    view: CatalogState
    #: Routes and rights that were looked up are good for as long as this stays the same.
    topology_revision: int

    def exclusive_queues_end(self, connection_uid: int) -> asyncio.Task[None]:
        """A call has ended: its exclusive queues go (R-Q-9); done when they are gone."""
        ...


class Queues(Protocol):
    """The queues, wherever their leaders are."""

    groups: GroupClient

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None once it is deleted."""
        ...

    def contents_if_here(self, uid: int, run: Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        ...


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
    """What the calls of Messages share."""

    limits: LimitConfig
    identity: Process
    topology: Topology
    #: Makes and deletes objects.
    objects: ports.Audited
    queues: Queues
    queue_client: QueueClient
    messages: Routing
    deliveries: DeliveryHub
    replies: Replies
    #: Those whom an alarm keeps from publishing.
    blocked: BlockedClients
    #: The wall clock.
    clock_ms: Callable[[], int]
    #: Why publishers wait, "" when no alarm is on anywhere (R-ALM-1).
    blocking_reason: Callable[[], str]


# ---- the health service -------------------------------------------------------------------------


class Health(Protocol):
    """What health probes ask for."""

    #: Clients are let in.
    ready: bool

    @property
    def hindrance(self) -> Callable[[], str]:
        """Return what says what keeps a member that is ready from working, "" for nothing."""
        ...


# ---- the Admin service --------------------------------------------------------------------------


class Catalog(ports.Catalog, Protocol):
    """The catalog, and who hears of its changes."""

    #: Queues that receive each change; a full one misses it.
    watchers: set[asyncio.Queue[TopologyChanged]]

    @property
    def machine(self) -> CatalogMachine:
        """Return what knows the last changes."""
        ...

    @property
    def keyring(self) -> Keyring:
        """Return what opens sealed parameters."""
        ...


class Endpoints(listings_ports.Endpoints, Protocol):
    """What stop_app closes and start_app opens."""

    async def pause(self, reason: str = ...) -> int:
        """Send AMQP clients away and stop listening; return how many there were."""
        ...

    async def resume(self) -> None:
        """Listen again."""
        ...


class Monitor(listings_ports.Monitor, Protocol):
    """Memory and disk of this member."""

    def check(self) -> None:
        """Look now."""
        ...

    def force(self, resource: str, on: bool) -> None:
        """Raise or clear an alarm by hand."""
        ...


class Runtime(listings_ports.Runtime, Protocol):
    """The running member; its parts are there once it has started."""

    @property
    def monitor(self) -> Monitor | None:
        """Return who watches memory and disk."""
        ...

    @property
    def endpoints(self) -> Endpoints | None:
        """Return what AMQP clients connect to."""
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
    groups: listings_ports.Groups
    queues: listings_ports.KnownQueues
    #: What the members are asked.
    members: members_ports.Cluster
    #: Takes members in and lets them go, at the catalog's leader.
    catalog_members: CatalogMembers
    clients: listings_ports.Clients
    deliveries: DeliveryHub
    variables: Variables
    runtime: Runtime
    #: Looks at the messages of queues.
    browses: Browses
    #: The same in groups, and dry runs of jobs.
    triages: Triages
    #: Jobs that send messages back, move or delete them.
    jobs: QueueJobs
    #: Why a queue led here has not handed on what is due, "" for no reason.
    late_reason: Callable[[int], str]
