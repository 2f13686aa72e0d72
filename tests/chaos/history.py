"""What the clients of a chaos run saw: publishes, confirms, deliveries, faults, what was left.

Data only.  `load` fills it while it runs, `checker` judges it afterwards; nobody else writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

#: Every 20th message is rejected by who gets it and must arrive in the queue of dead letters.
REJECT_EVERY = 20
#: What a consumer may hold.
PREFETCH = 50
#: Every 33rd message is given back once, when it comes for the first time.
RETURN_EVERY = 33


class MessageKey(NamedTuple):
    """Names a message: a publisher never uses a number twice, over all its connections."""

    publisher: int
    number: int


def must_be_rejected(number: int) -> bool:
    """Tell whether consumers of a work queue reject this message, each time it comes."""
    return number % REJECT_EVERY == 0


def must_be_returned(number: int) -> bool:
    """Tell whether consumers give this message back when it comes for the first time."""
    return number % RETURN_EVERY == 1 and not must_be_rejected(number)


class Delivery(NamedTuple):
    """One basic.deliver as a consumer's channel received it."""

    queue: str
    #: Channel of one connection; a consumer that reconnects has a new one.
    channel: int
    key: MessageKey
    #: Connection of the publisher; order holds within one.
    epoch: int
    redelivered: bool
    at_s: float


class FaultSpan(NamedTuple):
    """From the injection until everything was undone and all members were started again."""

    what: str
    begin_s: float
    healed_s: float


@dataclass(slots=True)
class History:
    """Everything recorded in one run; times are of one monotonic clock, in seconds."""

    #: Everything that was handed to a socket, with the queue it was meant for.
    attempted: dict[MessageKey, str] = field(default_factory=dict)
    #: Time of each positive confirm.
    confirmed: dict[MessageKey, float] = field(default_factory=dict)
    #: Time of the latest confirm of each queue.
    latest: dict[str, float] = field(default_factory=dict)
    nacked: set[MessageKey] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    #: Bodies that are none of ours.
    strange: list[bytes] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    #: Per queue what the members said at the end: ready messages, None for no answer.
    left: dict[str, list[int | None]] = field(default_factory=dict)
    #: Confirmed and not yet received when the members' logs were read, and those of them that too
    #: few logs held.
    looked_for: int = 0
    scarce: list[MessageKey] = field(default_factory=list)
    #: Members that did not come back, and the like: each is a violation.
    broken: list[str] = field(default_factory=list)
    #: The queue where rejected messages must arrive.
    dead_queue: str = "dead"
    began_s: float = 0.0
    #: When the publishers were stopped.
    ended_s: float = 0.0
