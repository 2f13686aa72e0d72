"""From the bytes of a queue command to checked values, before anything of the state is touched.

A committed command can be malformed (another version, a defect of a sender); the queue machine
answers it with a refusal, so everything that can be wrong must show here, as one of `MALFORMED`.
Only the queue machine uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations, RedrivenFrom
from brokerd.core.message import Range
from brokerd.core.queue import (
    certificates,
    client_sessions,
    joined_settlements,
    queue_commands,
    settling_gets,
)
from brokerd.core.queue.certificates import NO_DETAILS, Client, Details
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.enqueue_commands import EnqueueHead
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_jobs import ORDER_CHARACTERS_MAX, PROGRESS_CHARACTERS_MAX
from brokerd.core.queue.watched_copies import GROUP_CHARACTERS_MAX
from brokerd.core.queue_options import QueueOptions, kept

#: What decoding raises for bytes that are no command (json and unicode errors are ValueErrors).
MALFORMED = (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError)

#: x-max-priority goes up to 255 (R-PRI-1).
PRIORITY_MAX = 255

_U64_MAX = (1 << 64) - 1

_SETTLE = bytes((queue_commands.VERSION, Kind.SETTLE))

#: Larger times (ms) and counts mean this one.  Snapshots have 63 bits for a time and what is added
#: to it (queue_snapshot.py); this is more than a hundred million years.
AMOUNT_MAX = 1 << 62


class Traits(NamedTuple):
    """What an enqueued message brings along that the queue must know."""

    ttl_ms: int | None
    #: None: the message has no priority of its own.
    priority: int | None
    delivery_count: int
    #: In the queue of an exchange that delays messages.
    delay_ms: int = 0
    #: There it replaces the message with the same key, which `cancels` only takes away.
    delay_key: str | None = None
    cancels: bool = False
    #: In any other queue: it waits until then, in ms since 1970.
    deliver_at_ms: int = 0


PLAIN = Traits(None, None, 0)


@dataclass(slots=True)
class Enqueue:
    """A batch; traits are runs (count, traits), None where no message has any."""

    head: EnqueueHead
    traits: list[tuple[int, Traits]] | None
    #: Positions of copies that a redrive sent, ascending.
    copies: list[tuple[int, RedrivenFrom]] | None = None


@dataclass(slots=True)
class Ranges:
    """SETTLE, RETURN, DISCARD, RESUME: messages of one consumer."""

    consumer: ConsumerId
    ranges: list[Range]
    cause: ReturnCause | None = None
    details: Details = NO_DETAILS


@dataclass(slots=True, frozen=True)
class Get:
    """basic.get; `ranges` are those that the consumer settles first."""

    consumer: ConsumerId
    no_ack: bool
    ranges: list[Range]


@dataclass(slots=True)
class Delete:
    """End the queue."""

    if_empty: bool
    if_unused: bool
    cause: str


@dataclass(slots=True)
class Node:
    """A node, with its incarnation where one is given; whether it has begun to lead the queue."""

    node: str
    incarnation: int = 0
    channel: int = 0
    leads: bool = False
    #: Of a channel that ended, by consumer tag: what its client was sent; None: not known.
    written: dict[str, list[Range]] | None = None
    #: Of a channel that ended: of what it got by basic.get.
    client: Client | None = None


@dataclass(slots=True)
class JobStart:
    """Begin a job."""

    order: str
    user: str


@dataclass(slots=True)
class JobStop:
    """End a job early."""

    user: str


class OfJob(Protocol):
    """A command of a job's worker."""

    id: int
    #: In which its leader leads.
    term: int


@dataclass(slots=True)
class JobTake:
    """Messages that a job is to have in hand."""

    id: int
    term: int
    ranges: list[Range]
    #: Of those that wait until they are due, instead of ready ones.
    waiting: bool = False


@dataclass(slots=True)
class JobSettle:
    """Messages that a job has done with."""

    id: int
    term: int
    gone: list[Range]
    staying: list[Range]
    progress: str | None


@dataclass(slots=True)
class JobEnd:
    """A job is over."""

    id: int
    term: int
    receipt: str


def _enqueue(data: bytes) -> Enqueue:
    head = EnqueueHead(data)
    raws = head.annotations()
    if raws is None:
        return Enqueue(head, None)
    # Messages of one batch tend to have equal annotations.
    known: dict[bytes, Traits] = {b"": PLAIN}
    runs: list[tuple[int, Traits]] = []
    copies: list[tuple[int, RedrivenFrom]] = []
    for position, raw in enumerate(raws):
        traits = known.get(raw)
        if traits is None:
            annotations = message_annotations.decode(raw)
            traits = _traits(annotations)
            if annotations.redriven is None:
                known[raw] = traits
            else:
                # Not of the traits, which would be different for each copy.
                copies.append((position, _redriven(annotations.redriven)))
        if runs and runs[-1][1] == traits:
            runs[-1] = (runs[-1][0] + 1, traits)
        else:
            runs.append((1, traits))
    is_plain = len(runs) == 1 and runs[0][1] == PLAIN
    return Enqueue(head, None if is_plain else runs, copies or None)


