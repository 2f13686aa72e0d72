"""What filters say of messages: each field, operator and function, and what is absent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.amqp.integers import Long, Timestamp
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Decimal
from brokerd.core.filters.fields import FIELDS
from brokerd.core.filters.message_filter import Filter, compile_filter
from tests.unit.core.filters.views import View, death, table, with_headers


def matches(text: str, view: View | None = None) -> bool:
    return compile_filter(text).matches(view or View())


def said(text: str, view: View) -> bool | None:
    """Return what a filter says; None where neither it nor its opposite matches."""
    yes, no = matches(text, view), matches(f"!({text})", view)
    assert not (yes and no)
    return True if yes else False if no else None


PROPERTIES = BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"a": "x"},
    delivery_mode=2,
    priority=5,
    correlation_id="c-1",
    reply_to="answers",
    expiration="60000",
    message_id="m-1",
    timestamp=1_700_000_000,
    type="order.created",
    user_id="guest",
    app_id="shop",
    cluster_id="east",
)
#: One message that has everything.
FULL = View(
    number=17,
    state="unacked",
    delivery_count=3,
    redelivered=True,
    age_ms=90_000,
    exchange="events",
    routing_key="orders.eu",
    size=1024,
    properties=PROPERTIES,
    deaths=[death("work", "rejected", 2, 200), death("retry", "expired", 7, 100)],
    first_death=("expired", "retry", "first"),
    body='{"total": 5}',
)
#: A condition on each field that FULL satisfies.
ON_FIELDS = {
    "number": "number == 17",
    "state": 'state == "unacked"',
    "delivery_count": "delivery_count == 3",
    "redelivered": "redelivered",
    "age": 'age == duration("90s")',
    "exchange": 'exchange == "events"',
    "routing_key": 'routing_key == "orders.eu"',
    "size": "size == 1024",
    "headers": "size(headers) == 1",
    "content_type": 'content_type == "application/json"',
    "content_encoding": 'content_encoding == "utf-8"',
    "delivery_mode": "delivery_mode == 2",
    "priority": "priority == 5",
    "correlation_id": 'correlation_id == "c-1"',
    "reply_to": 'reply_to == "answers"',
    "expiration": 'expiration == "60000"',
    "message_id": 'message_id == "m-1"',
    "timestamp": 'timestamp == timestamp("2023-11-14T22:13:20Z")',
    "type": 'type == "order.created"',
    "user_id": 'user_id == "guest"',
    "app_id": 'app_id == "shop"',
    "cluster_id": 'cluster_id == "east"',
    "death": "has(death)",
    "death.reason": 'death.reason == "rejected"',
    "death.queue": 'death["queue"] == "work"',
    "death.exchange": 'death.exchange == "ex"',
    "death.routing_key": 'death.routing_key == "key"',
    "death.count": "death.count == 2",
    "death.time": "death.time == timestamp(200)",
    "first_death": "has(first_death)",
    "first_death.reason": 'first_death.reason == "expired"',
    "first_death.queue": 'first_death.queue == "retry"',
    "first_death.exchange": 'first_death.exchange == "first"',
    "first_death.routing_key": 'first_death.routing_key == "key"',
    "first_death.count": "first_death.count == 7",
    "first_death.time": "first_death.time == timestamp(100)",
    "body": 'body.contains("total")',
}


def test_each_field_has_a_case() -> None:
    assert set(ON_FIELDS) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_read(name: str) -> None:
    assert said(ON_FIELDS[name], FULL) is True
    assert matches(f"has({name})", FULL)


ALWAYS_THERE = {
    *("number", "state", "delivery_count", "redelivered", "exchange", "routing_key", "size")
}


@pytest.mark.parametrize("name", sorted(set(FIELDS) - ALWAYS_THERE))
def test_absent_field_is_neither_true_nor_false(name: str) -> None:
    empty = View(body=None)
    condition = ON_FIELDS[name]
    if condition.startswith("has("):
        assert said(condition, empty) is False
    else:
        assert said(condition, empty) is None
    assert matches(f"!has({name})", empty)


def test_first_death_whose_record_is_gone_has_what_is_kept_apart() -> None:
    """R-DLX-23: a client's x-death may have been believed without the first."""
    view = View(deaths=[death("work", "rejected")], first_death=("expired", "gone", "ex"))
    assert matches('first_death.queue == "gone" && !has(first_death.count)', view)
    assert said('first_death.routing_key == "key"', view) is None
    keyless = death("gone", "expired")
    keyless.routing_keys = []
    view.deaths = [keyless]
    assert said('first_death.routing_key == "key"', view) is None
    assert matches("first_death.count == 1", view)


