"""The command that brings messages into a queue, and its answer, as bytes.

Packed: one command per batch, of one publishing channel or, joined, of several of one member.
`EnqueueHead` is what the queue machine reads of it, `EnqueueView` what deliveries are made of.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain
from operator import add
from typing import TypeAlias

from brokerd.core.message import Content, Route
from brokerd.core.queue.queue_commands import VERSION, Kind

#: A plain number: packing a member of an enumeration costs a call.
_ENQUEUE_KIND = int(Kind.ENQUEUE)
_ENQUEUE = struct.Struct("<BBBBHIQQQ")

#: Enqueue flags: arrays that are present.
_HAS_ROUTE_INDEXES = 1
_HAS_ANNOTATIONS = 2
_HAS_SHARES = 4

#: What one channel has in a joined command: channel, first sequence, count.
Share: TypeAlias = tuple[int, int, int]

_SHARE_COUNT = struct.Struct("<H")
#: Of each share: two u64, one u32.
_SHARE_BYTES = 20


def encode_enqueue(
    node: str,
    incarnation: int,
    channel: int,
    first_sequence: int,
    contents: Sequence[Content],
    shares: Sequence[Share] = (),
) -> bytes:
    """Encode a batch of one publishing channel, or of several (encode_joined).

    first_sequence: the enqueuer's own number of the first message, rising by one per message and
    queue from 1; 0 switches duplicate detection off (broker's own publishes).  channel 0 with
    sequence 0 is an at-most-once dead letter, which passes reject-publish of a quorum queue
    (R-QQ-26); who wants the limit to hold (the at-least-once worker, R-ALO-6) has a channel.
    Layout: head, node, [u16 number of shares; u64 channels, u64 first sequences, u32 counts],
    routes, [u16 route indexes], u32 header sizes, u32 body sizes, [u32 annotation sizes], blob of
    header, body(, annotations) per message.
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
    flags |= _HAS_SHARES if shares else 0
    headers, bodies, annotations = blob[::2], blob[1::2], []
    if is_annotated:
        flags |= _HAS_ANNOTATIONS
        annotations = [content[3] for content in contents]
        blob = list(chain.from_iterable(content[1:] for content in contents))
    name = node.encode()
    sizes = (flags, len(name), len(known), count)
    numbers = (incarnation, channel, first_sequence)
    parts = [_ENQUEUE.pack(VERSION, _ENQUEUE_KIND, *sizes, *numbers), name]
    if shares:
        parts.append(_packed_shares(shares))
    parts += map(_encoded_route, known)
    if len(known) > 1:
        parts.append(struct.pack(f"<{count}H", *[known[content[0]] for content in contents]))
    parts += (_sizes(headers), _sizes(bodies))
    if is_annotated:
        parts.append(_sizes(annotations))
    parts += blob
    return b"".join(parts)


def encode_joined(
    node: str, incarnation: int, shares: Sequence[Share], contents: Sequence[Content]
) -> bytes:
    """Encode a batch of several channels of one member, each with its part of the contents in turn
    (ADR 62).

    The queue takes it over as a whole or not at all; its answer is that of `encode_joined_reply`.
    """
    channel, first_sequence, _ = shares[0]
    return encode_enqueue(node, incarnation, channel, first_sequence, contents, shares)


def unnumbered(command: bytes) -> bytes:
    """Return an enqueue command as one of new messages, which are no duplicates of any."""
    version, kind, flags, name_size, routes, count = _ENQUEUE.unpack_from(command)[:6]
    name_end = rest = _ENQUEUE.size + name_size
    if flags & _HAS_SHARES:
        (shares,) = _SHARE_COUNT.unpack_from(command, rest)
        rest += _SHARE_COUNT.size + shares * _SHARE_BYTES
    # A channel is left, so that limits hold.
    head = _ENQUEUE.pack(version, kind, flags & ~_HAS_SHARES, name_size, routes, count, 0, 1, 0)
    return b"".join((head, command[_ENQUEUE.size : name_end], command[rest:]))


#: 4,096 routes are remembered as they are written.
@lru_cache(4096)
def _encoded_route(route: Route) -> bytes:
    exchange, routing_key = (text.encode("utf-8", "surrogateescape") for text in route)
    return b"%c%b%c%b" % (len(exchange), exchange, len(routing_key), routing_key)


def _sizes(column: list[bytes]) -> bytes:
    """Return the lengths as a column of u32."""
    return struct.pack(f"<{len(column)}I", *map(len, column))


def _read_head(data: bytes) -> tuple[int, int, int, tuple[int, int, int], str, int]:
    """Return flags, number of routes, of messages, (incarnation, channel, first sequence), node,
    and where the rest begins; ValueError or struct.error for what is no enqueue command.
    """
    head = _ENQUEUE.unpack_from(data)
    version, kind, flags, name_size, route_count, count = head[:6]
    if version != VERSION or kind != _ENQUEUE_KIND or (count and not route_count):
        raise ValueError(f"not an enqueue command of version {VERSION}: {data[:2]!r}")
    end = _ENQUEUE.size + name_size
    return flags, route_count, count, head[6:], data[_ENQUEUE.size : end].decode(), end


class EnqueueView:
    """A lazily read enqueue command: sizes are unpacked once, contents are sliced when asked for.

    Invariant: message i's bytes are data[bounds[i] : bounds[i + 1]].
    """

    __slots__ = (
        "_body_sizes",
        "_header_sizes",
        "_is_annotated",
        "_route_indexes",
        "bounds",
        "channel",
        "count",
        "data",
        "first_sequence",
        "incarnation",
        "node",
        "routes",
    )

    def __init__(self, data: bytes) -> None:
        flags, route_count, count, numbers, self.node, at = _read_head(data)
        self.data = data
        self.count = count
        self.incarnation, self.channel, self.first_sequence = numbers
        if flags & _HAS_SHARES:
            at += _SHARE_COUNT.size + _SHARE_COUNT.unpack_from(data, at)[0] * _SHARE_BYTES
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
        self._header_sizes = _u32s(data[at : at + 4 * count])
        at += 4 * count
        self._body_sizes = _u32s(data[at : at + 4 * count])
        at += 4 * count
        self._is_annotated = bool(flags & _HAS_ANNOTATIONS)
        totals = map(add, self._header_sizes, self._body_sizes)
        if self._is_annotated:
            totals = map(add, totals, _u32s(data[at : at + 4 * count]))
            at += 4 * count
        self.bounds = list(accumulate(totals, initial=at))

    def contents(self, position: int, count: int) -> list[Content]:
        """Return `count` messages from `position` on."""
        data, bounds, headers = self.data, self.bounds, self._header_sizes
        bodies, routes, indexes = self._body_sizes, self.routes, self._route_indexes
        at = bounds[position]
        route = routes[0]
        result: list[Content] = []
        for i in range(position, position + count):
            if indexes is not None:
                route = routes[indexes[i]]
            body_at = at + headers[i]
            end = body_at + bodies[i]
            next_at = bounds[i + 1]
            annotations = data[end:next_at] if self._is_annotated else b""
            result.append((route, data[at:body_at], data[body_at:end], annotations))
            at = next_at
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
        "shares",
    )

    def __init__(self, data: bytes) -> None:
        flags, route_count, count, numbers, self.node, at = _read_head(data)
        self.data = data
        self.count = count
        self.incarnation, self.channel, self.first_sequence = numbers
        #: None: all messages are of `channel`.
        self.shares: list[Share] | None = None
        if flags & _HAS_SHARES:
            self.shares, at = _shares(data, at)
            if sum([share[2] for share in self.shares]) != count:
                raise ValueError("shares and count of an enqueue command disagree")
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


