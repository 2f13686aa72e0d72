"""Commands and replies of the queue machine, as bytes in the log and on the peer stream.

First byte: format version; second: kind.  Commands of the hot path (enqueue, settle, return,
discard) are packed, one per batch; the others carry JSON, where clarity is worth more than
nanoseconds.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain
from operator import add
from typing import Any

import orjson

from brokerd.core.message import Content, Range, Route
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue_options import QueueOptions

VERSION = 1

#: Commands of basic.get that are kept as bytes: each channel that gets repeats the same one.
GETS_KEPT = 256
#: Consumers whose part of a settlement is kept, as bytes and as what they mean: each settles again
#: and again.
CONSUMERS_KEPT = 1024


class Kind(IntEnum):
    """The second byte of a command."""

    ENQUEUE = 1
    SETTLE = 2
    RETURN = 3
    DISCARD = 4
    CHECKOUT = 5
    CANCEL = 6
    RESUME = 7
    GET = 8
    PURGE = 9
    DELETE = 10
    CHANNEL_DOWN = 11
    NODE_DOWN = 12
    NODE_UP = 13
    UPDATE_OPTIONS = 14
    TICK = 15
    DEAD_LETTERS_CHECKOUT = 16
    DEAD_LETTERS_SETTLE = 17
    DECLARED = 18
    #: Another command in an envelope (client_sessions.py).
    ONCE = 19


class ReturnCause(IntEnum):
    """Why messages come back; what counts against the delivery limit depends on it (R-DL-2)."""

    NACK = 1
    REJECT = 2
    RECOVER = 3


@dataclass(slots=True)
class Checkout:
    """Register a consumer; prefetch 0 means the queue type's ceiling."""

    consumer: ConsumerId
    prefetch: int
    no_ack: bool
    exclusive: bool
    priority: int
    #: Of the connection's user, for listings and telemetry.
    user: str
    #: x-consumer-timeout; None: the queue's (R-QQ-22).
    timeout_ms: int | None = None


#: A plain number: packing a member of an enumeration costs a call.
_ENQUEUE_KIND = int(Kind.ENQUEUE)
_HEAD = struct.Struct("<BB")
_ENQUEUE = struct.Struct("<BBBBHIQQQ")
_PAIR_COUNT = struct.Struct("<I")
_U64x2 = struct.Struct("<QQ")
#: The most frequent settlement: one range.
_ONE_PAIR = struct.Struct("<IQQ")

#: Enqueue flags: arrays that are present.
_HAS_ROUTE_INDEXES = 1
_HAS_ANNOTATIONS = 2


def encode_enqueue(
    node: str, incarnation: int, channel: int, first_sequence: int, contents: Sequence[Content]
) -> bytes:
    """Encode a batch of one publishing channel.

    first_sequence: the enqueuer's own number of the first message, rising by one per message and
    queue from 1; 0 switches duplicate detection off (broker's own publishes).  channel 0 with
    sequence 0 is an at-most-once dead letter, which passes reject-publish of a quorum queue
    (R-QQ-26); who wants the limit to hold (the at-least-once worker, R-ALO-6) has a channel.
    Layout: head, node, routes, [u16 route indexes], u32 header sizes, u32 body sizes,
    [u32 annotation sizes], blob of header, body(, annotations) per message.
    """
    count = len(contents)
    blob: list[bytes] = []
    append = blob.append
    known: dict[Route, int] = {contents[0][0]: 0} if count else {}
    last = contents[0][0] if count else None
    is_annotated = False
    # One pass; what all messages of the ordinary batch share is looked at once.
    for route, header, body, annotation in contents:
        if route is not last:
            last = route
            known.setdefault(route, len(known))
        append(header)
        append(body)
        if annotation:
            is_annotated = True
    flags = _HAS_ROUTE_INDEXES if len(known) > 1 else 0
    headers, bodies, annotations = blob[::2], blob[1::2], []
    if is_annotated:
        flags |= _HAS_ANNOTATIONS
        annotations = [content[3] for content in contents]
        blob = list(chain.from_iterable(content[1:] for content in contents))
    name = node.encode()
    parts = [
        _ENQUEUE.pack(
            VERSION,
            _ENQUEUE_KIND,
            flags,
            len(name),
            len(known),
            count,
            incarnation,
            channel,
            first_sequence,
        ),
        name,
        *map(_encoded_route, known),
    ]
    if len(known) > 1:
        parts.append(struct.pack(f"<{count}H", *[known[content[0]] for content in contents]))
    parts += (_sizes(headers), _sizes(bodies))
    if is_annotated:
        parts.append(_sizes(annotations))
    parts += blob
    return b"".join(parts)


