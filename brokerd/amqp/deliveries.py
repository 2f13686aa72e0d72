"""Whole deliveries out of a buffer in one loop: what a client reads most, for `connection.py`.

As `walk_publishes` is for a server: it stops, without judging, at the first thing that looks
different, and the general path takes that frame by frame.  A link is such a client.
"""

from __future__ import annotations

import struct

from brokerd.amqp import spec
from brokerd.amqp.errors import ProtocolError
from brokerd.amqp.events import DeliveriesReceived, Event
from brokerd.amqp.frames import CONTENT_HEAD, FRAME_HEAD
from brokerd.amqp.methods import BasicDeliver
from brokerd.amqp.properties import is_well_formed

DELIVER_KEY = b"\x00\x3c\x00\x3c"
#: frame head, class id and method id in one number
_METHOD_HEAD = struct.Struct(">BHII")
_KEY = int.from_bytes(DELIVER_KEY, "big")
#: delivery tag, redelivered bit
_TAG = struct.Struct(">QB")
#: Frame head, ids, an empty consumer tag, tag and bit, two empty names, end octet.
_METHOD_SIZE_MIN = 24
#: Header frame without properties.
_HEADER_SIZE_MIN = 22


def walk_deliveries(
    buffer: bytes,
    pos: int,
    channel: int,
    frame_max: int,
    message_size_max: int,
    out: list[Event],
) -> int:
    """Takes whole messages [deliver][header][at most one body frame] of `channel` from `pos` on.

    Appends a DeliveriesReceived for each run and returns the position behind the last message
    taken.
    """
    total = len(buffer)
    payload_max = frame_max or spec.MESSAGE_SIZE_CEILING
    like: BasicDeliver | None = None
    tag_at, names_at = 0, 0
    before, names, header = b"", b"", b""
    # The run that goes on, the tag that would be its next, and its redelivered bit.
    bodies: list[bytes] = []
    following, bits = -1, 0
    while total - pos >= _METHOD_SIZE_MIN + _HEADER_SIZE_MIN:
        kind, number, size, key = _METHOD_HEAD.unpack_from(buffer, pos)
        at = pos + 8 + size
        if (
            kind != 1
            or number != channel
            or key != _KEY
            or size > payload_max
            or at + _HEADER_SIZE_MIN > total
            or buffer[at - 1] != 0xCE
        ):
            return pos
        # Deliveries to one consumer of one exchange and key differ in tag and bit only.
        if like is not None and buffer[pos : pos + tag_at] == before:
            if buffer[pos + names_at : at] != names:
                like = None
        else:
            like = None
        if like is None:
            try:
                like = BasicDeliver.decode(buffer[pos + 7 : at - 1], 4)
            except ProtocolError:
                return pos
            following = -1
            tag_at = 12 + buffer[pos + 11]
            names_at = tag_at + 9
            before, names = buffer[pos : pos + tag_at], buffer[pos + names_at : at]
        tag, found_bits = _TAG.unpack_from(buffer, pos + tag_at)
        kind, number, size, class_id, weight, body_size = CONTENT_HEAD.unpack_from(buffer, at)
        end = at + 8 + size
        if (
            kind != 2
            or number != channel
            or class_id != 60
            or weight
            or not 14 <= size <= payload_max
            or body_size > message_size_max
            or end > total
            or buffer[end - 1] != 0xCE
        ):
            return pos
        candidate = buffer[at + 19 : end - 1]
        if candidate != header:
            if not is_well_formed(candidate):
                return pos
            header = candidate
            following = -1
        body = b""
        if body_size:
            if end + 8 > total:
                return pos
            kind, number, size = FRAME_HEAD.unpack_from(buffer, end)
            body_at, end = end + 7, end + 8 + size
            if (
                kind != 3
                or number != channel
                or size != body_size
                or size > payload_max
                or end > total
                or buffer[end - 1] != 0xCE
            ):
                return pos
            body = buffer[body_at : end - 1]
        if tag == following and found_bits == bits:
            bodies.append(body)
        else:
            bodies, bits = [body], found_bits
            redelivered = bits & 1 != 0
            method = BasicDeliver(
                like.consumer_tag, tag, redelivered, like.exchange, like.routing_key
            )
            out.append(DeliveriesReceived(channel, method, header, bodies))
        following = tag + 1
        pos = end
    return pos
