"""Field tables and arrays: AMQP bytes to plain Python values and back (R-FRM-11, SEC-42).

Values are bool, int, float, str, bytes, None, list, dict, `Timestamp` and `Decimal`.  Integer
widths are not kept: brokers compare them by value; `reencode_table` keeps those of a client's
fields, whose library may tell a short from a long.  Short strings inside other methods are read by
the generated code in `methods.py`; this module offers it `encode_shortstr`.

Every reader takes the buffer, the position and the end it must not pass, and trusts nothing: a
length that leads past the end is found because the position does not meet the end exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from brokerd.amqp import spec
from brokerd.amqp.errors import EncodeError, FieldSyntaxError, FrameError
from brokerd.amqp.integers import Long as Long
from brokerd.amqp.integers import Timestamp as Timestamp


@dataclass(slots=True, frozen=True)
class Decimal:
    """Type `D`: `value` divided by ten to the power of `scale`."""

    scale: int
    value: int


Value: TypeAlias = (
    "bool | int | float | str | bytes | Timestamp | Long | Decimal | list[Value] | dict[str, Value]"
    " | None"
)
Table: TypeAlias = dict[str, Value]

_LONG = struct.Struct(">I")
#: Names that go out again and again: exchanges, routing keys, consumer tags.
SHORTSTRS_KEPT = 1024
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_Reader: TypeAlias = Callable[[bytes, int, int, int], tuple[Value, int]]


def _fixed(code: str) -> _Reader:
    layout = struct.Struct(">" + code)
    size = layout.size
    unpack = layout.unpack_from

    def read(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
        return unpack(raw, pos)[0], pos + size

    return read


def _read_bool(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    return raw[pos] != 0, pos + 1


def _read_timestamp(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    return Timestamp(int.from_bytes(raw[pos : pos + 8], "big")), pos + 8


def _read_decimal(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    return Decimal(raw[pos], _LONG.unpack_from(raw, pos + 1)[0]), pos + 5


def _read_longstr(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    start = pos + 4
    stop = start + _LONG.unpack_from(raw, pos)[0]
    return raw[start:stop].decode("utf-8", "surrogateescape"), stop


def _read_binary(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    start = pos + 4
    stop = start + _LONG.unpack_from(raw, pos)[0]
    return raw[start:stop], stop


def _read_void(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    return None, pos


def _inner_end(raw: bytes, pos: int, end: int, depth: int) -> int:
    if depth > spec.TABLE_NESTING_MAX:
        raise FieldSyntaxError(f"field table nested deeper than {spec.TABLE_NESTING_MAX}")
    inner: int = pos + 4 + _LONG.unpack_from(raw, pos)[0]
    if inner > end:
        raise FieldSyntaxError("field table or array longer than what holds it")
    return inner


def _read_table(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    stop = _inner_end(raw, pos, end, depth + 1)
    return _table_body(raw, pos + 4, stop, depth + 1), stop


def _read_array(raw: bytes, pos: int, end: int, depth: int) -> tuple[Value, int]:
    stop = _inner_end(raw, pos, end, depth + 1)
    pos += 4
    items: list[Value] = []
    while pos < stop:
        reader = _READERS.get(raw[pos])
        if reader is None:
            raise _unknown_type(raw[pos])
        value, pos = reader(raw, pos + 1, stop, depth + 1)
        items.append(value)
    if pos != stop:
        raise FieldSyntaxError("field array cut short")
    return items, stop


def _unknown_type(octet: int) -> FieldSyntaxError:
    return FieldSyntaxError(f"unknown field type {octet} in table")


#: R-FRM-11.  `s` is a 16-bit integer and `L` is signed, unlike the letters of the 0-9-1 paper.
_READERS: dict[int, _Reader] = {
    ord("S"): _read_longstr,
    ord("I"): _fixed("i"),
    ord("l"): _fixed("q"),
    ord("L"): _fixed("q"),
    ord("t"): _read_bool,
    ord("F"): _read_table,
    ord("A"): _read_array,
    ord("T"): _read_timestamp,
    ord("s"): _fixed("h"),
    ord("u"): _fixed("H"),
    ord("b"): _fixed("b"),
    ord("B"): _fixed("B"),
    ord("i"): _fixed("I"),
    ord("f"): _fixed("f"),
    ord("d"): _fixed("d"),
    ord("D"): _read_decimal,
    ord("x"): _read_binary,
    ord("V"): _read_void,
}


def _table_body(raw: bytes, pos: int, stop: int, depth: int) -> Table:
    table: Table = {}
    readers = _READERS
    while pos < stop:
        start = pos + 1
        pos = start + raw[pos]
        key = raw[start:pos].decode("utf-8", "surrogateescape")
        if pos >= stop:
            raise FieldSyntaxError("field table cut short")
        reader = readers.get(raw[pos])
        if reader is None:
            raise _unknown_type(raw[pos])
        table[key], pos = reader(raw, pos + 1, stop, depth)
    if pos != stop:
        raise FieldSyntaxError("field table cut short")
    return table


def decode_table(raw: bytes, pos: int) -> tuple[Table, int]:
    """A table with its length at `pos`; returns it and the position after it.

    A table longer than the frame is a truncated method (501, R-FRM-5); a table that is wrong inside
    is a syntax error (502).
    """
    size = int.from_bytes(raw[pos : pos + 4], "big")
    stop = pos + 4 + size
    if stop > len(raw):
        raise FrameError("field table longer than its frame")
    return decode_table_body(raw, pos + 4, stop), stop


def decode_table_body(raw: bytes, pos: int, stop: int) -> Table:
    """The pairs of a table between `pos` and `stop` (AMQPLAIN sends them without a length)."""
    try:
        return _table_body(raw, pos, stop, 1)
    except (IndexError, struct.error):
        raise FieldSyntaxError("field table cut short") from None


@lru_cache(maxsize=SHORTSTRS_KEPT)
def encode_shortstr(text: str) -> bytes:
    """One length octet and the text."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > spec.SHORTSTR_BYTES_MAX:
        raise EncodeError(f"short string of {len(raw)} bytes, at most 255 are possible")
    return bytes((len(raw),)) + raw


