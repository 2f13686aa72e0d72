"""The text of a segment to typed rows, and what is wrong with each: octets in, columns out.

design/telemetry.md §6.5, §10, ADR 55.  Most lines go through Arrow's reader a block at a
time; a block that it does not take, and the kinds of which it would take none
(schema.KINDS_BY_LINE), are read line by line, to the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import orjson
import pyarrow
import pyarrow.compute
import pyarrow.json
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from brokerd_telemetry import schema

FUTURE_US = 300_000_000
#: A quarantined line keeps so much of its text.
LINE_CHARS_MAX = 4096
#: So much text is made rows at a time.
BLOCK_OCTETS = 4 * 1024 * 1024

#: A segment's own lines begin so; all others are rows.
_OWN = b'{"k":"_'
#: Where a row says its kind, which members write after its version and number.
_HEAD_OCTETS = 64
_BY_LINE = re.compile(b'"k":"(?:%s)"' % "|".join(schema.KINDS_BY_LINE).encode())
_LONG_MIN, _LONG_END = -(1 << 63), 1 << 63
_INTEGER_END = 1 << 31


@dataclass(slots=True, frozen=True)
class Origin:
    """What the rows of a segment have in common, and what is asked of them."""

    #: Values of schema.IDENTITY.
    identity: tuple[str, ...]
    #: Rows before are an earlier segment's.
    first_seq: int
    #: Of the segment: where a line belongs that is no row.
    hour_us: int
    now_us: int
    #: Rows before are too late to change the tables.
    oldest_us: int


@cache
def silver_schema() -> pyarrow.Schema:
    """Return schema.SILVER for Arrow."""
    return to_arrow_schema(schema.SILVER)


def rows_of(text: bytes, origin: Origin) -> Iterator[tuple[str, int, pyarrow.Table]]:
    """Yield (kind, hour, rows) of a segment's text: rows in the columns of schema.SILVER.

    Lines that are no rows have the kind schema.BAD_KIND and their text, and say why: parse, key,
    kind, range, future, late.  hour: microseconds.  A kind and an hour may come more than once.
    """
    for block in _blocks(text):
        table, lines = _parsed(block)
        if table.num_rows:
            yield from _judged(table, lines, origin)


def _blocks(text: bytes) -> Iterator[list[bytes]]:
    """Yield lines of rows, some megabytes at a time."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + BLOCK_OCTETS)
        end = len(text) if end < 0 else end
        lines = text[begin:end].split(b"\n")
        yield [line for line in lines if line and not line.startswith(_OWN)]
        begin = end + 1


# ---- text to columns -------------------------------------------------------------------------


def _parsed(lines: list[bytes]) -> tuple[pyarrow.Table, list[bytes]]:
    """Return rows with the columns of schema.PARSED, and the line of each."""
    together: list[bytes] = []
    apart: list[bytes] = []
    for line in lines:
        (apart if _BY_LINE.search(line, 0, _HEAD_OCTETS) else together).append(line)
    quick = _block(together)
    if quick is None:
        return _by_line(lines), lines
    return pyarrow.concat_tables([quick, _by_line(apart)]).combine_chunks(), together + apart


def _block(lines: list[bytes]) -> pyarrow.Table | None:
    """Return the rows of lines as Arrow reads them, None if it would not read each as it is."""
    if not lines:
        return _parsed_schema().empty_table()
    text = b"\n".join(lines)
    try:
        # Arrow does not look whether a text is one.
        text.decode()
        found = pyarrow.json.read_json(
            pyarrow.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=_block_schema(), unexpected_field_behavior="ignore"
            ),
        )
    except (pyarrow.ArrowException, UnicodeDecodeError):
        return None
    count = len(lines)
    if found.num_rows != count or any(found[name].null_count < count for name in schema.COUNTS):
        return None
    empty = {schema.CORRUPT, *schema.COUNTS}
    columns = [
        pyarrow.nulls(count, field.type) if field.name in empty else found[field.name]
        for field in _parsed_schema()
    ]
    return pyarrow.table(columns, _parsed_schema())


@cache
def _parsed_schema() -> pyarrow.Schema:
    return to_arrow_schema(schema.PARSED)


@cache
def _block_schema() -> pyarrow.Schema:
    """Names of a map are no fields, so Arrow has no reader for it: a text, which no map is."""
    return pyarrow.schema(
        pyarrow.field(field.name, pyarrow.string()) if pyarrow.types.is_map(field.type) else field
        for field in to_arrow_schema(schema.ROW)
    )


def _by_line(lines: list[bytes]) -> pyarrow.Table:
    rows = pyarrow.array(
        [_row(line) for line in lines], pyarrow.struct(list(_parsed_schema()))
    ).flatten()
    return pyarrow.table(rows, _parsed_schema())