def _redriven(copy: RedrivenFrom) -> RedrivenFrom:
    numbers = [_integer(number) for number in copy[:3]]
    if any(not 0 <= number <= _U64_MAX for number in numbers):
        raise ValueError("a copy names its message by unsigned 64-bit numbers")
    source, job, number = numbers
    return RedrivenFrom(source, job, number, _bounded(_text(copy.group), GROUP_CHARACTERS_MAX))


def _traits(known: Annotations) -> Traits:
    ttl_ms = None if known.ttl_ms is None else _amount(known.ttl_ms)
    priority = None if known.priority is None else _amount(known.priority)
    traits = Traits(ttl_ms, priority, _amount(known.delivery_count), _amount(known.delay_ms or 0))
    if known.deliver_at_ms is not None:
        # A TTL is added to it.
        deliver_at_ms = min(_amount(known.deliver_at_ms), AMOUNT_MAX >> 1)
        traits = traits._replace(deliver_at_ms=deliver_at_ms)
    if known.delay_key is None:
        return traits
    return traits._replace(delay_key=_text(known.delay_key), cancels=known.delay_ms is None)


def _ranges(data: bytes) -> Ranges:
    consumer, ranges, cause = queue_commands.decode_ranges(data)
    return Ranges(consumer, _checked(ranges), ReturnCause(cause) if cause else None)


def _detailed(data: bytes) -> Ranges:
    """Of RETURN and DISCARD."""
    decoded = _ranges(data)
    details = queue_commands.decode_details(data)
    if details is not None:
        reason, client = details
        decoded.details = Details(certificates.plain_reason(_text(reason)), _client(client))
    return decoded


def _joined(data: bytes) -> list[Ranges]:
    parts = joined_settlements.decode(data)
    if any(part[:2] != _SETTLE for part in parts):
        raise ValueError("only settlements are joined")
    return [_ranges(part) for part in parts]


def _checkout(data: bytes) -> Checkout:
    # Types first: nothing of another type ever stands in a record.
    given = queue_commands.decode_json(data)
    for name, check in _CHECKOUT_FIELDS.items():
        if name in given:
            given[name] = check(given[name])
    return Checkout(**given)


def _client(value: Any) -> Client | None:
    if value is None:
        return None
    connection, product, version = value
    return certificates.client(_text(connection), _text(product), _text(version))


def _timeout(value: Any) -> int | None:
    return None if value is None else max(1, _integer(value))


def _credit(value: Any) -> int | None:
    return None if value is None else _amount(value)


def _cancel(data: bytes) -> ConsumerId:
    return _consumer(queue_commands.decode_json(data)["consumer"])


def _resume(data: bytes) -> Ranges:
    command = queue_commands.decode_json(data)
    return Ranges(_consumer(command["consumer"]), _pairs(command["held"]))


def _get(data: bytes) -> Get:
    get, ranges = settling_gets.decode(data)
    known = _plain_get(get)
    return Get(known.consumer, known.no_ack, _checked(ranges)) if ranges else known


@lru_cache(maxsize=queue_commands.GETS_KEPT)
def _plain_get(data: bytes) -> Get:
    command = queue_commands.decode_json(data)
    return Get(_consumer(command["consumer"]), _boolean(command["no_ack"]), [])


def _delete(data: bytes) -> Delete:
    command = queue_commands.decode_json(data)
    return Delete(
        _boolean(command["if_empty"]), _boolean(command["if_unused"]), _text(command["cause"])
    )


def _node(data: bytes) -> Node:
    command = queue_commands.decode_json(data)
    return Node(
        _text(command["node"]),
        _integer(command.get("incarnation", 0)),
        _integer(command.get("channel", 0)),
        _boolean(command.get("leads", False)),
        _written(command.get("written")),
        _client(command.get("client")),
    )


def _written(value: Any) -> dict[str, list[Range]] | None:
    return None if value is None else {_text(tag): _pairs(ranges) for tag, ranges in value}


def _options(data: bytes) -> QueueOptions:
    given = queue_commands.decode_json(data)
    default = QueueOptions()
    for field in fields(QueueOptions):
        if field.name in given:
            given[field.name] = _option(field.name, given[field.name], getattr(default, field.name))
    return kept(QueueOptions(**given))


def _option(name: str, value: Any, usual: object) -> Any:
    if isinstance(usual, bool):
        return _boolean(value)
    if name == "max_priority":
        return min(_amount(value), PRIORITY_MAX)
    if isinstance(usual, int):
        return _amount(value)
    if value is None and usual is None:
        return None
    if isinstance(usual, str) or name.endswith(("_exchange", "_routing_key")):
        return _text(value)
    if name == "delivery_limit":
        # R-DL-1: negative means unlimited.
        return value if _integer(value) >= 0 else None
    return _amount(value)


