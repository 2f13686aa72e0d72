"""What this room needs of the member around it: one Protocol per subject.

The builder of the room's classes passes an object that has these; nothing here knows its type.
What only one module needs stands in that module.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.core.catalog.catalog_objects import ConnectionId
from brokerd.core.catalog.down_homes import DownHomes
from brokerd.core.catalog.router import Router, RouteResult
from brokerd.core.profiles import Profile
from brokerd.server.messages.dropped import Dropped
from brokerd.server.queues import ports
from brokerd.telemetry.counters import Counters


class Process(ports.Sender, Protocol):
    """The numbers of connections and calls, too, which are unique within a life."""

    def connection_id(self, uid: int) -> ConnectionId:
        """Return the cluster-wide id of a connection of this process."""
        ...


class Counting(Protocol):
    """Who counts a message that has its route."""

    @property
    def profile(self) -> Profile:
        """Return which rules hold where they may differ."""
        ...

    @property
    def counters(self) -> Counters:
        """Return what counts for telemetry."""
        ...


class Routing(Counting, Protocol):
    """Where a message goes, and who counts it."""

    @property
    def router(self) -> Router:
        """Return what knows exchanges and bindings."""
        ...

    @property
    def down_homes(self) -> DownHomes:
        """Return which queues refuse, since their home member is down."""
        ...

    @property
    def dropped(self) -> Dropped:
        """Return what counts messages that went for no client's reason."""
        ...

    def unroutable(self, vhost: str, exchange: str, result: RouteResult, count: int) -> None:
        """No queue takes these messages."""
        ...

    def warn(self, text: str) -> None:
        """Log a warning, the same one now and then only."""
        ...


class Client(Protocol):
    """Somebody who publishes and consumes: an AMQP connection, a call of the Messages service."""

    @property
    def vhost(self) -> str:
        """Return where."""
        ...

    @property
    def user(self) -> str:
        """Return who has logged in."""
        ...
