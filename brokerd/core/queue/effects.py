"""What applying a queue or catalog command asks the outside to do.

Effects are data.  The leader's driver realises them (for the catalog: every member's), in order;
doing one twice is harmless because each names messages by number or objects by uid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from brokerd.core.message import Range
from brokerd.core.queue.certificates import Certificate


class ConsumerId(NamedTuple):
    """A consumer anywhere in the cluster.  tag "" stands for the channel's basic.get deliveries."""

    node: str
    #: Rises with each process start: a restarted node's old consumers are never taken for new ones.
    incarnation: int
    #: Unique within the incarnation (not the AMQP channel number, which is used again).
    channel: int
    tag: str


class Run(NamedTuple):
    """Consecutive messages of one log entry: where they are and how they are to be flagged."""

    #: Number of the first message within its queue; the others follow.
    first: int
    length: int
    #: Log index of the entry that holds them, and the position of the first within it.
    entry: int
    position: int
    #: How often it was handed out here before (R-DL-5, R-ACK-8).
    acquired_count: int
    delivery_count: int


def times_acquired(run: Run) -> int:
    """Return how often these were handed out before, as clients see it; > 0 means redelivered.

    A dead letter that had failed before it came here counts as handed out that often, until it
    returns here for the first time (R-DLX-35).
    """
    return run.acquired_count or run.delivery_count


@dataclass(slots=True)
class Deliver:
    """Send these messages to a consumer.  Already checked out to it, or settled if it is no_ack.

    Only the leader of the command's own term sends them.  A later leader, which applies the command
    late, leaves it to RESUME: the consumer may have had them, and even settled them, long since.
    """

    consumer: ConsumerId
    runs: list[Run]


@dataclass(slots=True)
class DeadLetter:
    """At-most-once: publish these to the dead letter exchange; they have left the queue."""

    reason: str
    exchange: str
    #: None: keep the message's own keys (R-DLX-10).
    routing_key: str | None
    runs: list[Run]
    now_ms: int
    #: Who had them; None: no consumer, or it is not said.
    certificate: Certificate | None = None


@dataclass(slots=True)
class Reroute:
    """Publish these to the queue's alternate exchange; they have left the queue (R-MQ-2).

    A message that has been through an alternate exchange before is discarded instead (R-MQ-5);
    that stands beside the message, where the machine does not look.
    """

    #: rejected, orphaned or maxlen
    reason: str
    exchange: str
    runs: list[Run]


@dataclass(slots=True)
class GivenUp:
    """These left the queue for its delivery limit and go nowhere: it has no dead letter exchange.

    Nothing is to be done for them; their leader tells what kind of messages they were.
    """

    runs: list[Run]


@dataclass(slots=True)
class LeadershipBegun:
    """A new leader has applied all that earlier leaders left: consumers everywhere must resume.

    `consumers` were there before this term.  What an earlier leader sent them may be lost, so
    nothing more is sent until they have resumed: it would come out of order.
    """

    consumers: tuple[ConsumerId, ...] = ()


@dataclass(slots=True)
class Resumed:
    """The consumer has said what it holds; what else is checked out to it follows, in order."""

    consumer: ConsumerId


@dataclass(slots=True)
class DeadLettersWaiting:
    """At-least-once: the worker beside the leader has something to check out."""


@dataclass(slots=True)
class JobUnderWay:
    """The worker beside the leader has a job to do, or to end."""


@dataclass(slots=True)
class ConsumerCancelled:
    """Tell the client that its consumer is gone (R-CS-6)."""

    consumer: ConsumerId
    cause: str


#: How the cause of a cancelled consumer begins whose time was over (R-QQ-22).
TIMED_OUT = "consumer timeout "


def timed_out(timeout_ms: int) -> str:
    """Return the cause for a consumer that held a message for longer than this."""
    return f"{TIMED_OUT}{timeout_ms} ms"


@dataclass(slots=True)
class QueueDeleted:
    """The queue ended by its own terms or by command: its catalog record is to be removed.

    cause: admin, client, auto-delete, expired.  Emitted again by every new leader until the group
    is gone.
    """

    cause: str


@dataclass(slots=True)
class Dropped:
    """So many messages, and dead letters that waited, are gone.  Nothing is to be done for them;
    the leader counts and logs them.

    cause: purge, policy, or that of the queue's end (QueueDeleted).
    """

    cause: str
    messages: int
    letters: int = 0


@dataclass(slots=True)
class MessagesReleased:
    """These messages left the queue for good (a hint that entries may be dead; never required)."""

    ranges: list[Range]
