"""What federation needs of the broker it runs in; the server implements it.

Owned by this room so that it never imports the server (docs/architecture.md).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd.amqp.values import Table
from brokerd.federation.link_events import Answer, Unrouted
from brokerd.federation.shovel import Shovel
from brokerd.federation.upstream import Choice

#: Publishes that are decided: taken over by all their queues, or refused by one.
Outcome = Callable[[list[Answer]], None]
#: Publishes that no queue takes.
Returned = Callable[[list[Unrouted]], None]


@dataclass(slots=True, frozen=True)
class Federated:
    """An exchange that a policy, or its own settings, federates."""

    vhost: str
    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    choice: Choice
    #: The exchange's declaration arguments, for an upstream exchange that is missing (R-FX-1).
    arguments: Table = field(default_factory=dict, compare=False)


@dataclass(slots=True, frozen=True)
class FederatedQueue:
    """A queue that a policy federates."""

    vhost: str
    queue: str
    #: Which queue of this name: one that is declared anew is another.
    uid: int
    durable: bool
    choice: Choice
    #: The queue's declaration arguments, for an upstream queue that is missing (R-FQ-1).
    arguments: Table = field(default_factory=dict, compare=False)


@dataclass(slots=True, frozen=True)
class Change:
    """Something in the topology changed.

    `bindings_of`: None if links may come or go; else the name of a binding (it begins with its
    source exchange and a bar).
    """

    vhost: str
    bindings_of: str | None = None


class Publisher(Protocol):
    """Publishes to a link's destination.  Numbers are the caller's, each used once, and once more
    after its message came back.

    Outcomes are reported from the event loop or from `flush`, never from within `publish`.
    """

    def publish(
        self,
        number: int,
        routing_key: str,
        header: bytes,
        bodies: list[bytes],
        exchange: str | None = None,
    ) -> None:
        """Route and enqueue; alternate exchanges apply (R-FX-14).

        The first body has this number, each of the others the next one.  exchange: of a message
        that came back; None: where the destination's messages go.
        """
        ...

    def flush(self) -> None:
        """Send what was published since the last flush."""
        ...

    def close(self) -> None:
        """End; no outcome is reported any more."""
        ...


class DemandWatch(Protocol):
    """Looks at a queue until it is closed, and reports changes of demand."""

    def check(self) -> None:
        """Look now; now and then it looks by itself."""
        ...

    def close(self) -> None:
        """End; no change is reported any more."""
        ...


class Host(Protocol):
    """The member that a link runs on."""

    @property
    def node(self) -> str:
        """Return this member's name."""
        ...

    def link_changed(self, link: str, state: str, error: str) -> None:
        """Note that a link changed its state (telemetry event `link`)."""
        ...

    def messages_dropped(self, link: str, count: int, exchange: str, routing_key: str) -> None:
        """Count and log messages that a link gave up, since no queue takes them; the last one was
        for this exchange and key.
        """
        ...


class Topology(Host, Protocol):
    """The local broker as federation sees it."""

    @property
    def cluster_name(self) -> str:
        """Return the name that other clusters know this one by (R-FED-8)."""
        ...

    @property
    def revision(self) -> int:
        """Return a number that rises with every change."""
        ...

    @property
    def reconnect_delay_ms(self) -> int:
        """Return the delay for definitions that have none (R-FED-2)."""
        ...

    def federated_exchanges(self) -> list[Federated]:
        """Return what is federated; never the default exchange, internal ones or those made by
        federation itself (R-FED-4).
        """
        ...

    def vhosts(self) -> list[str]:
        """Return the names of all vhosts."""
        ...

    async def connect_here(self, user: str) -> socket.socket:
        """Return a socket at whose other end this member serves AMQP, with the rights of a user
        and without a login; "": all rights.
        """
        ...

    async def delete_shovel(self, shovel: Shovel) -> bool:
        """Delete the definition of a shovel, but no other one of its name; return whether it is
        gone.
        """
        ...

    def federated_queues(self) -> list[FederatedQueue]:
        """Return what is federated; never exclusive queues or those made by federation (R-FQ-7)."""
        ...

    def leads(self, queue: FederatedQueue) -> bool:
        """Tell whether the queue's leader is here: that member runs its links."""
        ...

    def watch_demand(self, queue: FederatedQueue, changed: Callable[[bool], None]) -> DemandWatch:
        """Have changed(is_wanted) called at once and after every change (R-FQ-2).

        Messages are wanted while none is ready and a consumer of priority 0 or more could take one.
        """
        ...

    def parameters(self, vhost: str, component: str) -> Mapping[str, Any]:
        """Return a component's runtime parameters by name."""
        ...

    def bindings(self, vhost: str, exchange: str) -> list[tuple[str, Table]]:
        """Return (routing key, arguments) of every binding from an exchange (R-FX-7)."""
        ...

    def quorate_members(self) -> list[str]:
        """Return the members that are alive as seen from here, this one included; none if they
        are no majority, so that a member that is cut off runs no links (R-FED-7).
        """
        ...

    def refusal(self, kind: str, vhost: str, name: str) -> str:
        """Return why a link may not publish to a "queue" or an "exchange" of this name: there is
        none, or it is internal; "" if it may.
        """
        ...

    @property
    def honours_alarms(self) -> bool:
        """Say whether alarms hold federation back, too (R-ALM-9)."""
        ...

    def alarm(self) -> str:
        """Return why publishers are held back anywhere, "" if they are not."""
        ...

    @property
    def drops_unroutable(self) -> bool:
        """Say whether a shovel gives up what no queue takes, if its definition does not say."""
        ...

    def open_publisher(
        self, vhost: str, exchange: str, outcome: Outcome, returned: Returned | None = None
    ) -> Publisher:
        """Return a new publisher into a local exchange.

        What no queue takes comes back by `returned`; without it, it counts as taken over (R-FX-14).
        By the default exchange, that is to a queue that has been deleted, it counts as refused.
        """
        ...

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Have `listener` called after every change; it must return at once."""
        ...

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """End that."""
        ...
