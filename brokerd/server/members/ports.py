"""What this room needs of the member around it: one Protocol per subject.

The code that builds the room's classes hands in something that has these; nothing here knows what
that is.  What only one module needs stands in that module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Protocol, TypeAlias

from brokerd.cluster.groups.driver import Done
from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import Configuration, NodeId

Json: TypeAlias = dict[str, Any]


class Replicas(Protocol):
    """The replicas of this member, and who of the others is heard (cluster/groups/host.py)."""

    node: NodeId

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
        """Tell whether a replica runs here."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a group, None where that is not known here."""
        ...

    def status_of(self, uid: int) -> GroupStatus:
        """Return a replica's state; KeyError if it is not here."""
        ...

    def transfer_leadership(self, uid: int, to: NodeId) -> None:
        """Hand leadership over; to this member itself: stand for election now."""
        ...

    def change_members(self, uid: int, configuration: Configuration, done: Done) -> None:
        """Ask for a configuration that differs by one member; a refusal's reply says why."""
        ...


class Catalog(Protocol):
    """The catalog: as this member sees it, and a way to change it."""

    @property
    def view(self) -> CatalogState:
        """Return what this member has applied."""
        ...

    async def write(self, operation: Json) -> Json:
        """Propose an operation; return the catalog's reply once all members that are up have it.

        Unavailable without a majority.
        """
        ...


class Calls(Protocol):
    """Questions to other members (member_calls.py)."""

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        """Return a member's answer, this one's included; None: there is none."""
        ...

    async def ask_all(
        self, nodes: Iterable[str], name: str, fields: Json | None = None
    ) -> dict[str, Json]:
        """Return the answers of those that answered."""
        ...


class Spawn(Protocol):
    """Runs work in the background."""

    def __call__(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin; it ends with the member at the latest, and its failure is logged."""
        ...


class Queues(Protocol):
    """The queues of the catalog."""

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None if it has been deleted."""
        ...


class Neighbours(Queues, Protocol):
    """The queues' groups on all members."""

    @property
    def host(self) -> Replicas:
        """Return the replicas here."""
        ...

    @property
    def calls(self) -> Calls:
        """Return the way to the other members."""
        ...


class Cluster(Neighbours, Catalog, Protocol):
    """The members, the queues' groups on them, and the catalog that says what they shall be."""


class LedQueues(Queues, Protocol):
    """The queues, and which of them are led here."""

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def queue_uids(self) -> list[int]:
        """Return the uids of all queues."""
        ...


class HandOver(Protocol):
    """Gives leaderships away (leadership.py)."""

    async def __call__(self, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
        """Hand over, but not to `avoid`; return how many are left."""
        ...
