"""Payloads of Delivery frames: what a group's leader sends to the node of a consumer.

Kinds and their codecs; no sending here.  Used by the server on both ends.  Hot path: with a
prefetch of 1 and for basic.get a batch is one message, so messages are gone through once, without
iterators that must be made first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.core.message import Content, Route
from brokerd.core.queue.effects import ConsumerId, Run

VERSION = 1


class DeliveryKind(IntEnum):
    """What a Delivery's payload is; the numbers are on the wire."""

    #: Messages for one consumer: `encode`.
    MESSAGES = 1
    #: The consumer is gone (R-CS-6): `encode_cancelled`.
    CANCELLED = 2
    #: Catalog: say when it is applied up to a revision, and the answer: `encode_sync`.
    SYNC = 3
    SYNCED = 4
    #: Direct reply-to: a reply for a channel, and whether it took it (server/messages/reply_to.py).
    REPLY = 5
    REPLY_TAKEN = 6
    #: Connections and channels of users and vhosts with a limit (server/access/shared_counts.py).
    COUNTS = 7
    #: A question to another member, and its answer (server/members/member_calls.py).
    CALL = 8
    ANSWER = 9
    #: Durable auto-delete queues with consumers (server/members/consumed_queues.py).
    CONSUMED = 10


#: version, flags, node size, tag size, incarnation, channel, runs, routes, messages
_HEAD = struct.Struct("<BBHHQQIII")
_RUN = struct.Struct("<QIQIII")
_SHORT = struct.Struct("<H")
#: Sizes of a batch of one.
_ONE = struct.Struct("<I")
_HAS_ROUTE_INDEXES = 1
_HAS_ANNOTATIONS = 2


def _pack_consumer(
    consumer: ConsumerId, flags: int, counts: tuple[int, int, int]
) -> tuple[bytes, bytes, bytes]:
    node = consumer.node.encode("utf-8", "surrogateescape")
    tag = consumer.tag.encode("utf-8", "surrogateescape")
    head = _HEAD.pack(
        VERSION, flags, len(node), len(tag), consumer.incarnation, consumer.channel, *counts
    )
    return head, node, tag


def _pack_text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return _SHORT.pack(len(data)) + data


_SYNC = struct.Struct("<QQ")


def encode_sync(token: int, revision: int) -> bytes:
    """Encode SYNC and SYNCED: the asker's token and the catalog revision."""
    return _SYNC.pack(token, revision)


def decode_sync(data: bytes) -> tuple[int, int]:
    """Return (token, revision); DeliveryFormatError for anything else."""
    try:
        token, revision = _SYNC.unpack(data)
    except struct.error as error:
        raise DeliveryFormatError(f"bad sync of {len(data)} bytes") from error
    return token, revision


def encode(consumer: ConsumerId, runs: Sequence[tuple[Run, Sequence[Content]]]) -> bytes:
    """Encode a batch for one consumer; each run comes with exactly `run.length` contents.

    Layout: head, node, tag, runs, routes, [u32 route indexes], u32 header sizes, u32 body sizes,
    [u32 annotation sizes], then the headers, bodies(, annotations), message by message.
    """
    route_numbers: dict[Route, int] = {}
    indexes: list[int] = []
    headers: list[int] = []
    bodies: list[int] = []
    annotations: list[int] = []
    blob: list[bytes] = []
    packed: list[bytes] = []
    has_annotations = False
    for run, contents in runs:
        packed.append(_RUN.pack(*run))
        for route, header, body, annotation in contents:
            indexes.append(route_numbers.setdefault(route, len(route_numbers)))
            headers.append(len(header))
            bodies.append(len(body))
            annotations.append(len(annotation))
            has_annotations = has_annotations or bool(annotation)
            blob.append(header)
            blob.append(body)
            blob.append(annotation)
    count = len(headers)
    if not count:
        return b"".join(_pack_consumer(consumer, 0, (0, 0, 0)))
    numbers = _ONE if count == 1 else struct.Struct(f"<{count}I")
    flags = _HAS_ANNOTATIONS if has_annotations else 0
    if len(route_numbers) > 1:
        flags |= _HAS_ROUTE_INDEXES
    counts = (len(runs), len(route_numbers), count)
    parts = [*_pack_consumer(consumer, flags, counts), *packed]
    for route in route_numbers:
        parts.append(_pack_text(route[0]))
        parts.append(_pack_text(route[1]))
    if flags & _HAS_ROUTE_INDEXES:
        parts.append(numbers.pack(*indexes))
    parts.append(numbers.pack(*headers))
    parts.append(numbers.pack(*bodies))
    if has_annotations:
        parts.append(numbers.pack(*annotations))
    return b"".join(parts + blob)


