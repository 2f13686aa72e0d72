"""What a job of a queue is asked to do, and what is known of it: redrive, move, delete.

For the front doors, which take and show both, and for the job's worker at the queue's leader.  The
queue's machine keeps a job's order and progress as bytes and looks into neither.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from brokerd.core.filters.message_filter import compile_filter

#: Characters of a filter; the same for looks (server/listings/browses.py).
FILTER_CHARACTERS_MAX = 4_096
#: Bytes of a name in AMQP.
NAME_BYTES_MAX = 255
#: Messages a second and of a job: what a number can say at all.
RATE_MAX, COUNT_MAX = 1_000_000, 2**53
CANARY_MAX = 10_000


class JobError(ValueError):
    """An order makes no sense; the text says what to change."""


class JobKind(StrEnum):
    """What a job does with each message that it covers."""

    #: Send it back: what is known of its deaths moves to `x-redrive-history`.
    REDRIVE = "redrive"
    #: Send it on as it is.
    MOVE = "move"
    DELETE = "delete"


class To(StrEnum):
    """Where a message goes."""

    #: The queue of its first death, through the default exchange.
    ORIGIN = "origin"
    #: The exchange and keys with which it was published first.
    REPUBLISH = "republish"
    #: One queue, through the default exchange.
    QUEUE = "queue"
    #: One exchange, with one key or the message's own.
    EXCHANGE = "exchange"
    #: Nowhere: of deletions.
    NOWHERE = "nowhere"


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    #: For an alarm, a user who is gone or lacks a right, a target without a leader: `why` says it.
    PAUSED = "paused"
    #: Told to stop: what is on its way is waited for.
    STOPPING = "stopping"
    #: All that it covers has been looked at.
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True, frozen=True)
class JobOrder:
    """One order.  `check` refuses what makes no sense."""

    kind: JobKind
    vhost: str
    queue: str
    #: In the language of docs/reference/filters.md; "": all messages.
    filter: str = ""
    #: A fingerprint of triage; "": all groups.
    group: str = ""
    to: To = To.ORIGIN
    #: The queue or the exchange that `to` speaks of.
    target: str = ""
    #: Of an exchange; None: the message's own.
    routing_key: str | None = None
    #: Messages a second; 0: as fast as the targets confirm.
    rate: int = 0
    #: Messages; 0: all.
    max: int = 0
    #: Of each group so many first; the group goes on when consumers have acknowledged them; 0: off.
    canary: int = 0
    #: A group stops when so many of what the job sent have died again; 0: never.
    stop_after_deaths: int = 0
    #: `x-death` stays as it is.
    keeps_history: bool = False
    restores_expiration: bool = False
    trusts_headers: bool = False

    def check(self) -> None:
        """Raise JobError, with what to do, for what makes no sense."""
        if len(self.filter) > FILTER_CHARACTERS_MAX:
            raise JobError(f"filter: longer than {FILTER_CHARACTERS_MAX} characters")
        if self.filter:
            try:
                compile_filter(self.filter)
            except ValueError as error:
                raise JobError(f"filter: {error}") from error
        for name, value, most in (
            ("rate", self.rate, RATE_MAX),
            ("max", self.max, COUNT_MAX),
            ("canary", self.canary, CANARY_MAX),
            ("stop_after_deaths", self.stop_after_deaths, COUNT_MAX),
        ):
            if not 0 <= value <= most:
                raise JobError(f"{name}: from 0 to {most}")
        for name, text in (("target", self.target), ("routing_key", self.routing_key or "")):
            if len(text.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
                raise JobError(f"{name}: longer than {NAME_BYTES_MAX} bytes")
        self._check_target()

    def _check_target(self) -> None:
        if (self.kind is JobKind.DELETE) != (self.to is To.NOWHERE):
            raise JobError("to: a deletion has no target, everything else has one")
        if self.kind is JobKind.MOVE and self.to not in (To.QUEUE, To.EXCHANGE):
            raise JobError("to: a move goes to a queue or an exchange; redrive sends messages back")
        if self.to is To.QUEUE and not self.target:
            raise JobError("target: which queue?")
        if self.to is To.QUEUE and self.target == self.queue:
            raise JobError("target: the queue itself")
        if self.target and self.to not in (To.QUEUE, To.EXCHANGE):
            raise JobError(f"target: '{self.to}' needs none")
        if self.routing_key is not None and self.to is not To.EXCHANGE:
            raise JobError("routing_key: for an exchange alone")
        if self.kind is not JobKind.REDRIVE:
            for name in ("canary", "stop_after_deaths", "keeps_history", "restores_expiration"):
                if getattr(self, name):
                    raise JobError(f"{name}: of redrives alone")

    def as_json(self) -> dict[str, Any]:
        """Return all fields by their names; `order_of` reads them."""
        return asdict(self)


@dataclass(slots=True)
class Outcomes:
    """What became of messages: `sent` and `stayed` count messages, all else copies, one a target.

    Each copy is counted once; of redrives alone.
    """

    #: Confirmed by every target (of deletions: deleted).
    sent: int = 0
    #: Consumers acknowledged them, they died again, they wait (ready or unacknowledged).
    acknowledged: int = 0
    died_again: int = 0
    waiting: int = 0
    #: Purged, deleted, gone with their queue, or sent on by another job.
    removed: int = 0
    #: Second copies of one message at one target: what becomes of them is not counted.
    duplicates: int = 0
    #: Their target does not know any more what became of them, or never did.
    unknown: int = 0
    #: Still in the queue, by reason.
    stayed: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class JobStatus:
    """What is known of a job; at its end: the receipt."""

    #: Unique in its queue; grows.
    id: int
    order: JobOrder
    user: str
    state: JobState
    #: Why it is paused, or was stopped.
    why: str = ""
    started_ms: int = 0
    ended_ms: int | None = None
    #: Messages looked at in this pass; on their way to targets now.
    looked_at: int = 0
    held: int = 0
    total: Outcomes = field(default_factory=Outcomes)
    #: By fingerprint of triage; of redrives alone.
    groups: dict[str, Outcomes] = field(default_factory=dict)
    #: What each target said last, by uid (core/triage/outcomes.py); for members, not for clients.
    targets: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    #: Copies that targets have confirmed, by group; for members, too.
    copies: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return all fields by their names; `status_of` reads them."""
        return asdict(self)