CASES: list[tuple[str, bool | None]] = [
    # Comparisons of numbers, whatever AMQP calls their widths.
    ("headers.n == 5", True),
    ("headers.n == 5.0", True),
    ("headers.n != 5", False),
    ("headers.n < 6", True),
    ("headers.n <= 5", True),
    ("headers.n > 5", False),
    ("headers.n >= 6", False),
    ("5 == headers.n", True),
    ("headers.long == 7 && headers.time == 9", True),
    ("headers.half == 0.5", True),
    # Of texts.
    ('headers.text == "abc"', True),
    ('headers.text < "abd"', True),
    ("headers.text == type", None),
    ("headers.text == routing_key", False),
    # Of true and false.
    ("headers.yes", True),
    ("headers.yes == true", True),
    ("headers.yes == redelivered", False),
    ("!headers.yes", False),
    # Kinds that do not fit say nothing, nor does their opposite.
    ('headers.n == "5"', None),
    ('headers.n != "5"', None),
    ("headers.yes == 1", None),
    ("headers.n == true", None),
    ("headers.n", None),
    ("headers.text", None),
    ("headers.void == 1", None),
    ("headers.list == 1", None),
    ("headers.money == 1", None),
    ("headers.nan == 1", None),
    ("headers.nan != 1", None),
    ("headers.absent == headers.n", None),
    ("headers.n == headers.absent", None),
    ("headers.text == headers.n", None),
    # Two headers.
    ("headers.n == headers.n", True),
    ("headers.n < headers.long", True),
    ("headers.text == headers.text", True),
    ("headers.yes == headers.yes", True),
    ("headers.yes <= headers.yes", None),
    ("headers.list == headers.list", None),
    # Tables and lists.
    ('headers["table"]["in"][1]["deep"] == "found"', True),
    ("headers.table.in[1].deep == 'found'", True),
    ("headers.table[0] == 1", None),
    ("headers.table.in[2].deep == 'found'", None),
    ("headers.list.a == 1", None),
    ("headers.text.a == 1", None),
    ("has(headers.table.in[0])", True),
    ("has(headers.table.in[2])", False),
    ("has(headers.void)", False),
    ("has(headers.money)", True),
    # in
    ('headers.text in ["x", "abc"]', True),
    ("headers.n in [1, 2.5, -3]", False),
    ("headers.n in [5.0]", True),
    ('headers.n in ["5", true]', None),
    ('headers.n in ["5", 5]', True),
    ("headers.yes in [1]", None),
    ("headers.yes in [true]", True),
    ("headers.absent in [1]", None),
    ("headers.list in [1]", None),
    ('"b" in headers.list', True),
    ("1 in headers.list", True),
    ("true in headers.list", False),
    ("headers.n in headers.list", False),
    ("headers.table in headers.list", None),
    ('"in" in headers.table', True),
    ('"out" in headers.table', False),
    ("1 in headers.table", None),
    ('"a" in headers.text', None),
    ('"text" in headers', True),
    ('"other" in headers', False),
    ("headers.absent in headers", None),
    # && and || need not know everything.
    ("headers.absent == 1 || headers.n == 5", True),
    ("headers.absent == 1 || headers.n == 6", None),
    ("headers.n == 6 || headers.n == 7", False),
    ("headers.absent == 1 && headers.n == 6", False),
    ("headers.absent == 1 && headers.n == 5", None),
    ("headers.n == 5 && headers.text == 'abc'", True),
    ("true || headers.absent", True),
    ("false", False),
    # Sums.
    ("headers.n + 1 == 6", True),
    ("headers.n - 1 + 0.5 == 4.5", True),
    ("-headers.n == -5", True),
    ("--5 == 5 && - 5 == -5", True),
    ("headers.n + headers.text == 6", None),
    ("headers.absent + 1 == 6", None),
    ("headers.n + 9223372036854775807 > 0", None),
    ("headers.big + headers.big > 0", None),
    ("headers.inf + 1 > 0", None),
    ("number + 1 == 2", True),
    # Functions of texts.
    ('headers.text.startsWith("ab")', True),
    ('headers.text.startsWith("b")', False),
    ('headers.text.endsWith("bc")', True),
    ('headers.text.contains("b")', True),
    ('headers.n.contains("5")', None),
    ("headers.text.contains(headers.text)", True),
    ("headers.text.contains(routing_key)", False),
    ("routing_key.contains(headers.n)", None),
    ('"abcd".startsWith(headers.text)', True),
    ('headers.text.matches("^a.c$")', True),
    ('headers.text.matches("^b")', False),
    ('headers.n.matches("5")', None),
    ('headers.bytes.startsWith("a")', None),
    ('headers.raw.matches("^a.$")', False),
    ('headers.raw.matches("^a")', True),
    ('headers.surrogate.matches("a")', None),
    # size()
    ("size(headers.text) == 3", True),
    ('size("häß") == 3', True),
    ("size(headers.bytes) == 2", True),
    ("size(headers.list) == 2 && size(headers.table) == 1", True),
    ("size(headers.n) == 1", None),
    ("size(headers.absent) == 0", None),
    # Conversions.
    ('int("5") == 5 && int(headers.digits) == 42', True),
    ("int(headers.half) == 0 && int(-1.5) == -1", True),
    ("int(headers.text) == 1", None),
    ("int(headers.yes) == 1", None),
    ("int(headers.inf) == 1", None),
    ("int(headers.nan) == 1", None),
    ("int(headers.long_digits) > 0", None),
    ("double(headers.digits) == 42.0", True),
    ('double("1.5e1") == 15', True),
    ("double(headers.text) == 1.0", None),
    ("double(headers.inf) > 1.0", None),
    ("double(headers.yes) > 1.0", None),
    ("double(headers.long_digits) > 0", None),
    ('string(headers.n) == "5"', True),
    ('string(headers.yes) == "true" && string(false) == "false"', True),
    ('string(headers.half) == "0.5"', True),
    ('string(headers.list) == "x"', None),
    ('string(headers.digits) == "42" && string(number).startsWith("1")', True),
    # Times and durations.
    ('duration("1h30m") == duration("90m")', True),
    ('duration("1d") - duration("23h") == duration("1h")', True),
    ('duration(headers.pause) == duration("1500ms")', True),
    ("duration(headers.text) == duration('1s')", None),
    ("duration(headers.n) == duration('1s')", None),
    ("duration('-1s') < duration('0s') && -duration('1s') == duration('-1s')", True),
    ("timestamp(headers.iso) == timestamp('2026-11-30T14:00:00.250Z')", True),
    ("timestamp(headers.iso) - timestamp('2026-11-30T13:00:00.250Z') == duration('1h')", True),
    ("timestamp(headers.iso) + duration('1h') > timestamp(headers.iso)", True),
    ("timestamp(headers.time) == timestamp(9)", True),
    ("timestamp(headers.text) == timestamp(9)", None),
    ("timestamp(headers.yes) == timestamp(9)", None),
    ("timestamp(headers.inf) == timestamp(9)", None),
    ("timestamp(headers.big) == timestamp(9)", None),
    ("timestamp(9223372036854775) + duration('100000000000h') > timestamp(1)", None),
    ("age > duration('5m')", None),
]