#: What is left of an enqueue command's numbers: a channel, so that limits hold.
_UNNUMBERED = struct.pack("<QQQ", 0, 1, 0)
_NUMBERS_AT = _ENQUEUE.size - len(_UNNUMBERED)


def unnumbered(command: bytes) -> bytes:
    """Return an enqueue command as one of new messages, which are no duplicates of any."""
    return b"".join((command[:_NUMBERS_AT], _UNNUMBERED, command[_ENQUEUE.size :]))


#: 4,096 routes are remembered as they are written.
@lru_cache(4096)
def _encoded_route(route: Route) -> bytes:
    exchange, routing_key = (text.encode("utf-8", "surrogateescape") for text in route)
    return b"%c%b%c%b" % (len(exchange), exchange, len(routing_key), routing_key)


def _sizes(column: list[bytes]) -> bytes:
    """Return the lengths as a column of u32."""
    return struct.pack(f"<{len(column)}I", *map(len, column))


class EnqueueView:
    """A lazily read enqueue command: sizes are unpacked once, contents are sliced when asked for.

    Invariant: `ends[i]` is the offset behind message i in `data`, so message i's bytes are
    data[ends[i-1]:ends[i]] (blob_start for the first).
    """

    __slots__ = (
        "_annotation_sizes",
        "_header_sizes",
        "_route_indexes",
        "blob_start",
        "body_sizes",
        "channel",
        "count",
        "data",
        "ends",
        "first_sequence",
        "incarnation",
        "node",
        "routes",
    )

    def __init__(self, data: bytes) -> None:
        head = _ENQUEUE.unpack_from(data)
        version, kind, flags, name_size, route_count, count = head[:6]
        if version != VERSION or kind != Kind.ENQUEUE:
            raise ValueError(f"not an enqueue command of version {VERSION}: {data[:2]!r}")
        self.data = data
        self.count: int = count
        self.incarnation, self.channel, self.first_sequence = head[6:]
        at = _ENQUEUE.size
        self.node = data[at : at + name_size].decode()
        at += name_size
        routes: list[Route] = []
        for _ in range(route_count):
            exchange, at = _short(data, at)
            routing_key, at = _short(data, at)
            routes.append((exchange, routing_key))
        self.routes = routes
        self._route_indexes: tuple[int, ...] | None = None
        if flags & _HAS_ROUTE_INDEXES:
            self._route_indexes = struct.unpack_from(f"<{count}H", data, at)
            at += 2 * count
        sizes = struct.Struct(f"<{count}I")
        self._header_sizes = sizes.unpack_from(data, at)
        at += 4 * count
        self.body_sizes: tuple[int, ...] = sizes.unpack_from(data, at)
        at += 4 * count
        self._annotation_sizes: tuple[int, ...] | None = None
        if flags & _HAS_ANNOTATIONS:
            self._annotation_sizes = sizes.unpack_from(data, at)
            at += 4 * count
            totals = map(
                sum, zip(self._header_sizes, self.body_sizes, self._annotation_sizes, strict=True)
            )
        else:
            totals = map(sum, zip(self._header_sizes, self.body_sizes, strict=True))
        self.blob_start = at
        self.ends = list(accumulate(totals, initial=at))[1:]

    def contents(self, position: int, count: int) -> list[Content]:
        """Return `count` messages from `position` on."""
        data, ends, headers = self.data, self.ends, self._header_sizes
        bodies, routes, indexes = self.body_sizes, self.routes, self._route_indexes
        at = ends[position - 1] if position else self.blob_start
        route = routes[0]
        result: list[Content] = []
        for i in range(position, position + count):
            if indexes is not None:
                route = routes[indexes[i]]
            body_at = at + headers[i]
            end = body_at + bodies[i]
            annotations = data[end : ends[i]] if self._annotation_sizes is not None else b""
            result.append((route, data[at:body_at], data[body_at:end], annotations))
            at = ends[i]
        return result