def _row(line: bytes) -> dict[str, Any]:
    """Return a line's fields, or none and the line itself as that of what cannot be read."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        return {schema.CORRUPT: _text(line)}
    row = {}
    for name, fits in _checks().items():
        value = found.get(name)
        if value is None:
            continue
        if not fits(value):
            return {schema.CORRUPT: _text(line)}
        if isinstance(value, dict) and name in schema.COUNTS:
            value = list(value.items())
        elif name in schema.TEXTS and not isinstance(value, str):
            value = orjson.dumps(value).decode()
        row[name] = value
    return row


@cache
def _checks() -> dict[str, Callable[[Any], bool]]:
    """Return what tells of each field whether a value of JSON is of its type."""
    checks = {field.name: _check(field.dataType) for field in schema.ROW.fields}
    return checks | dict.fromkeys(schema.TEXTS, lambda value: type(value) in (str, int, float))


def _check(kind: t.DataType) -> Callable[[Any], bool]:
    match kind:
        case t.StringType():
            return lambda value: isinstance(value, str)
        case t.BooleanType():
            return lambda value: isinstance(value, bool)
        case t.IntegerType():
            return lambda value: type(value) is int and -_INTEGER_END <= value < _INTEGER_END
        case t.LongType():
            return lambda value: type(value) is int and _LONG_MIN <= value < _LONG_END
        case t.ArrayType():
            item = _or_none(_check(kind.elementType))
            return lambda value: isinstance(value, list) and all(map(item, value))
        case t.MapType():
            item = _or_none(_check(kind.valueType))
            return lambda value: isinstance(value, dict) and all(map(item, value.values()))
        case t.StructType():
            items = {field.name: _or_none(_check(field.dataType)) for field in kind.fields}
            return lambda value: (
                isinstance(value, dict)
                and all(fits(value.get(name)) for name, fits in items.items())
            )
    raise TypeError(f"rows have no {kind}")


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _text(line: bytes) -> str:
    return line.decode(errors="replace")[:LINE_CHARS_MAX]


# ---- what is a row --------------------------------------------------------------------------


def _judged(
    table: pyarrow.Table, lines: list[bytes], origin: Origin
) -> Iterator[tuple[str, int, pyarrow.Table]]:
    """Yield rows by kind and hour, and those that are none."""
    compute = pyarrow.compute
    number = table["seq"]
    is_own = compute.fill_null(compute.greater_equal(number, origin.first_seq), True)
    error = _error(table, origin)
    is_row = compute.is_null(error)
    for kind, hour_us, mine in _kinds_and_hours(table, compute.and_(is_own, is_row)):
        yield kind, hour_us, _silver(table.filter(mine), origin, None, None)
    if not compute.all(is_row).as_py():
        bad = compute.and_(is_own, compute.invert(is_row))
        at = compute.indices_nonzero(bad).to_pylist()
        texts = pyarrow.array([_text(lines[place]) for place in at], pyarrow.string())
        if at:
            rows = _silver(table.filter(bad), origin, texts, error.filter(bad))
            yield schema.BAD_KIND, origin.hour_us, rows


def _error(table: pyarrow.Table, origin: Origin) -> pyarrow.ChunkedArray:
    """Return what is wrong with each row, the first of it; null if nothing."""
    compute = pyarrow.compute
    kind, begin, end = table["k"], table["t0"], table["t1"]

    def lacks(names: Iterable[str]) -> pyarrow.ChunkedArray:
        return reduce(compute.or_, (compute.is_null(table[name]) for name in names))

    known = {name: fields for name, fields in schema.REQUIRED.items() if fields}
    here = known.keys() & compute.unique(kind).to_pylist()
    wrongs = [
        ("parse", compute.is_valid(table[schema.CORRUPT])),
        ("key", lacks(("k", "t0", "t1", "seq"))),
        ("kind", compute.invert(compute.is_in(kind, pyarrow.array(list(schema.REQUIRED))))),
        *(
            ("key", compute.and_(compute.equal(kind, name), lacks(known[name])))
            for name in sorted(here)
        ),
        ("range", compute.or_(compute.less(end, begin), compute.less(begin, 0))),
        ("future", compute.greater(end, origin.now_us + FUTURE_US)),
        ("late", compute.less(begin, origin.oldest_us)),
    ]
    error = pyarrow.nulls(table.num_rows, pyarrow.string())
    for name, is_so in reversed(wrongs):
        error = compute.if_else(compute.fill_null(is_so, False), name, error)
    return error


def _kinds_and_hours(
    table: pyarrow.Table, is_wanted: pyarrow.ChunkedArray
) -> Iterator[tuple[str, int, pyarrow.ChunkedArray]]:
    """Yield each kind and hour that there is of the wanted rows, and which are of it."""
    compute = pyarrow.compute
    hour_us = compute.multiply(compute.divide(table["t0"], schema.HOUR_US), schema.HOUR_US)
    keys = pyarrow.table({"kind": table["k"], "hour": hour_us}).filter(is_wanted)
    for key in keys.group_by(["kind", "hour"]).aggregate([]).to_pylist():
        mine = compute.and_(
            compute.equal(table["k"], key["kind"]), compute.equal(hour_us, key["hour"])
        )
        yield key["kind"], key["hour"], compute.and_(mine, is_wanted)


def _silver(
    rows: pyarrow.Table,
    origin: Origin,
    lines: pyarrow.Array | None,
    errors: pyarrow.ChunkedArray | None,
) -> pyarrow.Table:
    """Return rows with the columns of silver that are not theirs."""
    count = rows.num_rows
    nothing = pyarrow.nulls(count, pyarrow.string())
    identity = [pyarrow.repeat(value, count) for value in origin.identity]
    own = [rows[field.name] for field in schema.ROW.fields]
    columns = [*own, *identity, nothing if lines is None else lines,
               nothing if errors is None else errors]  # fmt: skip
    return pyarrow.table(columns, silver_schema())
