"""The register of a member's AMQP connections: limits, counts, listings."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from brokerd.config import LimitConfig

if TYPE_CHECKING:
    from brokerd.server.connection import ClientConnection

log = logging.getLogger(__name__)


class Connections:
    """All sockets of AMQP clients; `_opened` are those past connection.open."""

    def __init__(self, limits: LimitConfig) -> None:
        self._limits = limits
        self._new: dict[ClientConnection, str] = {}
        self._new_by_address: Counter[str] = Counter()
        self._opened: dict[ClientConnection, None] = {}
        self._by_vhost: Counter[str] = Counter()
        self._blocked: set[ClientConnection] = set()
        #: What other members last said of themselves: (memory used, limit, disk free, alarms).
        self.member_figures: dict[str, tuple[int, int, int, list[str]]] = {}
        self.accepted_total = 0
        self.refused_total = 0

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new socket in, or say that there are too many (SEC-34)."""
        address = connection.peer[0]
        limits = self._limits
        if (
            len(self._new) + len(self._opened) >= limits.connections
            or len(self._new) >= limits.unauthenticated
            or self._new_by_address[address] >= limits.unauthenticated_per_address
        ):
            self.refused_total += 1
            log.warning("refused connection from %s: too many connections", address)
            return False
        self.accepted_total += 1
        self._new[connection] = address
        self._new_by_address[address] += 1
        return True

    def opened(self, connection: ClientConnection) -> None:
        """The handshake is done."""
        self._settle(connection)
        self._opened[connection] = None
        self._by_vhost[connection.vhost] += 1

    def gone(self, connection: ClientConnection) -> None:
        """The socket is closed."""
        self._settle(connection)
        self._blocked.discard(connection)
        if connection in self._opened:
            del self._opened[connection]
            self._by_vhost[connection.vhost] -= 1

    def _settle(self, connection: ClientConnection) -> None:
        address = self._new.pop(connection, None)
        if address is not None:
            self._new_by_address[address] -= 1
            if not self._new_by_address[address]:
                del self._new_by_address[address]

    def blocked(self, connection: ClientConnection) -> None:
        """It published during an alarm."""
        self._blocked.add(connection)

    def unblocked(self, connection: ClientConnection) -> None:
        """The alarm is over."""
        self._blocked.discard(connection)

    def is_blocked(self, connection: ClientConnection) -> bool:
        """Tell whether its bytes are not read because of an alarm."""
        return connection in self._blocked

    def all(self) -> list[ClientConnection]:
        """Return the open ones."""
        return list(self._opened)

    def count(self, vhost: str) -> int:
        """Return how many connections a vhost has on this member."""
        return self._by_vhost[vhost]

    def __len__(self) -> int:
        return len(self._opened)

    def vhost_deleted(self, vhost: str) -> None:
        """R-VH-2: its connections are closed."""
        for connection in self.all():
            if connection.vhost == vhost:
                connection.close(320, f"vhost '{vhost}' is deleted")

    def close_all(self, text: str) -> None:
        """The member stops: say so to everyone, new connections are dropped."""
        for connection in self.all():
            connection.close(320, text)
        for connection in list(self._new):
            connection.abort()
