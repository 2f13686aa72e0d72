"""What the management API needs of the member that it is at; composition.py makes it once."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brokerd.server.catalog import ports, topology_batch
from brokerd.server.listings import ports as listings_ports
from brokerd.server.management.query_cache import KeptLists
from brokerd.server.members import ports as members_ports

if TYPE_CHECKING:
    from brokerd.config import BrokerConfig
    from brokerd.core.catalog.identity import Identity
    from brokerd.core.profiles import Profile
    from brokerd.server.access.admission import Admission
    from brokerd.server.access.authentication import Authenticator
    from brokerd.server.catalog.audit import Author
    from brokerd.server.listings.browses import Browses
    from brokerd.server.listings.job_ports import QueueJobs
    from brokerd.server.listings.totals import MemberTotals
    from brokerd.server.listings.triages import Triages
    from brokerd.server.management.figures import Calls, Figures
    from brokerd.server.management.rates import Rates
    from brokerd.server.management.row_cache import RowCache
    from brokerd.server.messages.ports import Process, Routing


@dataclass(slots=True, frozen=True)
class ManagementServices:
    """What the calls of the management API share.

    In one piece: one object for all handlers, each of which reads a few of these.
    """

    config: BrokerConfig
    profile: Profile
    identity: Process
    catalog: ports.Catalog
    #: Makes and deletes objects: topology.py, topology_batch.py.
    objects: topology_batch.Room
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
    #: What this member's clients have done since its start.
    totals: MemberTotals
    #: What changed between samples.
    rates: Rates
    #: Rows of queues that stand still.
    resting: RowCache
    routing: Routing
    #: connect_here(identity, author): AMQP of this member with somebody's rights, without a login.
    connect_here: Callable[[Identity, Author], Awaitable[socket.socket]]
    #: Looks at the messages of queues.
    browses: Browses
    #: The same in groups, and dry runs of jobs.
    triages: Triages
    #: Jobs that send messages back, move or delete them.
    jobs: QueueJobs
    #: Why publishers wait, "" when no alarm is on anywhere.
    blocking_reason: Callable[[], str]
    #: Lists of queues that were asked for lately.
    lists: KeptLists = field(default_factory=KeptLists)

    @property
    def node(self) -> str:
        """Return this member's name."""
        return self.identity.node