def decode(data: bytes) -> tuple[ConsumerId, list[tuple[Run, list[Content]]]]:
    """Decode what `encode` made; DeliveryFormatError for anything else."""
    try:
        return _decode(data)
    except (struct.error, ValueError, IndexError, OverflowError, MemoryError) as error:
        raise DeliveryFormatError(f"bad delivery of {len(data)} bytes: {error}") from error


def _consumer(data: bytes) -> tuple[ConsumerId, int, tuple[int, int, int], int]:
    head = _HEAD.unpack_from(data)
    version, flags, node_size, tag_size, incarnation, channel = head[:6]
    if version != VERSION:
        raise ValueError(f"version {version}")
    at = _HEAD.size + node_size
    end = at + tag_size
    if end > len(data):
        raise ValueError("cut off")
    node = data[_HEAD.size : at].decode("utf-8", "surrogateescape")
    tag = data[at:end].decode("utf-8", "surrogateescape")
    return ConsumerId(node, incarnation, channel, tag), flags, head[6:], end


def _texts(data: bytes, at: int, count: int) -> tuple[list[str], int]:
    texts: list[str] = []
    for _ in range(count):
        (size,) = _SHORT.unpack_from(data, at)
        at += 2 + size
        if at > len(data):
            raise ValueError("cut off")
        texts.append(data[at - size : at].decode("utf-8", "surrogateescape"))
    return texts, at


def _decode(data: bytes) -> tuple[ConsumerId, list[tuple[Run, list[Content]]]]:
    consumer, flags, (run_count, route_count, count), at = _consumer(data)
    if max(_RUN.size * run_count, 4 * route_count, 8 * count) > len(data):
        raise ValueError("counts exceed the size")
    runs = [Run(*_RUN.unpack_from(data, at + _RUN.size * i)) for i in range(run_count)]
    if sum(run.length for run in runs) != count:
        raise ValueError("runs and messages differ in number")
    texts, at = _texts(data, at + _RUN.size * run_count, 2 * route_count)
    routes: list[Route] = list(zip(texts[::2], texts[1::2], strict=True))
    numbers = _ONE if count == 1 else struct.Struct(f"<{count}I")
    width = 4 * count
    indexes: Sequence[int] | None = None
    if flags & _HAS_ROUTE_INDEXES:
        indexes = numbers.unpack_from(data, at)
        at += width
    headers, bodies = numbers.unpack_from(data, at), numbers.unpack_from(data, at + width)
    at += 2 * width
    annotations: Sequence[int] | None = None
    if flags & _HAS_ANNOTATIONS:
        annotations = numbers.unpack_from(data, at)
        at += width
    found: list[tuple[Run, list[Content]]] = []
    number = 0
    for run in runs:
        contents: list[Content] = []
        for _ in range(run.length):
            route = routes[0 if indexes is None else indexes[number]]
            body_at = at + headers[number]
            end = body_at + bodies[number]
            header, body, annotation = data[at:body_at], data[body_at:end], b""
            at = end
            if annotations is not None:
                at += annotations[number]
                annotation = data[end:at]
            contents.append((route, header, body, annotation))
            number += 1
        found.append((run, contents))
    if at != len(data):
        raise ValueError("sizes do not add up")
    return consumer, found


def encode_cancelled(consumer: ConsumerId, cause: str) -> bytes:
    """Encode that a consumer was cancelled by the broker."""
    return b"".join((*_pack_consumer(consumer, 0, (0, 0, 0)), _pack_text(cause)))


def decode_cancelled(data: bytes) -> tuple[ConsumerId, str]:
    """Decode what `encode_cancelled` made."""
    try:
        consumer, _, _, at = _consumer(data)
        (cause,), _ = _texts(data, at, 1)
    except (struct.error, ValueError) as error:
        raise DeliveryFormatError(f"bad cancellation: {error}") from error
    return consumer, cause
