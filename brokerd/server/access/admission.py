"""What somebody who has logged in may open: vhosts and channels, within their limits.

For AMQP connections and gRPC calls alike; who it is has been decided by authentication.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from brokerd.core.catalog import permissions
from brokerd.core.catalog.identity import Identity

if TYPE_CHECKING:
    from brokerd.config import LimitConfig
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.access.shared_counts import SharedCounts


class Clients(Protocol):
    """How many clients this member has."""

    @property
    def channel_count(self) -> int:
        """Return the number of open channels, calls included."""
        ...

    def __len__(self) -> int:
        """Return the number of open AMQP connections."""
        ...


class Admission:
    """State: none of its own."""

    def __init__(
        self,
        node: str,
        view: CatalogState,
        limits: LimitConfig,
        clients: Clients,
        counts: SharedCounts,
    ) -> None:
        self._node = node
        self._view = view
        self._limits = limits
        self._clients = clients
        self._counts = counts

    def may_open(self, identity: Identity, vhost: str) -> str | None:
        """Return why somebody may not open this vhost, None if it may (R-CON-11, R-CON-12)."""
        user, settings = identity.user, self._view.spec("vhost", "", vhost)
        if settings is None:
            return f"vhost {vhost} not found"
        refused = self.access(identity, vhost).check_vhost()
        if refused is not None:
            return refused.text
        limit = self._limits.connections
        if limit <= len(self._clients):
            return f"connection refused: node connection limit ({limit}) is reached"
        limit = settings.get("limits", {}).get("max-connections", -1)
        if 0 <= limit <= self._counts.count("vhost", vhost):
            return (
                f"access to vhost '{vhost}' refused for user '{user}': "
                f"connection limit ({limit}) is reached"
            )
        limit = self._user_limit(user, "max-connections")
        if 0 <= limit <= self._counts.count("user", user):
            return (
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )
        return None

    def may_open_channel(self, user: str) -> str | None:
        """Return why this user may not open one more channel, None if it may (R-CH-3, SEC-44)."""
        limit = self._limits.channels
        if 0 < limit <= self._clients.channel_count:
            return (
                f"number of channels opened on node '{self._node}' has reached "
                f"the maximum allowed limit of ({limit})"
            )
        limit = self._user_limit(user, "max-channels")
        if 0 <= limit <= self._counts.count("channels", user):
            return (
                f"number of channels opened for user '{user}' has reached "
                f"the maximum allowed user limit of ({limit})"
            )
        return None

    def access(self, identity: Identity, vhost: str) -> permissions.Access:
        """Return somebody's rights in a vhost that it may open."""
        return identity.access(self._view, vhost)

    def _user_limit(self, user: str, name: str) -> int:
        """Return a limit of the user; negative: none, 0 forbids (O-4)."""
        settings = self._view.spec("user", "", user) or {}
        return int(settings.get("limits", {}).get(name, -1))


class OwnAdmission(Admission):
    """What the member itself may open: any vhost and as many channels as it needs, with all rights.

    State: that of the Admission it is made of.
    """

    @classmethod
    def of(cls, other: Admission) -> OwnAdmission:
        """Return one that knows the same vhosts."""
        return cls(other._node, other._view, other._limits, other._clients, other._counts)

    def may_open(self, identity: Identity, vhost: str) -> str | None:
        """Return why a vhost cannot be opened."""
        return None if vhost in self._view.vhosts else f"vhost {vhost} not found"

    def may_open_channel(self, user: str) -> str | None:
        """Refuse nothing."""
        return None

    def access(self, identity: Identity, vhost: str) -> permissions.Access:
        """Return all rights."""
        return permissions.Unlimited(self._view, vhost, identity.user)