def _nothing(data: bytes) -> None:
    queue_commands.decode_json(data)


def _count(data: bytes) -> int:
    return _amount(queue_commands.decode_json(data)["count"])


def _only_ranges(data: bytes) -> list[Range]:
    return _pairs(queue_commands.decode_json(data)["ranges"])


def _job_start(data: bytes) -> JobStart:
    command = queue_commands.decode_json(data)
    order = _bounded(_text(command["order"]), ORDER_CHARACTERS_MAX)
    return JobStart(order, _text(command["user"]))


def _job_take(data: bytes) -> JobTake:
    command = queue_commands.decode_json(data)
    ranges = _pairs(command["ranges"])
    waiting = _boolean(command.get("waiting", False))
    return JobTake(_integer(command["id"]), _integer(command["term"]), ranges, waiting)


def _job_settle(data: bytes) -> JobSettle:
    command = queue_commands.decode_json(data)
    progress = command.get("progress")
    if progress is not None:
        progress = _bounded(_text(progress), PROGRESS_CHARACTERS_MAX)
    gone, staying = _pairs(command["gone"]), _pairs(command["staying"])
    return JobSettle(_integer(command["id"]), _integer(command["term"]), gone, staying, progress)


def _job_stop(data: bytes) -> JobStop:
    return JobStop(_text(queue_commands.decode_json(data)["user"]))


def _job_end(data: bytes) -> JobEnd:
    command = queue_commands.decode_json(data)
    receipt = _bounded(_text(command["receipt"]), PROGRESS_CHARACTERS_MAX)
    return JobEnd(_integer(command["id"]), _integer(command["term"]), receipt)


def _bounded(text: str, characters_max: int) -> str:
    if len(text) > characters_max:
        raise ValueError(f"longer than {characters_max} characters")
    return text


def _pairs(value: Any) -> list[Range]:
    return _checked([(_integer(low), _integer(high)) for low, high in value])


def _checked(ranges: list[Range]) -> list[Range]:
    if any(not 0 <= low <= high <= _U64_MAX for low, high in ranges):
        raise ValueError("a range must be [low, high) of unsigned 64-bit numbers")
    return ranges


def _consumer(value: Any) -> ConsumerId:
    node, incarnation, channel, tag = value
    return ConsumerId(_text(node), _integer(incarnation), _integer(channel), _text(tag))


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"integer expected, not {type(value).__name__}")
    return value


def _amount(value: Any) -> int:
    return min(max(0, _integer(value)), AMOUNT_MAX)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"boolean expected, not {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value


_CHECKOUT_FIELDS: dict[str, Callable[[Any], Any]] = {
    "consumer": _consumer,
    "prefetch": _amount,
    "priority": _integer,
    "no_ack": _boolean,
    "exclusive": _boolean,
    "user": _text,
    "timeout_ms": _timeout,
    "credit": _credit,
    "drains": _boolean,
    "client": _client,
}


def _once(data: bytes) -> client_sessions.Once:
    envelope = client_sessions.decode_envelope(data)
    _, envelope.command = decode(client_sessions.inside(data))
    return envelope


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    Kind.ENQUEUE: _enqueue,
    Kind.SETTLE: _ranges,
    Kind.RETURN: _detailed,
    Kind.DISCARD: _detailed,
    Kind.CHECKOUT: _checkout,
    Kind.CANCEL: _cancel,
    Kind.RESUME: _resume,
    Kind.GET: _get,
    Kind.PURGE: _nothing,
    Kind.DEAD_LETTERS_DISCARD: _nothing,
    Kind.DELETE: _delete,
    Kind.CHANNEL_DOWN: _node,
    Kind.NODE_DOWN: _node,
    Kind.NODE_UP: _node,
    Kind.UPDATE_OPTIONS: _options,
    Kind.TICK: _nothing,
    Kind.DEAD_LETTERS_CHECKOUT: _count,
    Kind.DEAD_LETTERS_SETTLE: _only_ranges,
    Kind.DECLARED: _nothing,
    Kind.ONCE: _once,
    Kind.PUBLISHERS_ENDED: queue_commands.decode_publishers_ended,
    Kind.JOINED_SETTLEMENTS: _joined,
    Kind.JOB_START: _job_start,
    Kind.JOB_TAKE: _job_take,
    Kind.JOB_SETTLE: _job_settle,
    Kind.JOB_STOP: _job_stop,
    Kind.JOB_END: _job_end,
}


def decode(data: bytes) -> tuple[int, Any]:
    """Return (kind, checked command); raise one of MALFORMED."""
    version, kind = data[0], data[1]
    if version != queue_commands.VERSION:
        raise ValueError(f"command version {version} is not known")
    return kind, _DECODERS[kind](data)