def _packed_shares(shares: Sequence[Share]) -> bytes:
    count = len(shares)
    return struct.pack(
        f"<H{2 * count}Q{count}I",
        count,
        *[share[0] for share in shares],
        *[share[1] for share in shares],
        *[share[2] for share in shares],
    )


def _shares(data: bytes, at: int) -> tuple[list[Share], int]:
    (count,) = _SHARE_COUNT.unpack_from(data, at)
    flat = struct.unpack_from(f"<{2 * count}Q{count}I", data, at + _SHARE_COUNT.size)
    shares = list(zip(flat[:count], flat[count : 2 * count], flat[2 * count :], strict=True))
    if not all(flat):
        raise ValueError("a share without channel, number or messages")
    return shares, at + _SHARE_COUNT.size + count * _SHARE_BYTES


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


def encode_joined_reply(accepted: Sequence[int]) -> bytes:
    """Return the answer to a joined command that was taken over: how many of each share."""
    return struct.pack(f"<BB{len(accepted)}I", VERSION, EnqueueStatus.OK, *accepted)


def decode_joined_reply(data: bytes, shares: int) -> tuple[EnqueueStatus, Sequence[int]]:
    """Return (status, accepted of each share); with another status than OK, all have 0."""
    status = EnqueueStatus(data[1])
    if status is not EnqueueStatus.OK:
        return status, [0] * shares
    return status, struct.unpack_from(f"<{shares}I", data, 2)


def decode_enqueue_reply(data: bytes) -> tuple[EnqueueStatus, int, int]:
    """Return (status, accepted, expected)."""
    _, status, accepted, expected = _ENQUEUE_REPLY.unpack(data)
    return EnqueueStatus(status), accepted, expected