class EnqueueHead:
    """What the queue machine itself needs of an enqueue command: who sent how many of what size.

    Routes, headers and bodies are not looked at; where all messages are equally large (the
    ordinary case) no size is unpacked either.  Raises ValueError or struct.error if the command
    is not whole, so that a reader of its contents need not check again.
    """

    __slots__ = (
        "_annotation_sizes",
        "_body_sizes",
        "_header_sizes",
        "blob_start",
        "channel",
        "count",
        "data",
        "first_sequence",
        "incarnation",
        "node",
    )

    def __init__(self, data: bytes) -> None:
        head = _ENQUEUE.unpack_from(data)
        version, kind, flags, name_size, route_count, count = head[:6]
        if version != VERSION or kind != _ENQUEUE_KIND or (count and not route_count):
            raise ValueError(f"not an enqueue command of version {VERSION}: {data[:2]!r}")
        self.data = data
        self.count: int = count
        self.incarnation, self.channel, self.first_sequence = head[6:]
        at = _ENQUEUE.size
        self.node = data[at : at + name_size].decode()
        at += name_size
        for _ in range(2 * route_count):
            at += 1 + data[at]
        if flags & _HAS_ROUTE_INDEXES:
            if max(struct.unpack_from(f"<{count}H", data, at), default=0) >= route_count:
                raise ValueError("route index beyond the routes")
            at += 2 * count
        self._header_sizes = data[at : at + 4 * count]
        at += 4 * count
        self._body_sizes = data[at : at + 4 * count]
        at += 4 * count
        self._annotation_sizes: bytes | None = None
        if flags & _HAS_ANNOTATIONS:
            self._annotation_sizes = data[at : at + 4 * count]
            at += 4 * count
        self.blob_start = at
        if at + total_size(self.size_columns(payload_only=False)) != len(data):
            raise ValueError("sizes and blob of an enqueue command disagree")

    def size_columns(self, payload_only: bool) -> list[bytes]:
        """Return columns of u32, one number per message, whose sums are the messages' sizes.

        payload_only: bodies; otherwise all that is stored of a message (R-LEN-1).
        """
        if payload_only:
            return [self._body_sizes]
        columns = [self._header_sizes, self._body_sizes]
        return columns if self._annotation_sizes is None else [*columns, self._annotation_sizes]

    def annotations(self) -> list[bytes] | None:
        """Return each message's annotations, None if none has any."""
        if self._annotation_sizes is None:
            return None
        result: list[bytes] = []
        at = self.blob_start
        for header, body, size in zip(
            _u32s(self._header_sizes),
            _u32s(self._body_sizes),
            _u32s(self._annotation_sizes),
            strict=True,
        ):
            at += header + body
            result.append(self.data[at : at + size])
            at += size
        return result


