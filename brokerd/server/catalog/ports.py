"""What creating and deleting objects needs of the member around it: one Protocol per subject.

Callers of topology.py and topology_batch.py pass an object that has these; nothing here knows its
type.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.config import BrokerConfig
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from brokerd.core.queue.client_shapes import Counts, Deleted
    from brokerd.server.catalog.audit import Author


class Catalog(Protocol):
    """The catalog: as this member sees it, and a way to change it."""

    @property
    def view(self) -> CatalogState:
        """Return what this member has applied."""
        ...

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose an operation; return the catalog's reply once all members that are up have it.

        Unavailable without a majority.
        """
        ...


class Queues(Protocol):
    """The queues' machines, wherever their leaders are (queues/client.py).

    Each raises QueueStuck while the queue takes nothing, Unavailable when no leader answers in
    time.
    """

    async def declared(self, uid: int) -> Counts | None:
        """Tell the queue that it was declared again; None: it has ended."""
        ...

    async def purge(self, uid: int) -> int:
        """Remove the ready messages; return how many."""
        ...

    async def discard_dead_letters(self, uid: int) -> int:
        """Remove the dead letters that wait for their targets; return how many."""
        ...

    async def delete(
        self, uid: int, *, if_empty: bool, if_unused: bool, cause: str
    ) -> Deleted | None:
        """End the queue unless it is in use; None: it is gone already."""
        ...

    async def wait_for_leader(self, uid: int) -> None:
        """Wait until the queue's leader works."""
        ...


class Objects(Catalog, Protocol):
    """What a step needs that concerns both the catalog and a queue's own log."""

    @property
    def queues(self) -> Queues:
        """Return the way to the queues."""
        ...


class Groups(Protocol):
    """The groups of this member, and the members it hears."""

    def alive(self) -> set[NodeId]:
        """Return the other members that are heard."""
        ...

    def is_stalled(self, node: NodeId) -> bool:
        """Tell whether a member is up and its disk does not answer (ADR 68)."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a group, None where that is not known here."""
        ...


class Cluster(Protocol):
    """What the choice of a new queue's members depends on."""

    @property
    def node(self) -> str:
        """Return this member's name."""
        ...

    @property
    def view(self) -> CatalogState:
        """Return the catalog, which names members and queues."""
        ...

    @property
    def host(self) -> Groups:
        """Return who is heard, and who leads."""
        ...

    @property
    def config(self) -> BrokerConfig:
        """Return the settings, of which the default size of a quorum queue is one."""
        ...

    @property
    def random(self) -> random.Random:
        """Return where the choice among equals comes from."""
        ...


class Topology(Cluster, Objects, Protocol):
    """What making a queue needs."""

    def new_group_uid(self) -> int:
        """Return a uid that no group has had."""
        ...


class Audited(Topology, Protocol):
    """The same on behalf of somebody; what is changed by it is noted in the audit log."""

    def by(self, author: Author) -> Audited:
        """Return one on this author's behalf."""
        ...

    def note(self, fields: Mapping[str, Any]) -> None:
        """Note a change that is none of the catalog: a purge, say."""
        ...


class Passwords(Protocol):
    """Hashes of passwords; each may take a moment."""

    async def check(self, stored: str, password: str) -> bool:
        """Tell whether a password is the one of a hash."""
        ...

    async def hash(self, password: str) -> str:
        """Return a new hash."""
        ...

    def is_current(self, stored: str) -> bool:
        """Tell whether a hash is of the kind that is made now."""
        ...


class Traced(Protocol):
    """The firehose."""

    @property
    def vhosts(self) -> frozenset[str]:
        """Return the vhosts that are traced."""
        ...
