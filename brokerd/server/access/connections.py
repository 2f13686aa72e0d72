"""The register of who is connected to a member: limits, listings; client_counts.py counts.

AMQP connections, and the calls of the Messages service, which count as a connection and a channel.
"""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from brokerd.config import LimitConfig
from brokerd.core.unauthenticated import Unauthenticated
from brokerd.server.access.blocked_clients import Blocked, BlockedClients
from brokerd.server.access.client_counts import ClientCounts, Counted
from brokerd.server.access.limited_log import LimitedLog
from brokerd.storage.descriptors import reserve

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_effects import TopologyChanged
    from brokerd.core.catalog.identity import Identity

log = logging.getLogger(__name__)

#: Descriptors that AMQP clients leave to everything else: the log, members, HTTP, gRPC.
DESCRIPTORS_LEFT = 768
#: Client sockets allowed however few descriptors there are; the log has descriptors in reserve.
SOCKETS_MAX_LEAST = 128
#: Closed connections whose sockets wait for the client's end; beyond it the oldest are aborted, so
#: that no client holds descriptors this way.
LEAVING_MAX = 256


class Guest(Counted, Protocol):
    """Who has opened a vhost: an AMQP connection or a call."""

    identity: Identity

    def close(self, code: int, text: str) -> None:
        """End it, for this reason."""
        ...

    def rights_changed(self) -> None:
        """End what its user has no right to any more (revocation.py)."""
        ...


class GuestCall(Guest, Protocol):
    """A call of the Messages service."""

    uid: int
    peer: tuple[str, int]
    connected_ms: int

    @property
    def name(self) -> str:
        """Return what listings call it."""
        ...

    @property
    def is_open(self) -> bool:
        """Tell whether it has not been ended."""
        ...

    @property
    def caller(self) -> Blocked:
        """Return whom an alarm blocks."""
        ...


class Client(Guest, Protocol):
    """An AMQP connection, as the register sees it."""

    #: Address and port of the client.
    peer: tuple[str, int]

    def abort(self) -> None:
        """Drop the socket at once."""
        ...


ClientT = TypeVar("ClientT", bound=Client)


