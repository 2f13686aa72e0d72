"""What making and deleting objects needs of one member, brought together (ports.Topology).

Built by composition.py, for front doors and for whoever declares again what was lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from brokerd.config import BrokerConfig
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.server.catalog import ports
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.catalog.member_catalog import MemberCatalog

#: Group uids are random 63-bit numbers; small ones are reserved.
_GROUP_UID_MIN = 1 << 16
_GROUP_UID_END = 1 << 63


@dataclass(slots=True, frozen=True)
class MemberObjects:
    """See ports.Topology, and topology_batch.Room."""

    node: str
    config: BrokerConfig
    random: random.Random
    host: ports.Groups
    catalog: MemberCatalog
    queues: ports.Queues
    checker: ports.Passwords
    tracer: ports.Traced

    @property
    def view(self) -> CatalogState:
        """Return what this member has applied."""
        return self.catalog.view

    @property
    def keyring(self) -> Keyring:
        """Return what opens sealed parameters."""
        return self.catalog.keyring

    @property
    def profile(self) -> Profile:
        """Return the switches of this member's profile."""
        return self.catalog.profile

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose an operation; return the catalog's reply."""
        return await self.catalog.write(operation)

    async def ask_queue(self, uid: int, command: bytes) -> bytes:
        """Return the reply of a queue's leader."""
        return await self.queues.ask_queue(uid, command)

    def new_group_uid(self) -> int:
        """Return a uid that no group has had."""
        return self.random.randrange(_GROUP_UID_MIN, _GROUP_UID_END)
