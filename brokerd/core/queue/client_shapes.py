"""What clients of a queue hand in and read of its answers, apart from commands and bytes.  PURE."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.core.queue.certificates import Client
from brokerd.core.queue.effects import ConsumerId


@dataclass(slots=True, frozen=True)
class Counts:
    """For declare-ok (R-Q-3)."""

    ready: int
    consumers: int
    #: Channels that hold messages of a quorum queue by basic.get or a consumer that is cancelled.
    holders: int = 0


@dataclass(slots=True, frozen=True)
class Deleted:
    """How the deletion of a queue went; not done: it is in use."""

    done: bool
    messages: int = 0
    consumers: int = 0
    #: Why the numbers are not known; "": they are right.
    unknown: str = ""


@dataclass(slots=True)
class Checkout:
    """Register a consumer, or change its settings; prefetch 0 means the queue type's ceiling."""

    consumer: ConsumerId
    prefetch: int
    no_ack: bool
    exclusive: bool
    priority: int
    #: Of the connection's user, for listings and telemetry.
    user: str
    #: x-consumer-timeout; None: the queue's (R-QQ-22).
    timeout_ms: int | None = None
    #: So many more messages may be handed out to it, besides what it was granted before; None: as
    #: many as its prefetch allows.
    credit: int | None = None
    #: What is ready is handed out, up to the credit; what is left of that is withdrawn.
    drains: bool = False
    #: For what is said at a death of its messages; None: nothing is.
    client: Client | None = None
