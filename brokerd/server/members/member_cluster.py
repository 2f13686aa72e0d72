"""The cluster as its administration sees it: members, their groups of queues, the catalog.

Brings together what ports.Cluster and its parts name.  Built by composition.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.server.members import ports
from brokerd.server.members.ports import Json


@dataclass(slots=True, frozen=True)
class MemberCluster:
    """State: none of its own."""

    host: ports.Replicas
    calls: ports.Calls
    catalog: ports.Catalog
    queues: ports.LedQueues

    @property
    def view(self) -> CatalogState:
        """Return what this member has applied."""
        return self.catalog.view

    async def write(self, operation: Json) -> Json:
        """Propose an operation; return the catalog's reply."""
        return await self.catalog.write(operation)

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, None if it has been deleted."""
        return self.queues.queue_of(uid)

    def queue_uids(self) -> list[int]:
        """Return the uids of all queues."""
        return self.queues.queue_uids()

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        return self.queues.leads(uid)