HEADERS = with_headers(
    n=5,
    long=Long(7),
    time=Timestamp(9),
    half=0.5,
    text="abc",
    yes=True,
    void=None,
    money=Decimal(2, 100),
    nan=float("nan"),
    inf=float("inf"),
    big=(1 << 63) - 1,
    list=["b", 1],
    table={"in": [1, {"deep": "found"}]},
    bytes=b"ab",
    raw="a\udcff",
    surrogate="a\ud800",
    digits="42",
    long_digits="9" * 5000,
    pause="1.5s",
    iso="2026-11-30T15:30:00.25+01:30",
)


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_condition_is_said(text: str, expected: bool | None) -> None:
    assert said(text, HEADERS) is expected


def test_headers_absent_altogether_hold_nothing() -> None:
    assert said('"a" in headers', View()) is None
    assert said("headers.a == 1", View()) is None
    assert matches("!has(headers) && !has(headers.a)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"a\n\r\t\\\"\'" == type', "a\n\r\t\\\"'"),
        (r"'\x41\u00e9\U0001F600' == type", "Aé😀"),
        (r'r"\d" == type', r"\d"),
        (r"R'\' == type", "\\"),
        (r'"\u0000" == type', "\0"),
    ],
)
def test_texts_have_escapes(text: str, expected: str) -> None:
    assert matches(text, View(properties=BasicProperties(type=expected)))


