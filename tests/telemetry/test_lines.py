"""Lines of segments become rows, whichever way they are read, or are told of with what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pyarrow
import pytest
from brokerd_telemetry import schema
from brokerd_telemetry.columns import lines
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

HOUR_US = schema.HOUR_US
NOW_US = 10 * HOUR_US
ORIGIN = lines.Origin(("a/b", "n0", "ff", "sample"), 5, 3 * HOUR_US, NOW_US, HOUR_US)
#: A row that is one, of a kind that needs nothing.
ROW = {"v": 1, "seq": 7, "k": "conn", "t0": 2 * HOUR_US, "t1": 2 * HOUR_US + 9}

Found = dict[tuple[str, int], list[dict[str, Any]]]


def read(
    *rows: dict[str, Any] | bytes,
    origin: lines.Origin = ORIGIN,
    fields: lines.Fields | None = None,
) -> Found:
    """Return the rows by kind and hour, without nulls and in the order of their numbers.

    fields: what the reader knows of earlier rows; None: nothing.
    """
    text = b"".join(
        (row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n"
        for row in ({"k": "_open"}, *rows, {"k": "_seal"})
    )
    found: Found = {}
    for kind, hour_us, table in lines.rows_of(text, origin, fields or lines.Fields()):
        assert all(field in lines.silver_schema() for field in table.schema)
        table.validate(full=True)
        found.setdefault((kind, hour_us), []).extend(
            {name: value for name, value in row.items() if value is not None}
            for row in table.to_pylist()
        )
    for items in found.values():
        items.sort(key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
    return found


def row(**fields: Any) -> dict[str, Any]:
    return {**ROW, **fields}


def test_a_row_has_its_fields_and_where_it_comes_from() -> None:
    histogram = {"i": [1, 2], "c": [3, 4], "sum_us": 5, "max_us": 6}
    sent = row(
        k="exchange", vhost="/", exchange="ä\u0000", ae_hops=[1, 2], hb=True, total=histogram
    )
    sent["in"] = -(1 << 63)
    own = dict(zip(schema.IDENTITY, ORIGIN.identity, strict=True))
    assert read({**sent, "of tomorrow": {"x": 1}}) == {("exchange", 2 * HOUR_US): [sent | own]}


def test_names_that_nobody_knows_before_are_kept() -> None:
    counts = {"queues": 1, "log": (1 << 63) - 1, "void": None}
    found = read(row(k="node", mem_parts=counts), row(seq=8), row(k="raft", grp=1, matched=counts))
    assert dict(found["node", 2 * HOUR_US][0]["mem_parts"]) == counts
    assert dict(found["raft", 2 * HOUR_US][0]["matched"]) == counts
    assert [line["seq"] for line in found["conn", 2 * HOUR_US]] == [8]


def test_a_number_may_stand_where_a_text_is_expected() -> None:
    found = read(row(k="wm", **{"from": 0, "to": 1.5}), row(seq=8, state=-7))
    kinds = {kind: line for (kind, _), (line,) in found.items()}
    assert (kinds["wm"]["from"], kinds["wm"]["to"], kinds["conn"]["state"]) == ("0", "1.5", "-7")


QUEUE = {"vhost": "/", "queue": "q", "grp": 1, "term": 1, "ready": 0, "unacked": 2, "c_enq": 3,
         "c_ack": 0}  # fmt: skip


@pytest.mark.parametrize("beside", [(), (row(seq=8, k="queue", grp="x", n=1),)])
def test_a_number_that_a_queues_row_lacks_is_zero(beside: tuple[dict[str, Any], ...]) -> None:
    """Also when the rows are read line by line, as those beside one with a number of no sense."""
    found = read(row(k="queue", **QUEUE, n=5), row(seq=9, n=5), *beside)
    ((line,),) = (lines for (kind, _), lines in found.items() if kind == "queue")
    assert {name: line[name] for name in schema.QUEUE_NUMBERS} == dict.fromkeys(
        schema.QUEUE_NUMBERS, 0
    ) | {"unacked": 2, "c_enq": 3}
    # What is no field of a queue's row is not read; what was not told is still not known.
    assert line.keys().isdisjoint({"n", "max_len", "members", "strategy"})
    assert found["conn", 2 * HOUR_US][0]["n"] == 5
    assert len(found.get((schema.BAD_KIND, ORIGIN.hour_us), [])) == len(beside)


def test_a_row_that_only_seems_to_be_a_queues_is_read_as_what_it_is() -> None:
    for first, last in (("queue", "conn"), ("conn", "queue")):
        head = b'{"v":1,"seq":7,"k":"%s",' % first.encode()
        rest = orjson.dumps({**row(k=last, **QUEUE, n=5, consumers=1)})[1:]
        ((kind, _), (line,)) = read(head + rest).popitem()
        assert (kind, line["k"]) == (last, last)
        assert ("n" in line, "dlv" in line) == ((False, True) if last == "queue" else (True, False))


def test_rows_lie_in_the_hours_that_they_tell_of() -> None:
    found = read(*(row(seq=7 + hour, t0=hour * HOUR_US, t1=hour * HOUR_US) for hour in (1, 2, 4)))
    assert [(kind, hour // HOUR_US) for kind, hour in sorted(found)] == [
        ("conn", 1), ("conn", 2), ("conn", 4),
    ]  # fmt: skip


def test_what_an_earlier_segment_had_is_left_out() -> None:
    found = read(row(seq=4), row(seq=5), row(seq=4, k="no-such-kind"), b"torn")
    assert [line["seq"] for line in found["conn", 2 * HOUR_US]] == [5]
    # Nobody knows the number of a line that cannot be read.
    assert [line["error"] for line in found[schema.BAD_KIND, ORIGIN.hour_us]] == ["parse"]


WRONG = {
    "parse": (
        b"{", b"[1]", b"7", b'{"v":1,"seq":7,"k":"co', b'"\xff"', row(seq="7"), row(n=1.5),
        row(n=True), row(n=1 << 63), row(k=False), row(hb=1), row(vhost=["/"]), row(total=3),
        row(total={"i": [1 << 31]}), row(total={"c": ["x"]}), row(ae_hops=5), row(targets=[1]),
        row(mem_parts=[]), row(mem_parts="x"), row(mem_parts={"a": "b"}), row(mem_parts={"a": 1.5}),
        b'{"k":"conn","vhost":"\xff"}', b'{"k":"conn","vhost":"\\ud83d"}', b'{"n":NaN}',
        b"{'k':'conn'}", orjson.dumps(ROW) + b"{}", orjson.dumps(ROW) + b"x",
    ),
    "key": (
        {"v": 1}, {**ROW, "seq": None}, {**ROW, "k": None}, {**ROW, "t1": None},
        row(k="dl", vhost="/", queue="q", reason="expired", outcome="lost"),
        row(k="policy", vhost="/", policy="p"),
    ),
    "kind": (row(k="no-such-kind"), row(k="_bad"), row(k="../x"), row(k=7)),
    "range": (row(t1=2 * HOUR_US - 1), row(t0=-1), row(t0=-(1 << 63), t1=(1 << 63) - 1)),
    "future": (row(t1=NOW_US + lines.FUTURE_US + 1),),
    "late": (row(t0=HOUR_US - 1),),
}  # fmt: skip


@pytest.mark.parametrize("error", WRONG)
@pytest.mark.parametrize("beside", [(), (row(seq=6), row(seq=6, k="node", mem_parts={"a": 1}))])
def test_what_is_no_row_is_told_of(error: str, beside: tuple[dict[str, Any], ...]) -> None:
    for wrong in WRONG[error]:
        found = read(*beside, wrong)
        ((_, bad),) = [item for item in found.items() if item[0][0] == schema.BAD_KIND]
        text = wrong if isinstance(wrong, bytes) else orjson.dumps(wrong)
        said = [(line["error"], line["line"]) for line in bad]
        assert said == [(error, text.decode(errors="replace"))], wrong
        assert sum(map(len, found.values())) == len(beside) + 1


def test_a_long_line_is_kept_in_part() -> None:
    ((line,),) = read(b"x" * 10_000).values()
    assert line["line"] == "x" * lines.LINE_CHARS_MAX


def test_lines_that_are_not_one_row_each_are_read_apart() -> None:
    """Arrow takes two objects of one line, and one of two lines, for rows."""
    one = orjson.dumps(ROW)
    halves = one[:20], one[20:]
    found = read(one + b" " + one, *halves)
    assert list(found) == [(schema.BAD_KIND, ORIGIN.hour_us)]
    assert Counter(line["error"] for line in found[schema.BAD_KIND, ORIGIN.hour_us]) == {"parse": 3}


def test_a_text_of_many_blocks_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_OCTETS", 100)
    found = read(*(row(seq=seq) for seq in range(10, 60)))
    assert [line["seq"] for line in found["conn", 2 * HOUR_US]] == list(range(10, 60))


def test_fields_that_earlier_rows_did_not_have_are_read_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    read_json = lines._read

    def noted(text: bytes, fields: pyarrow.Schema, unexpected: str) -> pyarrow.Table:
        asked.append(len(fields))
        return read_json(text, fields, unexpected)

    monkeypatch.setattr(lines, "_read", noted)
    fields = lines.Fields()
    at = "conn", 2 * HOUR_US
    some, more, all_fields = len(ROW), len(ROW) + 1, len(schema.ROW)
    for sent, expected in (
        (row(), [all_fields]),
        (row(seq=8), [some]),
        (row(n=5), [some, all_fields]),
        (row(), [more]),
        (row(n=6), [more]),
        # A newer member's: what is not known would be looked for in vain each time.
        (row(tomorrow=1), [more, all_fields]),
        (row(n=7, tomorrow=1), [all_fields]),
    ):
        asked.clear()
        known = {name: value for name, value in sent.items() if name != "tomorrow"}
        own = dict(zip(schema.IDENTITY, ORIGIN.identity, strict=True))
        assert read(sent, fields=fields) == {at: [known | own]}
        assert asked == expected


# ---- both ways ------------------------------------------------------------------------------

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES: dict[type[t.DataType], st.SearchStrategy[Any]] = {
    t.StringType: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    t.LongType: LONGS,
    t.IntegerType: st.integers(-(1 << 31), (1 << 31) - 1),
    t.BooleanType: st.booleans(),
}


def values(kind: t.DataType) -> st.SearchStrategy[Any]:
    """Return what a field of a type may hold."""
    if isinstance(kind, t.ArrayType):
        return st.lists(st.none() | values(kind.elementType), max_size=3)
    if isinstance(kind, t.MapType):
        return st.dictionaries(st.text("ab", max_size=2), st.none() | LONGS, max_size=3)
    if isinstance(kind, t.StructType):
        return st.fixed_dictionaries(
            {}, optional={field.name: values(field.dataType) for field in kind.fields}
        )
    return VALUES[type(kind)]


FIELDS = st.sampled_from([field for field in schema.ROW.fields if field.name not in ROW])
EXTRA = st.lists(
    FIELDS.flatmap(
        lambda field: st.tuples(
            st.just(field.name), st.none() | values(field.dataType) | st.integers(-1, 1)
        )
    ),
    max_size=5,
).map(dict)
ROWS = st.tuples(st.sampled_from(sorted(schema.REQUIRED)), EXTRA).map(
    lambda drawn: row(k=drawn[0], **drawn[1])
)
BROKEN = st.tuples(ROWS, st.integers(0, 200), st.binary(max_size=2)).map(
    lambda drawn: (lambda text: text[: drawn[1]] + drawn[2] + text[drawn[1] + 1 :])(
        orjson.dumps(drawn[0])
    ).replace(b"\n", b"")
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS | BROKEN, max_size=3), st.lists(ROWS | BROKEN, max_size=6))
def test_the_quick_way_and_the_way_by_line_read_the_same(
    before: list[dict[str, Any] | bytes], sent: list[dict[str, Any] | bytes]
) -> None:
    # No number is too low, so that no line may be missing.
    origin = replace(ORIGIN, first_seq=-(1 << 63))
    quick = read(*sent, origin=origin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_block", lambda *_: None)
        by_line = read(*sent, origin=origin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_APART", re.compile(b"(?!)"))
        unsorted = read(*sent, origin=origin)
    taught = lines.Fields()
    read(*before, origin=origin, fields=taught)
    assert quick == by_line == unsorted == read(*sent, origin=origin, fields=taught)
    whole = [line for line in sent if isinstance(line, dict) or line]
    own = [line for line in whole if isinstance(line, bytes) and line.startswith(b'{"k":"_')]
    assert sum(map(len, quick.values())) == len(whole) - len(own)


def test_rows_of_a_wrong_clock_stand_where_they_belong_and_the_others_stay() -> None:
    """Five minutes ahead of the time at which they are read, and an hour behind."""
    hour_ms = HOUR_US // 1000
    ahead = {"t0": NOW_US + 300_000_000, "t1": NOW_US + 301_000_000, "skew_ms": 300_001}
    behind = {"t0": 2 * HOUR_US, "t1": 2 * HOUR_US, "skew_ms": -hour_ms}
    odd = row(seq=10, skew_ms=1 << 62)
    found = read(row(seq=8, **ahead), row(seq=9, **behind), odd, row(seq=11))
    assert found.keys() == {("conn", hour * HOUR_US) for hour in (2, 3, 9)}
    assert found["conn", 9 * HOUR_US][0]["t1"] == NOW_US + 999_000
    assert [line["seq"] for line in found["conn", 2 * HOUR_US]] == [10, 11]


def test_a_boot_that_tells_of_what_is_to_come_keeps_its_rows() -> None:
    """One of an earlier version, which does not know that its clock is wrong."""
    early = row(t0=NOW_US + 400_000_000, t1=NOW_US + 400_000_001)
    assert read(early).keys() == {(schema.BAD_KIND, ORIGIN.hour_us)}
    found = read(early, origin=replace(ORIGIN, lead_us=400_000_001))
    assert found["conn", 9 * HOUR_US][0]["t1"] == NOW_US
