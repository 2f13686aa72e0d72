"""What the machine of a link receives (events) and what it asks for (actions).

PURE.  `link_state.py` takes the ones and returns the others; `link.py` makes and executes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

#: Of a run of tags: the first, how many, and whether the destination has taken them over.
Answer: TypeAlias = tuple[int, int, bool]


@dataclass(slots=True)
class Unrouted:
    """A message that came back from the destination, as it was published there."""

    #: The link's: its delivery tag.
    number: int
    exchange: str
    routing_key: str
    header: bytes
    body: bytes


# Events.


@dataclass(slots=True)
class Started:
    """The link is to run."""

    now_ms: int


@dataclass(slots=True)
class Connected:
    """A connection is open; who is at the other end."""

    now_ms: int
    uri: str
    cluster: str
    vhost: str
    local_connection: str


@dataclass(slots=True)
class Prepared:
    """What is consumed from is there, and the destination is open."""

    now_ms: int
    #: In the queue that is consumed from, when it was looked at.
    messages: int = 0


@dataclass(slots=True)
class Delivered:
    """Messages from the upstream queue that are alike but for tag, each one more, and body."""

    #: Of the first.
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    header: bytes
    bodies: list[bytes]
    now_ms: int


@dataclass(slots=True)
class Answered:
    """The destination answered."""

    session: int
    answers: list[Answer]
    now_ms: int


@dataclass(slots=True)
class Returned:
    """No queue of the destination takes these."""

    session: int
    messages: list[Unrouted]
    now_ms: int


@dataclass(slots=True)
class RouteDue:
    """The time of an AwaitRoute is over."""

    session: int
    now_ms: int


@dataclass(slots=True)
class Failed:
    """The session ended, or never began."""

    now_ms: int
    error: str


@dataclass(slots=True)
class AlarmChanged:
    """A local resource alarm; "" when there is none (R-ALM-9)."""

    now_ms: int
    reason: str


@dataclass(slots=True)
class DestinationBlocked:
    """The destination takes nothing for now; "" when it takes messages again."""

    now_ms: int
    session: int
    reason: str


@dataclass(slots=True)
class DemandChanged:
    """The destination wants messages, or does not (R-FQ-2)."""

    session: int
    is_wanted: bool


@dataclass(slots=True)
class DemandMissed:
    """The time of an AwaitDemand is over."""

    session: int


@dataclass(slots=True)
class StopRequested:
    """The link ends here.  `is_removed`: its configuration went, not only its place."""

    now_ms: int
    is_removed: bool


# Actions.


@dataclass(slots=True)
class Connect:
    """Open a session after this pause."""

    delay_ms: int
    session: int


@dataclass(slots=True)
class Forward:
    """Publish to the destination, under the tag and those that follow it."""

    tag: int
    routing_key: str
    header: bytes
    bodies: list[bytes]
    #: Where to; None: where the passage says.
    exchange: str | None = None


@dataclass(slots=True)
class Acknowledge:
    """basic.ack upstream."""

    tag: int
    multiple: bool


@dataclass(slots=True)
class Requeue:
    """basic.nack with requeue upstream, after a pause (R-FED-5)."""

    tag: int
    delay_ms: int


@dataclass(slots=True)
class Consume:
    """basic.consume upstream (again)."""


@dataclass(slots=True)
class CancelConsume:
    """basic.cancel upstream."""


@dataclass(slots=True)
class AwaitDemand:
    """Tell DemandMissed after this time; the one that was asked for before is no longer wanted."""

    delay_ms: int
    session: int


@dataclass(slots=True)
class AwaitRoute:
    """Tell RouteDue after this time."""

    delay_ms: int
    session: int


@dataclass(slots=True)
class TellDropped:
    """So many messages that found no queue were given up; the last one was for this."""

    count: int
    exchange: str
    routing_key: str


@dataclass(slots=True)
class HoldReading:
    """Read nothing more from the socket."""


@dataclass(slots=True)
class ResumeReading:
    """Read on."""


@dataclass(slots=True)
class Disconnect:
    """Close the session; `cleans_up`: the source takes away what it made (R-FX-17)."""

    cleans_up: bool


@dataclass(slots=True)
class Finish:
    """All that was to be moved has been moved: the link ends by itself."""


Event: TypeAlias = (
    Started
    | Connected
    | Prepared
    | Delivered
    | Answered
    | Returned
    | RouteDue
    | Failed
    | AlarmChanged
    | DestinationBlocked
    | DemandChanged
    | DemandMissed
    | StopRequested
)
Action: TypeAlias = (
    Connect
    | Forward
    | Acknowledge
    | Requeue
    | Consume
    | CancelConsume
    | AwaitDemand
    | AwaitRoute
    | TellDropped
    | HoldReading
    | ResumeReading
    | Disconnect
    | Finish
)
