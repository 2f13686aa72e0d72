"""The two ends of a link, and what each kind of end must do (design/links.md).

`link.Link` is one mechanism: a `Source` is consumed from, a `Destination` is published to, a
`Passage` says what a message becomes in between.  Federated exchanges, federated queues and
whatever else moves messages from broker to broker differ in these only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd.amqp.values import Table
from brokerd.federation.client import Channel, Connection
from brokerd.federation.errors import ClientError
from brokerd.federation.link_events import Answer, Unrouted
from brokerd.federation.link_state import Passage
from brokerd.federation.ports import Publisher, Topology
from brokerd.federation.upstream import Address

#: (address, vhost, name of the connection, authorities) to an open connection.
Dial = Callable[[Address, str, str, str | None], Awaitable[Connection]]


def _nobody_hears() -> None:
    """Links that run until they are stopped do not finish."""


@dataclass(slots=True)
class Peer:
    """The broker at a source, connected to."""

    connection: Connection
    address: Address
    #: The vhost that was opened.
    vhost: str

    @property
    def cluster(self) -> str:
        """Return the name that it gives itself; without one, where it is (R-FED-8)."""
        name = self.connection.machine.server_properties.get("cluster_name")
        at = f"{self.address.host}:{self.address.port}"
        return name if isinstance(name, str) and name else at


@dataclass(slots=True)
class Session:
    """One connection's time, as a source sees it."""

    peer: Peer
    #: The link consumes on this one.
    channel: Channel
    #: Opens one more connection to the same peer; the caller closes it.
    connect: Callable[[], Awaitable[Connection]]
    #: The end of this channel shall end the session.
    watch: Callable[[Channel], None]


@dataclass(slots=True, frozen=True)
class Intake:
    """What the link is to consume from."""

    queue: str
    consumer_tag: str
    arguments: Table = field(default_factory=dict)
    #: In the queue when it was declared; for links that end when they have moved those.
    messages: int = 0
    #: Only the link may consume from it.
    exclusive: bool = False


class Source(Protocol):
    """Where messages come from.  Errors (FederationError) end the session; the link tries again."""

    async def prepare(self, session: Session) -> Intake:
        """Make what is needed at the peer; called once per session, before all else."""
        ...

    async def follow(self) -> float | None:
        """Bring the peer up to date with what changed here; return in how many seconds to call
        again at the latest, None: only after `changed`.
        """
        ...

    def changed(self) -> None:
        """Something here changed that `follow` may have to look at; returns at once."""
        ...

    async def clean_up(self, connect: Callable[[], Awaitable[Peer]]) -> None:
        """The configuration is gone (R-FX-17): take away what was made.

        connect() returns the peer, connected to anew if need be; the link closes it.
        """
        ...

    def figures(self) -> dict[str, Any]:
        """Return more columns for the listing."""
        ...


class Listener(Protocol):
    """The link as its destination sees it.  Called from the event loop, never from within
    `publish`; after the publisher's `close` nothing it says counts.
    """

    def answered(self, answers: list[Answer]) -> None:
        """These numbers are decided."""
        ...

    def returned(self, messages: list[Unrouted]) -> None:
        """No queue takes these; their numbers may be published again."""
        ...

    def failed(self, error: ClientError) -> None:
        """The destination is lost: the session ends, what is not answered comes again."""
        ...

    def blocked(self, reason: str) -> None:
        """The destination takes nothing for now (connection.blocked, say); "": it does again.

        The link stops consuming; what is under way (link_state.IN_FLIGHT_*) still comes.
        """
        ...

    def demanded(self, is_wanted: bool) -> None:
        """The destination wants messages, or not (R-FQ-2); until it says so it does."""
        ...


class Destination(Protocol):
    """Where messages go.  Errors (FederationError) of `open` end the session."""

    async def open(self, listener: Listener) -> Publisher:
        """Return a new publisher for one session; the link closes it."""
        ...


@dataclass(slots=True)
class Ends:
    """All that makes a link one of its kind."""

    #: For addresses that name no vhost (R-FED-2).
    vhost: str
    source: Source
    passage: Passage
    destination: Destination
    #: How logs and the peer's list of connections call it.
    title: str = "Federation link"
    dial: Dial = Connection.open
    #: When the link ends by itself (link_state.FederationLink), and who hears of it.
    ends_after: int | str | None = None
    finished: Callable[[], None] = _nobody_hears
    #: What comes back from the destination is given up.
    drops_unroutable: bool = False


class LocalExchange:
    """Destination: an exchange of this broker, which wants messages at any time."""

    def __init__(self, topology: Topology, vhost: str, exchange: str) -> None:
        self._topology = topology
        self._vhost = vhost
        self._exchange = exchange

    async def open(self, listener: Listener) -> Publisher:
        """See Destination."""
        return self._topology.open_publisher(self._vhost, self._exchange, listener.answered)
