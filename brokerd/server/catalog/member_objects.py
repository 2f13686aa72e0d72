"""What making and deleting objects needs of one member, brought together (ports.Topology).

Built by composition.py, for front doors and for what declares lost objects again.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerd.config import BrokerConfig
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.server.catalog import audit, ports
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
    audit_log: audit.Audit
    #: On whose behalf it is; None: the member's own.
    author: audit.Author | None = field(default=None, kw_only=True)

    def by(self, author: audit.Author) -> MemberObjects:
        """Return one on this author's behalf, whose changes are noted in the audit log."""
        return dataclasses.replace(self, author=author)

    def note(self, fields: Mapping[str, Any]) -> None:
        """Note a change that is none of the catalog."""
        if self.author is not None:
            self.audit_log.write(self.author, fields)

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
        if self.author is None:
            return await self.catalog.write(operation)
        there = audit.before(operation, self.view)
        reply: dict[str, Any] | None = None
        try:
            reply = await self.catalog.write(operation)
        finally:
            # Without an answer, too: it may take effect later.
            for fields in audit.records(operation, reply, there):
                self.note(fields)
        return reply

    def new_group_uid(self) -> int:
        """Return a uid that no group has had."""
        return self.random.randrange(_GROUP_UID_MIN, _GROUP_UID_END)
