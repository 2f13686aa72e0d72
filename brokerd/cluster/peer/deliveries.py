"""Payloads of Delivery frames: what a group's leader sends to the node of a consumer.

Kinds and their codecs; no sending here.  Used by the server on both ends.  Hot path: whole
columns at a time, no per-message Python statement when encoding (bench/micro_cluster.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, chain

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
    #: Connections and channels of whoever has a limit (server/access/shared_counts.py).
    COUNTS = 7
    #: A question to another member, and its answer (server/members/member_calls.py).
    CALL = 8
    ANSWER = 9


#: version, flags, node size, tag size, incarnation, channel, runs, routes, messages
_HEAD = struct.Struct("<BBHHQQIII")
_RUN = struct.Struct("<QIQIII")
_SHORT = struct.Struct("<H")
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
    contents = list(chain.from_iterable(part[1] for part in runs))
    if not contents:
        return b"".join(_pack_consumer(consumer, 0, (0, 0, 0)))
    routes, headers, bodies, annotations = zip(*contents, strict=True)
    count = len(contents)
    flags = 0
    route_numbers: dict[Route, int] = {route: i for i, route in enumerate(dict.fromkeys(routes))}
    columns: list[bytes] = []
    numbers = struct.Struct(f"<{count}I")
    if len(route_numbers) > 1:
        flags |= _HAS_ROUTE_INDEXES
        columns.append(numbers.pack(*map(route_numbers.__getitem__, routes)))
    columns.append(numbers.pack(*map(len, headers)))
    columns.append(numbers.pack(*map(len, bodies)))
    if any(annotations):
        flags |= _HAS_ANNOTATIONS
        columns.append(numbers.pack(*map(len, annotations)))
        blob = chain.from_iterable(zip(headers, bodies, annotations, strict=True))
    else:
        blob = chain.from_iterable(zip(headers, bodies, strict=True))
    counts = (len(runs), len(route_numbers), count)
    return b"".join(
        chain(
            _pack_consumer(consumer, flags, counts),
            (_RUN.pack(*part[0]) for part in runs),
            (_pack_text(text) for route in route_numbers for text in route),
            columns,
            blob,
        )
    )


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
    numbers = struct.Struct(f"<{count}I")
    width = 4 * count
    if flags & _HAS_ROUTE_INDEXES:
        message_routes = [routes[i] for i in numbers.unpack_from(data, at)]
        at += width
    else:
        message_routes = [routes[0]] * count if count else []
    sizes = [numbers.unpack_from(data, at), numbers.unpack_from(data, at + width)]
    at += 2 * width
    if flags & _HAS_ANNOTATIONS:
        sizes.append(numbers.unpack_from(data, at))
        at += width
    cuts = list(accumulate(chain.from_iterable(zip(*sizes, strict=True)), initial=at))
    if cuts[-1] != len(data):
        raise ValueError("sizes do not add up")
    pieces = list(map(data.__getitem__, map(slice, cuts, cuts[1:])))
    step = len(sizes)
    annotations = pieces[2::3] if step == 3 else [b""] * count
    contents: list[Content] = list(
        zip(message_routes, pieces[::step], pieces[1::step], annotations, strict=True)
    )
    starts = accumulate((run.length for run in runs), initial=0)
    return consumer, [
        (run, contents[start : start + run.length])
        for run, start in zip(runs, starts, strict=False)
    ]


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
