"""The text of a segment to typed rows, and what is wrong with each: octets in, columns out.

design/telemetry.md §6.5, §10, ADR 55.  Most lines go through Arrow's reader a block at a
time, those of queues apart, of which it looks for fewer fields; a block that it does not take, and
the kinds of which it would take none (schema.KINDS_BY_LINE), are read line by line, to the same
rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
#: No clock is so far off; ten years.
SKEW_MS_MAX = 10 * 365 * 24 * 3_600_000
#: A quarantined line keeps so much of its text.
LINE_CHARS_MAX = 4096
#: So much text is made rows at a time.
BLOCK_OCTETS = 4 * 1024 * 1024

#: A segment's own lines begin so; all others are rows.
_OWN = b'{"k":"_'
#: Where a row says its kind, which members write after its version and number.
_HEAD_OCTETS = 64
_APART = re.compile(
    b'"k":"(?:(%s)|(%s))"' % (schema.QUEUE.encode(), "|".join(schema.KINDS_BY_LINE).encode())
)
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
    #: By how much its clock is at least ahead, where its rows do not say so themselves.
    lead_us: int = 0


@cache
def silver_schema(kind: str | None = None) -> pyarrow.Schema:
    """Return what of schema.SILVER rows of a kind have, for Arrow; None: all."""
    if kind != schema.QUEUE:
        return to_arrow_schema(schema.SILVER)
    names = [*schema.QUEUE_ROW.fieldNames(), *schema.IDENTITY]
    return to_arrow_schema(t.StructType([schema.SILVER[name] for name in names]))


class Fields:
    """Which fields rows have had so far, those of queues and all others; of a task, say.

    Arrow's reader takes 40 ns for each field of its schema that a row does not have, row by row.
    So its schema has the fields that rows had before, and all as soon as a row has another one.
    """

    def __init__(self) -> None:
        self._had: dict[bool, frozenset[str]] = {}

    def read(self, text: bytes, is_queues: bool) -> pyarrow.Table:
        """Return rows with all fields of their kind; ArrowException if Arrow does not read them."""
        whole = _block_schema(is_queues)
        had = self._had.get(is_queues, frozenset())
        if had and len(had) < len(whole):
            try:
                found = _read(text, pyarrow.schema(map(whole.field, sorted(had))), "error")
            except pyarrow.ArrowInvalid:
                pass
            else:
                columns = {name: found[name] for name in had}
                lacking = {
                    field.name: pyarrow.nulls(found.num_rows, field.type)
                    for field in whole
                    if field.name not in had
                }
                return pyarrow.table(columns | lacking)
        found = _read(text, whole, "ignore")
        names = {name for name in whole.names if found[name].null_count < found.num_rows}
        # Not one of ours, so a newer member's: what is not known is ignored from here on.
        self._had[is_queues] = frozenset(whole.names if names <= had else had | names)
        return found


def rows_of(
    text: bytes, origin: Origin, fields: Fields
) -> Iterator[tuple[str, int, pyarrow.Table]]:
    """Yield (kind, hour, rows) of a segment's text: rows in those columns of schema.SILVER that
    they may have; the others are null.

    Lines that are no rows have the kind schema.BAD_KIND and their text, and say why: parse, key,
    kind, range, future, late.  hour: microseconds.  A kind and an hour may come more than once.
    """
    for block in _blocks(text):
        for table, lines in _parsed(block, fields):
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


def _parsed(lines: list[bytes], fields: Fields) -> Iterator[tuple[pyarrow.Table, list[bytes]]]:
    """Yield rows with columns of schema.PARSED, and the line of each."""
    others: list[bytes] = []
    queues: list[bytes] = []
    apart: list[bytes] = []
    for line in lines:
        found = _APART.search(line, 0, _HEAD_OCTETS)
        (others if found is None else queues if found[1] else apart).append(line)
    for own, is_queues in ((queues, True), (others, False)):
        quick = _block(own, is_queues, fields) if own else None
        if quick is None:
            apart += own
        else:
            yield quick, own
    if apart:
        yield _by_line(apart), apart


def _block(lines: list[bytes], is_queues: bool, fields: Fields) -> pyarrow.Table | None:
    """Return the rows of lines as Arrow reads them, None if it would not read each as it is."""
    text = b"\n".join(lines)
    try:
        # Arrow does not look whether a text is one.
        text.decode()
        found = fields.read(text, is_queues)
    except (pyarrow.ArrowException, UnicodeDecodeError):
        return None
    count = len(lines)
    counts = [name for name in schema.COUNTS if name in found.column_names]
    if found.num_rows != count or any(found[name].null_count < count for name in counts):
        return None
    # A row may be of another kind than its head says.
    is_queue = pyarrow.compute.equal(found["k"], schema.QUEUE)
    if pyarrow.compute.any(is_queue, min_count=0).as_py() != is_queues or (
        is_queues and not pyarrow.compute.all(is_queue, skip_nulls=False).as_py()
    ):
        return None
    return found.drop_columns(counts).combine_chunks()


def _read(text: bytes, fields: pyarrow.Schema, unexpected: str) -> pyarrow.Table:
    return pyarrow.json.read_json(
        pyarrow.BufferReader(text),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pyarrow.json.ParseOptions(explicit_schema=fields, unexpected_field_behavior=unexpected),
    )


@cache
def _parsed_schema() -> pyarrow.Schema:
    return to_arrow_schema(schema.PARSED)


@cache
def _block_schema(is_queues: bool) -> pyarrow.Schema:
    """Names of a map are no fields, so Arrow has no reader for it: a text, which no map is."""
    return pyarrow.schema(
        pyarrow.field(field.name, pyarrow.string()) if pyarrow.types.is_map(field.type) else field
        for field in to_arrow_schema(schema.QUEUE_ROW if is_queues else schema.ROW)
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
    for name, fits in _checks(found.get("k") == schema.QUEUE).items():
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
def _checks(is_queue: bool) -> dict[str, Callable[[Any], bool]]:
    """Return what tells of each field whether a value of JSON is of its type."""
    fields = (schema.QUEUE_ROW if is_queue else schema.ROW).fields
    checks = {field.name: _check(field.dataType) for field in fields}
    texts = checks.keys() & set(schema.TEXTS)
    return checks | dict.fromkeys(texts, lambda value: type(value) in (str, int, float))


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
    table = _on_time(table, origin.lead_us)
    is_own = compute.fill_null(compute.greater_equal(table["seq"], origin.first_seq), True)
    error = _error(table, origin)
    is_row = compute.is_null(error)
    for kind, hour_us, rows in _kinds_and_hours(table, compute.and_(is_own, is_row)):
        yield kind, hour_us, _silver(rows, kind, origin)
    if not compute.all(is_row).as_py():
        bad = compute.and_(is_own, compute.invert(is_row))
        at = compute.indices_nonzero(bad).to_pylist()
        texts = pyarrow.array([_text(lines[place]) for place in at], pyarrow.string())
        if at:
            rows = _silver(table.filter(bad), schema.BAD_KIND, origin)
            own = {"line": texts, "error": error.filter(bad)}
            yield schema.BAD_KIND, origin.hour_us, _with(rows, own)


def _on_time(table: pyarrow.Table, lead_us: int) -> pyarrow.Table:
    """Return rows with the times that a clock like those of the other members would have told."""
    compute = pyarrow.compute
    skew_ms = table["skew_ms"]
    if not lead_us and skew_ms.null_count == len(skew_ms):
        return table
    # A member that claims more has its rows where it says that they are.
    is_one = compute.and_(
        compute.less(skew_ms, SKEW_MS_MAX), compute.greater(skew_ms, -SKEW_MS_MAX)
    )
    skew_us = compute.multiply(compute.if_else(is_one, skew_ms, 0), 1000)
    ahead_us = compute.coalesce(skew_us, lead_us)
    for name in ("t0", "t1"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, compute.subtract(table[name], ahead_us))
    return table


def _error(table: pyarrow.Table, origin: Origin) -> pyarrow.ChunkedArray:
    """Return what is wrong with each row, the first of it; null if nothing."""
    compute = pyarrow.compute
    kind, begin, end = table["k"], table["t0"], table["t1"]

    def lacks(names: Iterable[str]) -> pyarrow.ChunkedArray:
        return reduce(compute.or_, (compute.is_null(table[name]) for name in names))

    known = {name: fields for name, fields in schema.REQUIRED.items() if fields}
    here = known.keys() & compute.unique(kind).to_pylist()
    if schema.CORRUPT in table.column_names:
        is_corrupt = compute.is_valid(table[schema.CORRUPT])
    else:
        is_corrupt = pyarrow.repeat(False, table.num_rows)
    wrongs = [
        ("parse", is_corrupt),
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
) -> Iterator[tuple[str, int, pyarrow.Table]]:
    """Yield each kind and hour that there is of the wanted rows, and what is of it."""
    compute = pyarrow.compute
    hour_us = compute.multiply(compute.divide(table["t0"], schema.HOUR_US), schema.HOUR_US)
    keys = pyarrow.table({"kind": table["k"], "hour": hour_us}).filter(is_wanted)
    found = keys.group_by(["kind", "hour"]).aggregate([]).to_pylist()
    for key in found:
        if len(found) == 1 and len(keys) == len(table):
            yield key["kind"], key["hour"], table
            return
        mine = compute.and_(
            compute.equal(table["k"], key["kind"]), compute.equal(hour_us, key["hour"])
        )
        yield key["kind"], key["hour"], table.filter(compute.and_(mine, is_wanted))


def _silver(rows: pyarrow.Table, kind: str, origin: Origin) -> pyarrow.Table:
    """Return rows of a kind with the columns of silver that are not theirs."""
    if schema.CORRUPT in rows.column_names:
        rows = rows.drop_columns([schema.CORRUPT])
    count = rows.num_rows
    own: dict[str, Any] = {
        name: pyarrow.repeat(value, count)
        for name, value in zip(schema.IDENTITY, origin.identity, strict=True)
    }
    if kind == schema.QUEUE:
        own |= {name: rows[name].fill_null(0) for name in schema.QUEUE_NUMBERS}
    return _with(rows, own)


def _with(rows: pyarrow.Table, more: Mapping[str, Any]) -> pyarrow.Table:
    """Return rows with other columns, or in place of those of their names."""
    columns = {name: rows[name] for name in rows.column_names} | dict(more)
    return pyarrow.table(columns, pyarrow.schema(map(silver_schema().field, columns)))