def equal_size(columns: Sequence[bytes]) -> int | None:
    """Return the size of each message if all are equally large (the ordinary case)."""
    size = 0
    for column in columns:
        first = column[:4]
        if column != first * (len(column) // 4):
            return None
        size += int.from_bytes(first, "little")
    return size


def total_size(columns: Sequence[bytes]) -> int:
    """Return the size of all messages together."""
    size = equal_size(columns)
    if size is not None:
        return size * (len(columns[0]) // 4)
    return sum(sum(_u32s(column)) for column in columns)


def cumulative_sizes(columns: Sequence[bytes]) -> array[int]:
    """Return the sizes of the first 0, 1, 2 … messages."""
    each: Iterable[int] = _u32s(columns[0])
    for column in columns[1:]:
        each = map(add, each, _u32s(column))
    return array("Q", accumulate(each, initial=0))


def _u32s(raw: bytes) -> array[int]:
    numbers = array("I", raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _short(data: bytes, at: int) -> tuple[str, int]:
    size = data[at]
    end = at + 1 + size
    return data[at + 1 : end].decode("utf-8", "surrogateescape"), end


def encode_ranges(
    kind: Kind, consumer: ConsumerId, ranges: Sequence[Range], cause: int = 0
) -> bytes:
    """Encode SETTLE, RETURN (with a ReturnCause) or DISCARD of number ranges [low, high)."""
    head = _ranges_head(kind, consumer, cause)
    if len(ranges) == 1:
        low, high = ranges[0]
        return head + _ONE_PAIR.pack(1, low, high)
    flat = [number for pair in ranges for number in pair]
    return head + struct.pack(f"<I{len(flat)}Q", len(ranges), *flat)


@lru_cache(CONSUMERS_KEPT)
def _ranges_head(kind: Kind, consumer: ConsumerId, cause: int) -> bytes:
    node, tag = consumer.node.encode(), consumer.tag.encode("utf-8", "surrogateescape")
    sizes = bytes((cause, len(node), len(tag)))
    numbers = _U64x2.pack(consumer.incarnation, consumer.channel)
    return b"".join((_HEAD.pack(VERSION, kind), sizes, node, tag, numbers))


def decode_ranges(data: bytes) -> tuple[ConsumerId, list[Range], int]:
    """Decode what encode_ranges made: consumer, ranges, cause."""
    cause, node_size, tag_size = data[2], data[3], data[4]
    tag_at = 5 + node_size
    at = tag_at + tag_size + _U64x2.size
    consumer = _consumer_of(data[5:at], node_size)
    (pairs,) = _PAIR_COUNT.unpack_from(data, at)
    if pairs == 1:
        return consumer, [_U64x2.unpack_from(data, at + 4)], cause
    flat = struct.unpack_from(f"<{2 * pairs}Q", data, at + 4)
    return consumer, list(zip(flat[::2], flat[1::2], strict=True)), cause


@lru_cache(CONSUMERS_KEPT)
def _consumer_of(data: bytes, node_size: int) -> ConsumerId:
    numbers_at = len(data) - _U64x2.size
    incarnation, channel = _U64x2.unpack_from(data, numbers_at)
    tag = data[node_size:numbers_at].decode("utf-8", "surrogateescape")
    return ConsumerId(data[:node_size].decode(), incarnation, channel, tag)


def _json(kind: Kind, fields: dict[str, Any]) -> bytes:
    return _HEAD.pack(VERSION, kind) + json.dumps(fields, separators=(",", ":")).encode()


def encode_checkout(checkout: Checkout) -> bytes:
    """Register a consumer.  Reply: JSON {"ok": true} or {"refused": code, "text": …}."""
    return _json(Kind.CHECKOUT, asdict(checkout))


def encode_cancel(consumer: ConsumerId) -> bytes:
    """Remove a consumer; its unacked messages stay with the channel (R-CS-3)."""
    return _json(Kind.CANCEL, {"consumer": consumer})


def encode_resume(consumer: ConsumerId, held: Sequence[Range]) -> bytes:
    """After a leader change: what the consumer's node holds; the rest of its checkout is sent
    again.
    """
    return _json(Kind.RESUME, {"consumer": consumer, "held": held})


@lru_cache(maxsize=GETS_KEPT)
def encode_get(consumer: ConsumerId, no_ack: bool) -> bytes:
    """basic.get (tag "").  Reply: JSON {"run": [six numbers of Run] or null, "ready": count}; the
    driver appends the content for a remote caller."""
    return _json(Kind.GET, {"consumer": consumer, "no_ack": no_ack})


#: How an answer to GET begins that brings a message.
_GET_REPLY = b'{"run":['


def encode_get_reply(run: Run | None, ready: int) -> bytes:
    """Answer GET: what was taken, and how many are left."""
    return orjson.dumps({"run": run and list(run), "ready": ready})


def decode_get_reply(data: bytes) -> tuple[Run, int] | None:
    """Return what GET took and how many are left; None: nothing, or refused (see decode_reply)."""
    if not data.startswith(_GET_REPLY):
        return None
    # The standard library takes as long as all that the queue does for a get.
    fields = orjson.loads(data)
    return tuple.__new__(Run, fields["run"]), fields["ready"]


def encode_purge() -> bytes:
    """Remove ready messages.  Reply: JSON {"messages": count}."""
    return _json(Kind.PURGE, {})


def encode_delete(if_empty: bool, if_unused: bool, cause: str) -> bytes:
    """End the queue.  Reply: JSON {"deleted": bool, "messages": ready, "consumers": count}."""
    return _json(Kind.DELETE, {"if_empty": if_empty, "if_unused": if_unused, "cause": cause})


def encode_channel_down(node: str, incarnation: int, channel: int) -> bytes:
    """A channel ended: its consumers go, its messages return and count as such (R-DL-2)."""
    return _json(Kind.CHANNEL_DOWN, {"node": node, "incarnation": incarnation, "channel": channel})


def encode_node_down(node: str) -> bytes:
    """A node is suspected: its messages return after disconnected_timeout_ms (R-QQ-16)."""
    return _json(Kind.NODE_DOWN, {"node": node})


def encode_node_up(node: str, incarnation: int, *, leads: bool = False) -> bytes:
    """A node is heard again; consumers of its earlier incarnations are gone.

    leads: it leads the queue from now on.  If consumers of an earlier incarnation are still known,
    that one was killed, and with it may be gone what it had not written (ADR 23).
    """
    fields: dict[str, Any] = {"node": node, "incarnation": incarnation}
    return _json(Kind.NODE_UP, fields | {"leads": True} if leads else fields)


def encode_update_options(options: QueueOptions) -> bytes:
    """Set the effective options; length limits trim at once (R-LEN-10)."""
    return _json(Kind.UPDATE_OPTIONS, options_fields(options))


def options_fields(options: QueueOptions) -> dict[str, Any]:
    """Return the options as a log and a snapshot have them.

    What came with a feature flag is left out while it says nothing: the last release refuses a
    field that it does not know.
    """
    known = asdict(options)
    if not options.delivery_limit_is_default:
        del known["delivery_limit_is_default"]
    return known


def encode_tick() -> bytes:
    """Look at time: expiry, queue expiry, disconnected consumers.

    Reply: JSON {"ok": true, "takers": whether a consumer could have a message now}.
    """
    return _json(Kind.TICK, {})


def encode_declared() -> bytes:
    """Someone declared the queue again (R-Q-3, R-Q-11).

    Reply: JSON {"ready": count, "consumers": count}.
    """
    return _json(Kind.DECLARED, {})


def encode_dead_letters_checkout(count: int) -> bytes:
    """Take up to `count` waiting dead letters that are not yet taken in this term.

    Reply: JSON {"letters": [{"run": [six numbers], "reason": …, "time_ms": …}], "exchange": …,
    "routing_key": …}.
    """
    return _json(Kind.DEAD_LETTERS_CHECKOUT, {"count": count})


def encode_dead_letters_settle(ranges: Sequence[Range]) -> bytes:
    """All targets of these dead letters have confirmed: they leave the queue (R-ALO-5)."""
    return _json(Kind.DEAD_LETTERS_SETTLE, {"ranges": ranges})


def decode_json(data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON command."""
    fields: dict[str, Any] = json.loads(data[2:])
    return fields


class EnqueueStatus(IntEnum):
    """How a batch fared."""

    OK = 0
    #: Nothing was taken over, since an earlier batch of this enqueuer (from `expected` on) has not
    #: arrived: a copy overtook it.  Both are sent again, under their numbers.
    GAP = 1
    #: The queue has been deleted (counts as taken over: R-PC-7).
    DELETED = 2


_ENQUEUE_REPLY = struct.Struct("<BBIQ")


def encode_enqueue_reply(status: EnqueueStatus, accepted: int, expected: int = 0) -> bytes:
    """accepted: how many messages from the start of the batch are in the queue (duplicates count);
    the others were refused by the length limit (R-LEN-3)."""
    return _ENQUEUE_REPLY.pack(VERSION, status, accepted, expected)


#: How an answer begins whose status is GAP.
GAP_REPLY = bytes((VERSION, EnqueueStatus.GAP))


def decode_enqueue_reply(data: bytes) -> tuple[EnqueueStatus, int, int]:
    """Return (status, accepted, expected)."""
    _, status, accepted, expected = _ENQUEUE_REPLY.unpack(data)
    return EnqueueStatus(status), accepted, expected


def decode_reply(data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON reply."""
    fields: dict[str, Any] = json.loads(data)
    return fields
