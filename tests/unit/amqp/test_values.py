"""Field tables: vectors of every type, limits, and errors."""

from __future__ import annotations

import pytest

from brokerd.amqp import errors, spec, values
from brokerd.amqp.errors import EncodeError, FieldSyntaxError, FrameError
from brokerd.amqp.values import (
    Decimal,
    Timestamp,
    Value,
    decode_table,
    encode_shortstr,
    encode_table,
    type_name,
)


def table_of(raw_value: bytes) -> bytes:
    pair = b"\x01k" + raw_value
    return len(pair).to_bytes(4, "big") + pair


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"S\x00\x00\x00\x02hi", "hi"),
        (b"S\x00\x00\x00\x01\xff", "\udcff"),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 4294967295),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f\x3f\xc0\x00\x00", 1.5),
        (b"d\x3f\xf8" + bytes(6), 1.5),
        (b"D\x02\x00\x00\x01\x3a", Decimal(2, 314)),
        (b"t\x01", True),
        (b"t\x00", False),
        (b"T" + bytes(7) + b"\x09", Timestamp(9)),
        (b"F\x00\x00\x00\x04\x01at\x01", {"a": True}),
        (b"A\x00\x00\x00\x03Vt\x01", [None, True]),
        (b"x\x00\x00\x00\x02\x00\xff", b"\x00\xff"),
        (b"V", None),
    ],
)
def test_every_type_is_read(raw: bytes, value: Value) -> None:
    """R-FRM-11: `s` is a 16-bit integer, `L` is signed."""
    table, end = decode_table(table_of(raw), 0)
    assert table == {"k": value}
    assert type(table["k"]) is type(value)
    assert end == len(table_of(raw))


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (True, b"t\x01"),
        (2**31 - 1, b"I\x7f\xff\xff\xff"),
        (-(2**31), b"I\x80\x00\x00\x00"),
        (2**31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
        ("hi", b"S\x00\x00\x00\x02hi"),
        (b"hi", b"x\x00\x00\x00\x02hi"),
        (1.5, b"d\x3f\xf8" + bytes(6)),
        (None, b"V"),
        (Timestamp(9), b"T" + bytes(7) + b"\x09"),
        (Decimal(2, 314), b"D\x02\x00\x00\x01\x3a"),
        ([1, "a"], b"A\x00\x00\x00\x0bI\x00\x00\x00\x01S\x00\x00\x00\x01a"),
        ({"a": True}, b"F\x00\x00\x00\x04\x01at\x01"),
    ],
)
def test_every_type_is_written(value: Value, raw: bytes) -> None:
    """R-FRM-11."""
    assert encode_table({"k": value}) == table_of(raw)


def test_unknown_field_type_is_a_syntax_error() -> None:
    """R-FRM-5, R-ERR-29: 502."""
    with pytest.raises(FieldSyntaxError) as caught:
        decode_table(table_of(b"Z\x00"), 0)
    assert caught.value.code == 502


@pytest.mark.parametrize(
    "raw",
    [
        b"I\x00\x00",
        b"S\x00\x00\x00\x09ab",
        b"x\xff\xff\xff\xffab",
        b"F\x00\x00\x00\x09",
        b"A\x00\x00\x00\x09",
        b"F\x00\x00\x00\x03\x09ab",
        b"F\x00\x00\x00\x02\x01a",
        b"A\x00\x00\x00\x01Z",
        b"A\x00\x00\x00\x05VI\x00\x00\x00",
        b"D\x00",
        b"T\x00",
        b"t",
        b"",
    ],
)
def test_table_cut_short_inside_is_a_syntax_error(raw: bytes) -> None:
    """SEC-42: no length is believed.  More bytes after the table do not help."""
    for rest in (b"", bytes(64)):
        with pytest.raises(FieldSyntaxError):
            decode_table(table_of(raw) + rest, 0)


def test_table_longer_than_its_frame_is_a_frame_error() -> None:
    """R-ERR-28, SEC-42."""
    with pytest.raises(FrameError) as caught:
        decode_table(b"\xff\xff\xff\xff\x01kt\x01", 0)
    assert caught.value.code == 501


def nested(depth: int) -> bytes:
    raw = b"\x00\x00\x00\x00"
    for _ in range(depth - 1):
        pair = b"\x01kF" + raw
        raw = len(pair).to_bytes(4, "big") + pair
    return raw


def test_nesting_has_a_limit() -> None:
    """SEC-42: 16 tables inside each other, not 17; the same for arrays and on the way out."""
    assert decode_table(nested(16), 0)[1] == len(nested(16))
    for depth in (17, 2000):
        with pytest.raises(FieldSyntaxError, match="nested deeper"):
            decode_table(nested(depth), 0)
    arrays = b""
    for _ in range(3000):
        arrays = b"A" + len(arrays).to_bytes(4, "big") + arrays
    with pytest.raises(FieldSyntaxError, match="nested deeper"):
        decode_table(table_of(arrays), 0)
    value: Value = {}
    for _ in range(17):
        value = [value]
    with pytest.raises(EncodeError):
        encode_table({"k": value})


def test_what_can_be_read_can_be_written() -> None:
    """The limits of nesting are the same both ways."""
    for raw in (nested(16), table_of(b"A\x00\x00\x00\x05A\x00\x00\x00\x00")):
        assert encode_table(decode_table(raw, 0)[0]) == raw


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(EncodeError):
        encode_table({"k": 2**63})
    with pytest.raises(EncodeError):
        encode_table({"k": Timestamp(-1)})
    with pytest.raises(EncodeError):
        encode_shortstr("x" * 256)


def test_type_names_are_those_of_error_texts() -> None:
    """R-Q-4, R-Q-6."""
    values: list[Value] = ["a", 1, 2**40, True, {}, [], None, 1.0, Timestamp(1), b"", Decimal(0, 1)]
    assert [type_name(v) for v in values] == [
        "longstr", "signedint", "long", "bool", "table", "array", "void", "double",
        "timestamp", "binary", "decimal",
    ]  # fmt: skip


def test_tables_that_cannot_be_written_are_refused() -> None:
    """SEC-42, R-FRM-11."""
    deep: values.Table = {}
    for _ in range(spec.TABLE_NESTING_MAX):
        deep = {"t": deep}
    with pytest.raises(errors.EncodeError, match="nested deeper"):
        values.encode_table(deep)
    with pytest.raises(errors.EncodeError, match="no AMQP type for object"):
        values.encode_table({"x": object()})  # type: ignore[dict-item]
