"""The register of who is connected to a member: limits, counts, listings.

AMQP connections, and the calls of the Messages service, which count as a connection and a channel.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from brokerd.config import LimitConfig

if TYPE_CHECKING:
    from brokerd.core.effects import TopologyChanged
    from brokerd.server.connection import ClientConnection

log = logging.getLogger(__name__)


class Guest(Protocol):
    """Who has opened a vhost: an AMQP connection or a call."""

    vhost: str
    user: str

    def close(self, code: int, text: str) -> None:
        """End it, for this reason."""
        ...


class Connections:
    """All sockets of AMQP clients; `_opened` are those past connection.open, `_calls` gRPC's.

    Invariant: the counts by vhost and user are those of `_opened` and `_calls` together.
    """

    def __init__(self, limits: LimitConfig) -> None:
        self._limits = limits
        self._new: dict[ClientConnection, str] = {}
        self._new_by_address: Counter[str] = Counter()
        self._opened: dict[ClientConnection, None] = {}
        self._calls: dict[Guest, None] = {}
        self._by_vhost: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self._channels_by_user: Counter[str] = Counter()
        self.channel_count = 0
        #: Called after each change of a count by vhost or user.
        self.changed: Callable[[], None] = _nothing
        self._blocked: set[ClientConnection] = set()
        #: What other members last said of themselves: (memory used, limit, disk free, alarms).
        self.member_figures: dict[str, tuple[int, int, int, list[str]]] = {}
        self.accepted_total = 0
        self.refused_total = 0

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new socket in, or say that there are too many strangers (SEC-34).

        Who logs in is told why there is no room for it (`admission.may_open`).
        """
        address = connection.peer[0]
        limits = self._limits
        if (
            len(self._new) >= limits.unauthenticated
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
        self._enter(connection)

    def call_opened(self, call: Guest) -> None:
        """A call has been let in."""
        self._calls[call] = None
        self._enter(call)
        self.channel_opened(call.user)

    def call_gone(self, call: Guest) -> None:
        """A call has ended."""
        if call in self._calls:
            del self._calls[call]
            self._leave(call)
            self.channel_closed(call.user)

    def channel_opened(self, user: str) -> None:
        """One more channel of this user."""
        self.channel_count += 1
        self._channels_by_user[user] += 1
        self.changed()

    def channel_closed(self, user: str) -> None:
        """One less."""
        self.channel_count -= 1
        _less(self._channels_by_user, user)
        self.changed()

    def _enter(self, guest: Guest) -> None:
        self._by_vhost[guest.vhost] += 1
        self._by_user[guest.user] += 1
        self.changed()

    def _leave(self, guest: Guest) -> None:
        _less(self._by_vhost, guest.vhost)
        _less(self._by_user, guest.user)
        self.changed()

    def gone(self, connection: ClientConnection) -> None:
        """The socket is closed."""
        self._settle(connection)
        self._blocked.discard(connection)
        if connection in self._opened:
            del self._opened[connection]
            self._leave(connection)

    def _settle(self, connection: ClientConnection) -> None:
        address = self._new.pop(connection, None)
        if address is not None:
            _less(self._new_by_address, address)

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

    def counts(self, kind: str) -> Mapping[str, int]:
        """Return this member's connections by "vhost" or "user", or "channels" by user."""
        return {
            "vhost": self._by_vhost,
            "user": self._by_user,
            "channels": self._channels_by_user,
        }[kind]

    @property
    def call_count(self) -> int:
        """Return how many calls are open."""
        return len(self._calls)

    def __len__(self) -> int:
        return len(self._opened)

    def vhost_deleted(self, vhost: str) -> None:
        """R-VH-2: its connections are closed."""
        for guest in self._guests():
            if guest.vhost == vhost:
                guest.close(320, f"vhost '{vhost}' is deleted")

    def topology_changed(self, change: TopologyChanged) -> None:
        """A user who is gone is sent away."""
        if change.kind != "user" or not change.deleted:
            return
        for guest in self._guests():
            if guest.user == change.name:
                guest.close(320, f"user '{change.name}' is deleted")

    def _guests(self) -> list[Guest]:
        return [*self._opened, *self._calls]

    def close_all(self, text: str) -> None:
        """The member stops: say so to everyone, new connections are dropped."""
        for connection in self.all():
            connection.close(320, text)
        for connection in list(self._new):
            connection.abort()


def _nothing() -> None:
    """Nobody else wants to know."""


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        # Names come and go; those without anything are not kept.
        del counts[key]
