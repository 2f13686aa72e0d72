"""Publications out of the octets of a PublishRequest, without an object for each. No I/O.

Most programs publish many messages that are alike: one of a few exchanges, routing keys and
properties, the next number, another body.  What lies between number and body is read by protobuf's
own library once, and found again by its octets; so is a publication whose fields are in another
order than that in which generated code writes them.

Protobuf's encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError

from brokerd.amqp import errors
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import rpc_properties
from brokerd.server.grpc.rpc_errors import CallRefused
from brokerd.server.messages import message_checks
from brokerd.server.queues.turn import BATCH_BYTES_MAX

#: Publications of one request, and other fields.
PUBLICATIONS_MAX = 4096
#: What is remembered of a call, and the octets of each.
HEADS_MAX = 256
HEAD_BYTES_MAX = 512

#: Fields as they begin: number and wire type.
_PUBLICATIONS = 1 << 3 | 2
_SEQUENCE = 1 << 3
_BODY = 5 << 3 | 2
#: exchange, routing_key and properties: what lies between number and body.
_HEAD = (2 << 3 | 2, 3 << 3 | 2, 4 << 3 | 2)
_MANDATORY = bytes((6 << 3, 1))
_VARINT_BITS = 64
_VARINT_MASK = (1 << _VARINT_BITS) - 1
#: Octets of a value by wire type, where they are fixed.
_FIXED = {1: 8, 5: 4}

#: (exchange, routing key, mandatory)
Key: TypeAlias = tuple[str, str, bool]


@dataclass(slots=True, eq=False)
class Head:
    """What publications have beside number and body."""

    key: Key
    #: Properties as AMQP has them.
    header: bytes
    #: Nothing in them concerns the broker.
    is_plain: bool


@dataclass(slots=True)
class Alike:
    """Consecutive publications that differ in number, by one each, and body alone; no more than
    one batch, and a body.
    """

    head: Head
    first: int
    bodies: list[bytes] = field(default_factory=list)
    #: Of the bodies, octets.
    size: int = 0


class PublicationReader:
    """Reads the requests of one call.

    Invariant: `_head` is what the octets `_between` say with `_is_mandatory`; None: nothing yet.
    """

    __slots__ = ("_between", "_body_bytes_max", "_head", "_heads", "_is_mandatory")

    def __init__(self, body_bytes_max: int) -> None:
        """body_bytes_max: as AMQP clients may publish (R-FRM-8)."""
        self._body_bytes_max = body_bytes_max
        self._head: Head | None = None
        self._between = b""
        self._is_mandatory = False
        self._heads: dict[tuple[bytes, bool], Head] = {}

    def read(self, request: bytes, found: list[Alike]) -> None:
        """Add what a request has to what was found.

        CallRefused or an AmqpError if it is none, or has what cannot be published; what was found
        before that is good.
        """
        at, end, count = 0, len(request), 0
        while at < end:
            count += 1
            if count > PUBLICATIONS_MAX:
                raise CallRefused(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"more than {PUBLICATIONS_MAX} publications in one request",
                )
            tag, value_at = _varint(request, at)
            if tag != _PUBLICATIONS or value_at < 0:
                # Of a later version of the API.
                at = _after_field(request, at)
                if at < 0:
                    raise _unreadable("a field of PublishRequest is damaged")
                continue
            size, at = _varint(request, value_at)
            if at < 0 or size > end - at:
                raise _unreadable("a publication is cut off")
            if not self._take(request, at, at + size, found):
                self._read(request[at : at + size], found)
            at += size

    def _take(self, request: bytes, at: int, stop: int, found: list[Alike]) -> bool:
        """Take a publication of number, head, body and perhaps mandatory, in this order."""
        if at >= stop or request[at] != _SEQUENCE:
            return False
        sequence, begin = _varint(request, at + 1)
        if begin < 0:
            return False
        head = self._head
        tag_at = begin + len(self._between)
        is_same = (
            head is not None
            and tag_at < stop
            and request[tag_at] == _BODY
            and request.startswith(self._between, begin)
        )
        if not is_same:
            tag_at = _after_head(request, begin, stop)
            if tag_at >= stop or request[tag_at] != _BODY:
                return False
        size, body_at = _varint(request, tag_at + 1)
        end = body_at + size
        is_mandatory = end + len(_MANDATORY) == stop and request.startswith(_MANDATORY, end)
        if body_at < 0 or (end != stop and not is_mandatory):
            return False
        if head is None or not is_same or is_mandatory != self._is_mandatory:
            head = self._known(request[begin:tag_at], is_mandatory)
        self._add(found, head, sequence, request[body_at:end])
        return True

    def _known(self, between: bytes, is_mandatory: bool) -> Head:
        key = (between, is_mandatory)
        head = self._heads.get(key)
        if head is None:
            head = _head_of(_parsed(between), is_mandatory)
            if len(between) <= HEAD_BYTES_MAX:
                if len(self._heads) >= HEADS_MAX:
                    self._heads.clear()
                self._heads[key] = head
        self._head, self._between, self._is_mandatory = head, between, is_mandatory
        return head

    def _read(self, raw: bytes, found: list[Alike]) -> None:
        item = _parsed(raw)
        self._add(found, _head_of(item, item.mandatory), item.sequence, item.body)

    def _add(self, found: list[Alike], head: Head, sequence: int, body: bytes) -> None:
        size = len(body)
        if size > self._body_bytes_max:
            # As the AMQP door says it: what it would not take cannot be published again there.
            raise errors.PreconditionFailed(
                f"message size {size} is larger than configured max size {self._body_bytes_max}"
            )
        if found:
            last = found[-1]
            if (
                last.head is head
                and sequence == last.first + len(last.bodies)
                and last.size < BATCH_BYTES_MAX
            ):
                last.bodies.append(body)
                last.size += size
                return
        found.append(Alike(head, sequence, [body], size))


def _parsed(raw: bytes) -> messages_pb2.Publication:
    try:
        return messages_pb2.Publication.FromString(raw)
    except DecodeError as error:
        raise _unreadable(str(error)) from error


def _head_of(item: messages_pb2.Publication, is_mandatory: bool) -> Head:
    header = rpc_properties.encode(item.properties)
    exchange, routing_key = item.exchange, item.routing_key
    if item.raw_exchange:
        exchange = rpc_properties.text_of(item.raw_exchange)
    if item.raw_routing_key:
        routing_key = rpc_properties.text_of(item.raw_routing_key)
    return Head(
        (exchange, routing_key, is_mandatory),
        header,
        message_checks.all_plain([(b"", header, b"")]),
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place and the place after it, which is -1 if there is none."""
    value = shift = 0
    while at < len(data) and shift < _VARINT_BITS:
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value & _VARINT_MASK, at
        shift += 7
    return 0, -1


def _after_head(data: bytes, at: int, stop: int) -> int:
    """Return the place after the fields between number and body; stop if there is none."""
    for _ in _HEAD:
        if at >= stop or data[at] not in _HEAD:
            return at
        at = _after_field(data, at)
        if at < 0:
            return stop
    return at


def _after_field(data: bytes, at: int) -> int:
    """Return the place after a field, whatever it is; -1 if it is damaged, or a group."""
    tag, at = _varint(data, at)
    if at < 0 or not tag >> 3:
        return -1
    kind = tag & 7
    if kind == 0:
        return _varint(data, at)[1]
    if kind == 2:
        size, at = _varint(data, at)
    else:
        size = _FIXED.get(kind, -1)
    if at < 0 or size < 0 or size > len(data) - at:
        return -1
    return at + size


def _unreadable(text: str) -> CallRefused:
    return CallRefused(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {text}")
