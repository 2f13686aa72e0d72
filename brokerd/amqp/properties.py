"""BasicProperties, as they stand in a content header behind the body size: flag word, then fields.

Messages keep these bytes ("raw") from the publish to the delivery; the questions that the hot path
asks look at the flag word alone (design/hot-path.md rule 2).  Decode only what somebody reads.
Edits return new raw bytes and copy the fields they do not touch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.amqp.errors import EncodeError, FieldSyntaxError
from brokerd.amqp.values import (
    Table,
    decode_table,
    encode_shortstr,
    encode_table,
    reencode_table,
)

_FLAGS = struct.Struct(">H")
_LONG = struct.Struct(">I")
_LONGLONG = struct.Struct(">Q")

_CONTENT_TYPE = 1 << 15
_CONTENT_ENCODING = 1 << 14
_HEADERS = 1 << 13
_DELIVERY_MODE = 1 << 12
_PRIORITY = 1 << 11
_CORRELATION_ID = 1 << 10
_REPLY_TO = 1 << 9
_EXPIRATION = 1 << 8
_MESSAGE_ID = 1 << 7
_TIMESTAMP = 1 << 6
_TYPE = 1 << 5
_USER_ID = 1 << 4
_APP_ID = 1 << 3
_CLUSTER_ID = 1 << 2
#: Bit 1 is of no property, bit 0 announces a second flag word, which the class basic has not.
_UNKNOWN = 0b11

_SHORTSTR, _TABLE, _OCTET, _TIME = range(4)
#: Flag, attribute and shape of each property, in wire order.
_LAYOUT: tuple[tuple[int, str, int], ...] = (
    (_CONTENT_TYPE, "content_type", _SHORTSTR),
    (_CONTENT_ENCODING, "content_encoding", _SHORTSTR),
    (_HEADERS, "headers", _TABLE),
    (_DELIVERY_MODE, "delivery_mode", _OCTET),
    (_PRIORITY, "priority", _OCTET),
    (_CORRELATION_ID, "correlation_id", _SHORTSTR),
    (_REPLY_TO, "reply_to", _SHORTSTR),
    (_EXPIRATION, "expiration", _SHORTSTR),
    (_MESSAGE_ID, "message_id", _SHORTSTR),
    (_TIMESTAMP, "timestamp", _TIME),
    (_TYPE, "type", _SHORTSTR),
    (_USER_ID, "user_id", _SHORTSTR),
    (_APP_ID, "app_id", _SHORTSTR),
    (_CLUSTER_ID, "cluster_id", _SHORTSTR),
)
#: What may stand before each property.
_BEFORE = {
    wanted: tuple((flag, shape) for flag, _, shape in _LAYOUT if flag > wanted)
    for wanted, _, _ in _LAYOUT
}
#: What has to be stepped over for a flag word: a size, or one of the two below; filled as flag
#: words are met (65536 at most, a handful in practice).
_STEPS: dict[bytes, tuple[int, ...]] = {}
_STEP_SHORTSTR = 0
_STEP_TABLE = -1
_SHAPE_STEPS = {_SHORTSTR: _STEP_SHORTSTR, _TABLE: _STEP_TABLE, _OCTET: 1, _TIME: 8}

#: No property at all.
EMPTY = b"\x00\x00"


def has_headers(raw: bytes) -> bool:
    """Whether a headers table is there."""
    return raw[0] & 0x20 != 0


def has_expiration(raw: bytes) -> bool:
    """Whether a per-message TTL is there."""
    return raw[0] & 0x01 != 0


def has_priority(raw: bytes) -> bool:
    """Whether a priority is there."""
    return raw[0] & 0x08 != 0


def has_reply_to(raw: bytes) -> bool:
    """Whether a reply-to is there (R-DRT-2)."""
    return raw[0] & 0x02 != 0


def has_user_id(raw: bytes) -> bool:
    """Whether a user id is there (R-PUB-3)."""
    return raw[1] & 0x10 != 0


def delivery_mode(raw: bytes) -> int:
    """The delivery mode, 0 when absent (2 is persistent, R-PUB-5)."""
    return raw[_offset_of(raw, _DELIVERY_MODE)] if raw[0] & 0x10 else 0


def priority(raw: bytes) -> int:
    """The priority, 0 when absent."""
    return raw[_offset_of(raw, _PRIORITY)] if raw[0] & 0x08 else 0


def expiration(raw: bytes) -> str | None:
    """The expiration as the text it was sent as (R-PUB-4 judges it)."""
    return _shortstr_at(raw, _EXPIRATION) if has_expiration(raw) else None


def user_id(raw: bytes) -> str | None:
    """The user id."""
    return _shortstr_at(raw, _USER_ID) if has_user_id(raw) else None


def reply_to(raw: bytes) -> str | None:
    """The reply-to."""
    return _shortstr_at(raw, _REPLY_TO) if has_reply_to(raw) else None


def headers(raw: bytes) -> Table:
    """The headers table, empty when absent."""
    return decode_table(raw, _offset_of(raw, _HEADERS))[0] if has_headers(raw) else {}


def is_well_formed(raw: bytes) -> bool:
    """Whether the fields the flag word announces fill the bytes exactly.

    Lengths only: the inside of a headers table is read when somebody decodes it.
    """
    steps = _STEPS.get(raw[:2])
    if steps is None:
        if len(raw) < 2:
            return False
        flags = _FLAGS.unpack_from(raw)[0]
        if flags & _UNKNOWN:
            return False
        steps = tuple(_SHAPE_STEPS[shape] for flag, _, shape in _LAYOUT if flags & flag)
        _STEPS[raw[:2]] = steps
    pos = 2
    try:
        for step in steps:
            if step == 0:
                pos += raw[pos] + 1
            elif step > 0:
                pos += step
            else:
                pos += 4 + _LONG.unpack_from(raw, pos)[0]
    except (IndexError, struct.error):
        return False
    return pos == len(raw)


def with_headers(raw: bytes, table: Table | None) -> bytes:
    """The same properties with these headers; None takes them away, an empty table stays one, as
    RabbitMQ leaves it behind (R-RT-C2).

    Headers that do not change keep their bytes, so a client reads the types that another one wrote.
    """
    start = _offset_of(raw, _HEADERS)
    stop = start + 4 + _LONG.unpack_from(raw, start)[0] if has_headers(raw) else start
    flags = _FLAGS.unpack_from(raw)[0]
    if table is not None:
        new = reencode_table(raw, start, table) if has_headers(raw) else encode_table(table)
        return _FLAGS.pack(flags | _HEADERS) + raw[2:start] + new + raw[stop:]
    return _FLAGS.pack(flags & ~_HEADERS) + raw[2:start] + raw[stop:]


def with_reply_to(raw: bytes, name: str) -> bytes:
    """The same properties with another reply-to (R-DRT-2)."""
    start = _offset_of(raw, _REPLY_TO)
    stop = start + 1 + raw[start] if has_reply_to(raw) else start
    flags = _FLAGS.unpack_from(raw)[0] | _REPLY_TO
    return _FLAGS.pack(flags) + raw[2:start] + encode_shortstr(name) + raw[stop:]


def with_fields(raw: bytes, fields: Mapping[str, str | int]) -> bytes:
    """The same properties with these values, by the properties' names; headers cannot be given.

    What is not replaced keeps its bytes.  Raises EncodeError where a value does not fit.
    """
    given = BasicProperties(**dict(fields)).encode()  # type: ignore[arg-type]
    flags = 0
    out = []
    for flag, _, shape in _LAYOUT:
        source = given if _FLAGS.unpack_from(given)[0] & flag else raw
        if _FLAGS.unpack_from(source)[0] & flag:
            flags |= flag
            start = _offset_of(source, flag)
            out.append(source[start : start + _length_at(source, start, shape)])
    return _FLAGS.pack(flags) + b"".join(out)


def without_expiration(raw: bytes) -> bytes:
    """The same properties with no expiration (R-DLX: a dead-lettered message expires no more)."""
    if not has_expiration(raw):
        return raw
    start = _offset_of(raw, _EXPIRATION)
    flags = _FLAGS.unpack_from(raw)[0] & ~_EXPIRATION
    return _FLAGS.pack(flags) + raw[2:start] + raw[start + 1 + raw[start] :]


def without_user_id(raw: bytes) -> bytes:
    """The same properties with no user id (R-PUB-3: another broker's users are not ours)."""
    if not has_user_id(raw):
        return raw
    start = _offset_of(raw, _USER_ID)
    flags = _FLAGS.unpack_from(raw)[0] & ~_USER_ID
    return _FLAGS.pack(flags) + raw[2:start] + raw[start + 1 + raw[start] :]


def _malformed() -> FieldSyntaxError:
    return FieldSyntaxError("malformed basic properties")


def _offset_of(raw: bytes, wanted: int) -> int:
    """Where the field of a flag starts, or would start."""
    flags = _FLAGS.unpack_from(raw)[0]
    pos = 2
    try:
        for flag, shape in _BEFORE[wanted]:
            if not flags & flag:
                continue
            if shape == _SHORTSTR:
                pos += 1 + raw[pos]
            elif shape == _OCTET:
                pos += 1
            elif shape == _TABLE:
                pos += 4 + _LONG.unpack_from(raw, pos)[0]
            else:
                pos += 8
    except (IndexError, struct.error):
        raise _malformed() from None
    # A field that is set has at least one byte; anything else may end here.
    if pos > len(raw) or (flags & wanted and pos == len(raw)):
        raise _malformed()
    return pos


def _length_at(raw: bytes, start: int, shape: int) -> int:
    """How long a field is that starts there."""
    step = _SHAPE_STEPS[shape]
    if step > 0:
        return step
    return 1 + raw[start] if step == _STEP_SHORTSTR else 4 + int(_LONG.unpack_from(raw, start)[0])


def _shortstr_at(raw: bytes, flag: int) -> str:
    start = _offset_of(raw, flag)
    stop = start + 1 + raw[start]
    if stop > len(raw):
        raise _malformed()
    return raw[start + 1 : stop].decode("utf-8", "surrogateescape")


@dataclass(slots=True)
class BasicProperties:
    """All properties of a message; None where absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    #: Seconds since 1970, carried through unchanged (R-PUB-12).
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @classmethod
    def decode(cls, raw: bytes) -> BasicProperties:
        """Reads all fields; 502 when they do not fill the bytes exactly."""
        if not is_well_formed(raw):
            raise _malformed()
        flags = _FLAGS.unpack_from(raw)[0]
        properties = cls()
        pos = 2
        for flag, name, shape in _LAYOUT:
            if not flags & flag:
                continue
            if shape == _SHORTSTR:
                end = pos + 1 + raw[pos]
                setattr(properties, name, raw[pos + 1 : end].decode("utf-8", "surrogateescape"))
                pos = end
            elif shape == _OCTET:
                setattr(properties, name, raw[pos])
                pos += 1
            elif shape == _TABLE:
                properties.headers, pos = decode_table(raw, pos)
            else:
                setattr(properties, name, _LONGLONG.unpack_from(raw, pos)[0])
                pos += 8
        return properties

    def encode(self) -> bytes:
        """Flag word and fields."""
        flags = 0
        out = []
        for flag, name, shape in _LAYOUT:
            value = getattr(self, name)
            if value is None:
                continue
            flags |= flag
            try:
                if shape == _SHORTSTR:
                    out.append(encode_shortstr(value))
                elif shape == _OCTET:
                    out.append(bytes((value,)))
                elif shape == _TABLE:
                    out.append(encode_table(value))
                else:
                    out.append(_LONGLONG.pack(value))
            except (ValueError, struct.error) as error:
                raise EncodeError(f"property {name} out of range") from error
        return _FLAGS.pack(flags) + b"".join(out)
