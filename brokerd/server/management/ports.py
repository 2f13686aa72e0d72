"""What the management API needs of the member that it is at; composition.py makes it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brokerd.server.catalog import ports, topology_batch
from brokerd.server.listings import ports as listings_ports
from brokerd.server.members import ports as members_ports

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_client import GroupClient
    from brokerd.config import BrokerConfig
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.message import Content
    from brokerd.core.profiles import Profile
    from brokerd.core.queue.effects import Run
    from brokerd.server.access.admission import Admission
    from brokerd.server.access.authentication import Authenticator
    from brokerd.server.management.figures import Calls, Figures
    from brokerd.server.management.rates import Rates
    from brokerd.server.messages.ports import Process, Routing
    from brokerd.server.messages.publishing import OnWayLimits
    from brokerd.server.messages.reply_to import Replies


class Catalog(ports.Catalog, Protocol):
    """The objects of the cluster as this member knows them, and changes of them."""

    #: Routes and rights that were looked up are good for as long as this stays the same.
    topology_revision: int


class Queues(Protocol):
    """The queues, wherever their leaders are."""

    groups: GroupClient

    async def ask_queue(self, uid: int, command: bytes) -> bytes:
        """Return the reply to a command; GroupGone, Damaged, Unavailable."""
        ...

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None once it is deleted."""
        ...

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def contents_if_here(self, uid: int, run: Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        ...


@dataclass(slots=True, frozen=True)
class ManagementServices:
    """What the calls of the management API share.

    In one piece: one object for all handlers, each of which reads a few of these.
    """

    config: BrokerConfig
    profile: Profile
    identity: Process
    catalog: Catalog
    #: Makes and deletes objects: topology.py, topology_batch.py.
    objects: topology_batch.Room
    queues: Queues
    authenticator: Authenticator
    admission: Admission
    #: What rows are made of (listings/rows.py).
    listed: listings_ports.Sources
    #: What the members are asked.
    members: members_ports.Cluster
    #: Questions to other members, and answers to theirs.
    calls: Calls
    #: Rows of all members, asked once a second at most.
    figures: Figures
    #: What changed between samples.
    rates: Rates
    routing: Routing
    replies: Replies
    on_way: OnWayLimits

    @property
    def node(self) -> str:
        """Return this member's name."""
        return self.identity.node