def test_numbers_are_written_as_in_cel() -> None:
    view = with_headers(n=255, small=-0.0025)
    assert matches("headers.n == 0xff && headers.n == 0255 && headers.n == 2.55e2", view)
    assert matches("headers.small == -2.5e-3", view)
    assert matches("headers.n < 0x7fffffffffffffff && headers.n < 9223372036854775807", view)


def test_operators_bind_as_in_cel() -> None:
    """! before + before comparisons before && before ||."""
    assert matches("true || false && false")
    assert not matches("(true || false) && false")
    assert matches("!false && true")
    assert matches("1 + 1 == 2 && 3 - 2 - 1 == 0 && 3 - (2 - 1) == 2")


def test_conditions_are_asked_in_order_and_no_further_than_needed() -> None:
    """A body is not read for a message that another condition decides."""

    class Bodiless(View):
        @property
        def body(self) -> str | None:  # type: ignore[override]
            raise AssertionError("the body is read")

        @body.setter
        def body(self, value: str | None) -> None:
            pass

    assert not matches('routing_key == "x" && body.contains("a")', Bodiless())
    assert matches('routing_key == "orders" || body.contains("a")', Bodiless())


@pytest.mark.parametrize(
    ("text", "needs_head", "needs_body", "searches"),
    [
        ('number > 5 && state == "ready" || redelivered', False, False, False),
        ("delivery_count > 1 && age > duration('1m')", False, False, False),
        ("true", False, False, False),
        ("has(type)", True, False, False),
        ("headers.a == 1", True, False, False),
        ('type.matches("a")', True, False, True),
        ('number == 1 || body.contains("a")', True, True, False),
        ("has(body) && has(type)", True, True, False),
    ],
)
def test_filter_says_what_it_will_ask_for(
    text: str, needs_head: bool, needs_body: bool, searches: bool
) -> None:
    found = compile_filter(text)
    assert (found.needs_head, found.needs_body, found.searches) == (
        needs_head,
        needs_body,
        searches,
    )
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('type=="secret"&&size>5', "type == ? && size > ?"),
        ("headers['x-tenant'] == 'a'", "headers['x-tenant'] == ?"),
        ("headers.a['b'][0] in [1, 'x']", "headers.a['b'][?] in [?, ?]"),
        ("'b' in ['b']", "? in [?]"),
        ("headers['a@b.example'] == 1", "headers[?] == ?"),
        ("headers['a\\u001b'] == 1", "headers[?] == ?"),
        ("!( redelivered==true )", "!(redelivered == true)"),
        ('duration("5m")<age', "duration(?) < age"),
        ("type.matches(r'a b')", "type.matches(?)"),
    ],
)
def test_literals_stay_out_of_the_audit_log(text: str, shown: str) -> None:
    found = compile_filter(text)
    assert found.without_literals() == shown
    assert repr(found) == f"Filter({shown})"


def test_a_filter_is_asked_again_and_again() -> None:
    found: Filter = compile_filter("headers.n > 1")
    views: Callable[[object], View] = lambda n: View(  # noqa: E731
        properties=BasicProperties(headers=table({"n": n}))
    )
    assert [found.matches(views(n)) for n in (0, 2, "2", None, 3)] == [
        *(False, True, False, False, True)
    ]