class Connections(Generic[ClientT]):
    """All sockets of AMQP clients; `_opened` are those past connection.open, `_calls` gRPC's.

    Invariant: `counts` are those of `_opened` and `_calls` together.
    """

    def __init__(self, limits: LimitConfig) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        #: Of clients, whether they have logged in or not; a hard limit of none shows as negative.
        self._sockets_max = (
            max(descriptors - DESCRIPTORS_LEFT, SOCKETS_MAX_LEAST) if descriptors > 0 else 1 << 31
        )
        #: Those that have not finished their handshake; half of the sockets are for those who have.
        self._unauthenticated: Unauthenticated[ClientT] = Unauthenticated(
            min(limits.unauthenticated, self._sockets_max // 2),
            min(limits.unauthenticated_per_address, self._sockets_max // 2),
        )
        self._refusals = LimitedLog(log, "connections refused or dropped for others")
        self._broken_handshakes = LimitedLog(log, "broken handshakes")
        self._opened: dict[ClientT, None] = {}
        self._leaving: dict[ClientT, None] = {}
        self._calls: dict[GuestCall, None] = {}
        self.counts = ClientCounts()
        #: Those that an alarm keeps from publishing.
        self.blocked = BlockedClients()
        #: What other members last said of themselves: (memory used, limit, disk free, alarms).
        self.member_figures: dict[str, tuple[int, int, int, list[str]]] = {}
        self.accepted_total = 0
        self.refused_total = 0
        #: Clients that logged in and ended without connection.close.
        self.lost_total = 0
        self.displaced_total = 0

    def admit(self, connection: ClientT) -> bool:
        """Take a new socket in; another stranger may have to go for it (SEC-34).

        A client that logs in receives the reason why there is no room (admission.py: `may_open`).
        """
        address = connection.peer[0]
        if reserve.waiting_s() is not None:
            # Its socket is one that the log needs.
            self.refused_total += 1
            self._refusals.write(
                logging.WARNING, f"refused connection from {address}: the log has no descriptor"
            )
            return False
        displaced: ClientT | None = connection
        if len(self._unauthenticated) + len(self._opened) < self._sockets_max:
            displaced = self._unauthenticated.admit(connection, address)
        if displaced is connection:
            self.refused_total += 1
            self._refusals.write(
                logging.WARNING, f"refused connection from {address}: too many connections"
            )
            return False
        self.accepted_total += 1
        if displaced is not None:
            self.displaced_total += 1
            self._refusals.write(
                logging.WARNING,
                f"dropped connection from {displaced.peer[0]} before its login: "
                f"too many connections, one from {address} takes its place",
            )
            displaced.abort()
        return True

    def logged_in(self, connection: ClientT) -> None:
        """It has shown who it is, and opens its vhost next."""
        self._unauthenticated.logged_in(connection)

    def handshake_broken(self, text: str) -> None:
        """Log what went wrong with a stranger."""
        self._broken_handshakes.write(logging.ERROR, text)

    def opened(self, connection: ClientT) -> None:
        """The handshake is done."""
        self._unauthenticated.gone(connection)
        self._opened[connection] = None
        self.counts.opened(connection)

    def call_opened(self, call: GuestCall) -> None:
        """A call has been let in."""
        self._calls[call] = None
        self.counts.opened(call)
        self.counts.channel_opened(call.user)

    def call_gone(self, call: GuestCall) -> None:
        """A call has ended."""
        if call in self._calls:
            del self._calls[call]
            self.counts.gone(call)
            self.counts.channel_closed(call.user)

    def gone(self, connection: ClientT) -> None:
        """The socket is closed."""
        self._unauthenticated.gone(connection)
        self.blocked.discard(connection)
        if connection in self._opened:
            del self._opened[connection]
            self.counts.gone(connection)

    def leaves(self, connection: ClientT) -> None:
        """It has ended, and its socket waits for the client's end."""
        self._leaving[connection] = None
        if len(self._leaving) > LEAVING_MAX:
            first = next(iter(self._leaving))
            del self._leaving[first]
            first.abort()

    def left(self, connection: ClientT) -> None:
        """Its socket is closed as well."""
        self._leaving.pop(connection, None)

    @property
    def leaving(self) -> list[ClientT]:
        """Return the ended ones whose sockets are not closed yet."""
        return list(self._leaving)

    def all(self) -> list[ClientT]:
        """Return the open ones."""
        return list(self._opened)

    def calls(self) -> list[GuestCall]:
        """Return the open calls."""
        return list(self._calls)

    @property
    def channel_count(self) -> int:
        """Return how many channels are open, those of calls included."""
        return self.counts.channel_count

    @property
    def closed_total(self) -> int:
        """Return how many connections that had opened a vhost have ended, calls included."""
        return self.counts.opened_total - len(self._opened) - len(self._calls)

    @property
    def socket_count(self) -> int:
        """Return how many AMQP sockets are open, those before their login included."""
        return len(self._unauthenticated) + len(self._opened) + len(self._leaving)

    @property
    def sockets_max(self) -> int:
        """Return how many AMQP sockets may be open."""
        return self._sockets_max

    @property
    def call_count(self) -> int:
        """Return how many calls are open."""
        return len(self._calls)

    def __len__(self) -> int:
        return len(self._opened)

    def vhost_deleted(self, vhost: str) -> None:
        """R-VH-2: its connections are closed."""
        for guest in self.guests():
            if guest.vhost == vhost:
                guest.close(320, f"vhost '{vhost}' is deleted")

    def topology_changed(self, change: TopologyChanged) -> None:
        """A user who is gone is sent away."""
        if change.kind != "user" or not change.deleted:
            return
        for guest in self.guests():
            if guest.user == change.name and guest.identity.scopes is None:
                guest.close(320, f"user '{change.name}' is deleted")

    def guests(self) -> list[Guest]:
        """Return all who have opened a vhost."""
        return [*self._opened, *self._calls]

    def close_all(self, text: str) -> None:
        """The member stops: say so to everyone, new connections are dropped."""
        for connection in self.all():
            connection.close(320, text)
        for connection in self._unauthenticated.all():
            connection.abort()