def order_of(fields: Mapping[str, Any]) -> JobOrder:
    """Return the order that `as_json` or a client wrote; JobError for what is not one."""
    known = JobOrder.__dataclass_fields__
    if unknown := sorted(set(fields) - set(known)):
        raise JobError(f"{unknown[0]}: not a field of a job; fields are {', '.join(known)}")
    values = dict(fields)
    for name in ("kind", "vhost", "queue"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise JobError(f"{name}: missing")
    values["kind"] = _choice("kind", JobKind, values["kind"])
    if "to" in values:
        values["to"] = _choice("to", To, values["to"])
    elif values["kind"] is JobKind.DELETE:
        values["to"] = To.NOWHERE
    for name, value in values.items():
        expected = type(known[name].default)
        if name == "routing_key":
            is_right = value is None or isinstance(value, str)
        elif name in ("kind", "vhost", "queue", "to"):
            is_right = isinstance(value, str)
        else:
            is_right = type(value) is expected
        if not is_right:
            kinds = {bool: "true or false", int: "a number", str: "a text"}
            raise JobError(f"{name}: {kinds.get(expected, 'a text')} is expected")
    return JobOrder(**values)


def status_of(fields: Mapping[str, Any]) -> JobStatus:
    """Return the status that `JobStatus.as_json` wrote."""
    # Types first: nothing of another type ever stands in a record.
    values = dict(fields)
    values["order"] = order_of(fields["order"])
    values["state"] = JobState(fields["state"])
    values["total"] = Outcomes(**fields["total"])
    values["groups"] = {name: Outcomes(**group) for name, group in fields["groups"].items()}
    return JobStatus(**values)


def _choice(name: str, kind: type[StrEnum], value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        raise JobError(f"{name}: one of {', '.join(member.value for member in kind)}") from None
