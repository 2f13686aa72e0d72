"""Rights that are taken away are gone for those who are connected, too (R-PERM-5, better).

What a client asks for is judged by its `Access` each time, which forgets its answers when a right
changes; publishes are judged anew with the next revision of the topology.  Only a consumer
goes on without being asked for, so guests check theirs when the catalog reports a changed user or
permission: once for all changes of one turn, and never per message.

Called by catalog_events.py as the catalog is applied at this member, whichever member was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_effects import TopologyChanged
    from brokerd.server.access.connections import Guest

#: With more names than this in one turn, everybody is looked at.
USERS_MAX = 1000


class Revocation:
    """State: whose rights have changed since the guests were last notified."""

    def __init__(self, guests: Callable[[], Iterable[Guest]]) -> None:
        """guests() returns all who have opened a vhost."""
        self._guests = guests
        self._users: set[str] = set()
        self._is_everyone = False
        self._is_scheduled = False

    def topology_changed(self, change: TopologyChanged) -> None:
        """A user (its tags) or its rights in a vhost may have changed.

        Rights to topics concern no consumer: they are for publishing and binding (R-TP-2).
        """
        if change.kind in ("user", "permission"):
            self._users.add(change.name)
            self._is_everyone |= len(self._users) > USERS_MAX
            self._schedule()

    def all_changed(self) -> None:
        """A snapshot says what is, not what changed."""
        self._is_everyone = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_scheduled = False
        users, self._users = self._users, set()
        is_everyone, self._is_everyone = self._is_everyone, False
        for guest in self._guests():
            if is_everyone or guest.user in users:
                guest.rights_changed()