def encode_longstr(raw: bytes) -> bytes:
    """Four length octets and the bytes."""
    return _LONG.pack(len(raw)) + raw


def encode_table(table: Table) -> bytes:
    """A table with its length in front."""
    out: list[bytes] = []
    _write_pairs(out, table, 1)
    return encode_longstr(b"".join(out))


def reencode_table(raw: bytes, pos: int, table: Table) -> bytes:
    """A table with its length in front; fields that are as in the table at `pos` keep their bytes,
    and with them the types that Python's values do not tell apart.
    """
    stop = pos + 4 + int.from_bytes(raw[pos : pos + 4], "big")
    pos += 4
    kept: dict[str, tuple[Value, bytes]] = {}
    try:
        while pos < stop:
            start = pos
            pos += 1 + raw[pos]
            key = raw[start + 1 : pos].decode("utf-8", "surrogateescape")
            value, pos = _READERS[raw[pos]](raw, pos + 1, stop, 1)
            kept[key] = value, raw[start:pos]
    except (IndexError, KeyError, struct.error, FieldSyntaxError):
        # Wrong inside, which is somebody else's to tell: nothing of it is kept.
        kept.clear()
    out: list[bytes] = []
    for key, value in table.items():
        was, field = kept.get(key, (None, b""))
        if field and type(was) is type(value) and was == value:
            out.append(field)
        else:
            _write_pairs(out, {key: value}, 1)
    return encode_longstr(b"".join(out))


def _write_pairs(out: list[bytes], table: Table, depth: int) -> None:
    if depth > spec.TABLE_NESTING_MAX:
        raise EncodeError(f"field table nested deeper than {spec.TABLE_NESTING_MAX}")
    for key, value in table.items():
        out.append(encode_shortstr(key))
        _write_value(out, value, depth)


def _write_value(out: list[bytes], value: Value, depth: int) -> None:
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise EncodeError(f"no AMQP type for {type(value).__name__}")
    try:
        writer(out, value, depth)
    except struct.error as error:
        raise EncodeError(f"value out of range for its AMQP type: {error}") from error


def _write_bool(out: list[bytes], value: Value, depth: int) -> None:
    out.append(b"t\x01" if value else b"t\x00")


def _write_int(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, int)
    if _INT32_MIN <= value <= _INT32_MAX:
        out.append(struct.pack(">ci", b"I", value))
    else:
        out.append(struct.pack(">cq", b"l", value))


def _write_long(out: list[bytes], value: Value, depth: int) -> None:
    out.append(struct.pack(">cq", b"l", value))


def _write_float(out: list[bytes], value: Value, depth: int) -> None:
    out.append(struct.pack(">cd", b"d", value))


def _write_str(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, str)
    raw = value.encode("utf-8", "surrogateescape")
    out.append(struct.pack(">cI", b"S", len(raw)) + raw)


def _write_bytes(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, bytes)
    out.append(struct.pack(">cI", b"x", len(value)) + value)


def _write_void(out: list[bytes], value: Value, depth: int) -> None:
    out.append(b"V")


def _write_timestamp(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, Timestamp)
    out.append(struct.pack(">cQ", b"T", value))


def _write_decimal(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, Decimal)
    out.append(struct.pack(">cBI", b"D", value.scale, value.value))


def _write_list(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, list)
    if depth >= spec.TABLE_NESTING_MAX:
        raise EncodeError(f"field table nested deeper than {spec.TABLE_NESTING_MAX}")
    inner: list[bytes] = []
    for item in value:
        _write_value(inner, item, depth + 1)
    raw = b"".join(inner)
    out.append(struct.pack(">cI", b"A", len(raw)) + raw)


def _write_dict(out: list[bytes], value: Value, depth: int) -> None:
    assert isinstance(value, dict)
    inner: list[bytes] = []
    _write_pairs(inner, value, depth + 1)
    raw = b"".join(inner)
    out.append(struct.pack(">cI", b"F", len(raw)) + raw)


_WRITERS: dict[type, Callable[[list[bytes], Value, int], None]] = {
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: _write_bytes,
    type(None): _write_void,
    Timestamp: _write_timestamp,
    Long: _write_long,
    Decimal: _write_decimal,
    list: _write_list,
    dict: _write_dict,
}

_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    float: "double",
    str: "longstr",
    bytes: "binary",
    type(None): "void",
    Timestamp: "timestamp",
    Long: "long",
    Decimal: "decimal",
    list: "array",
    dict: "table",
}


def type_name(value: Value) -> str:
    """RabbitMQ's name of the value's type, as its error texts say it (R-Q-4, R-Q-6)."""
    if type(value) is int:
        return "signedint" if _INT32_MIN <= value <= _INT32_MAX else "long"
    return _TYPE_NAMES[type(value)]
