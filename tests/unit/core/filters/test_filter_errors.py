"""Filters that are refused: what is said, where, and what hostile ones cost."""

from __future__ import annotations

import time

import pytest

from brokerd.core.filters import regular_expressions, tokens
from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.message_filter import compile_filter
from brokerd.core.filters.syntax import DEPTH_MAX, KEYS_MAX, LIST_ITEMS_MAX
from tests.unit.core.filters.views import View


def refused(text: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        compile_filter(text)
    return caught.value


#: Text, the place (the caret stands there), and what is said.
REFUSED: list[tuple[str, int, str]] = [
    ("", 0, "it is empty: write a condition"),
    ("  ", 0, "it is empty"),
    ("routingkey == 'a'", 0, "routingkey is no field here: write routing_key?"),
    ("x == 'a'", 0, "x is no field here: there are number, state"),
    ("death.raison == 'a'", 0, "death.raison is no field here: write death.reason?"),
    ("death.zzzzzzzzzzzzzzzzzz == 'a'", 0, "there are death.reason, death.queue"),
    ("type.x == 'a'", 0, "type has no parts: write type alone"),
    ("death.reason.x == 'a'", 0, "death.reason has no parts"),
    ("headers[0] == 1", 0, 'headers have names: write headers["name"]'),
    ("type == 5", 5, "a text and a number cannot be compared: convert one"),
    ("age == timestamp(5)", 4, "a duration and a time cannot be compared"),
    ("headers.a > duration('5m')", 10, "the value of a header and a duration cannot be compared"),
    ("redelivered < true", 0, "true or false cannot be compared by <"),
    ("headers == 1", 0, "a table cannot be compared by =="),
    ("1 == death", 5, "a death cannot be compared by =="),
    ("type", 0, "a text is no condition: compare it, or ask has(…)"),
    ("true && size", 8, "a number is no condition"),
    ("!type", 1, "a text is no condition"),
    ("[1] == 1", 0, "a list stands behind in alone"),
    ("type in []", 8, "nothing is in an empty list"),
    ("type in [1]", 5, "a text is never in this list"),
    ("type in [type]", 9, "a list has texts, numbers, true and false alone"),
    ("type in ['a' 'b']", 13, "'b' is not expected here: write ,"),
    ("age in headers.x", 4, "a duration is in no list"),
    ("1 in size", 2, "nothing is in a number"),
    ("size + type == 1", 0, "these cannot be added"),
    ("timestamp + timestamp == timestamp", 0, "these cannot be added"),
    ("age - timestamp == age", 0, "these cannot be added"),
    ("size + age == 1", 0, "these cannot be added"),
    ("size > 1 > 0", 9, "> is not expected here: write && between two comparisons"),
    ("size > 1 in [1]", 9, "in is not expected here: write && between two comparisons"),
    ("size > ", 7, "it ends too early: write a field, a function or a value"),
    ("(size > 1", 9, "it ends too early: write )"),
    ("size > 1)", 8, ") is not expected here: write && or || before it"),
    ("size > 1 size", 9, "size is not expected here: write && or || before it"),
    ("size > 1 'in' [1]", 9, "'in' is not expected here"),
    ("type == 'a' and size > 1", 12, "and is no word here: write &&"),
    ("not redelivered", 0, "not is no word here: write !"),
    ("type == null", 8, "null is no word here: write has(…)"),
    ("in == 1", 0, "in is not expected here"),
    ("type = 'a'", 5, "= is no operator here: write =="),
    ("type == 'a' & true", 12, "& is no operator here: write &&"),
    ("type == `a`", 8, "` is no operator here: write double quotes"),
    ("type == 'a", 8, "a text that begins here has no end: close it with '"),
    ('type == "a\n"', 8, 'a text that begins here has no end: close it with "'),
    ("size * 2 == 4", 5, "'*' begins nothing"),
    ("type == 'a' ; true", 12, "';' begins nothing"),
    ("\x00", 0, "'\\x00' begins nothing"),
    ("tÿpe == 'a'", 1, "'\\xff' begins nothing"),
    (r"type == '\d'", 9, r"an unknown escape: write \\ for a backslash"),
    (r"type == 'a\ud800'", 10, "this escape is no character"),
    (r"type == '\U00110000'", 9, "this escape is no character"),
    (r"type == '\x4'", 9, "an unknown escape"),
    ("type == '\ud800'", 9, "this text is not Unicode"),
    ("type == r'\udcff'", 8, "this text is not Unicode"),
    ("age > 5m", 6, 'a number ends in letters: write duration("5m")?'),
    ("size == 9223372036854775808", 8, "a number above 9223372036854775807"),
    ("size == 0x8000000000000000", 8, "a number above 9223372036854775807"),
    ("size == 1e400", 8, "a number above 9223372036854775807"),
    ("-'a' == type", 0, "a minus stands before numbers alone"),
    ("-true", 0, "a minus stands before numbers alone"),
    ("headers[-1] == 1", 8, "- is not expected here: write a text or a number from 0"),
    ("headers[1.5] == 1", 8, "1.5 is not expected here"),
    ("headers[true] == 1", 8, "true is not expected here"),
    ("headers['a' == 1", 12, "== is not expected here: write ]"),
    ("headers.'a' == 1", 8, "'a' is not expected here: write a name behind the dot"),
    ("'a'.b == 1", 4, "only a field has parts"),
    ("size(type).b == 1", 11, "only a field has parts"),
    ("foo(1)", 0, "foo is no function here: there are startsWith"),
    ("type.startswith('a')", 5, "startswith is no function here: write startsWith?"),
    ("type.size() == 1", 5, "size stands before its value: write size(…)"),
    ("contains(type, 'a')", 0, "contains stands behind its text: write type.contains(…)"),
    ("has()", 0, "has() takes one value, not 0"),
    ("size(type, type) == 1", 0, "size() takes one value, not 2"),
    ("has(size(type))", 0, "has() takes a field"),
    ("size(size) == 1", 5, "size() of a number: give it a text"),
    ("int(redelivered) == 1", 4, "int() of true or false: give it a number"),
    ("duration(5) == age", 9, "duration() of a number: give it a text"),
    ("string(age) == 'a'", 7, "string() of a duration"),
    ("int('x') == 1", 4, 'no int can be made of this: write int("5")'),
    ("double('x') == 1", 7, "no double can be made of this"),
    ("duration('5') == age", 9, 'no duration can be made of this: write duration("1h30m")'),
    ("duration('5x') == age", 9, "no duration can be made of this"),
    ("duration('') == age", 9, "no duration can be made of this"),
    (f"duration('{'9' * 60}h') == age", 9, "no duration can be made of this"),
    (f"duration('{'9' * 65}h') == age", 9, "no duration can be made of this"),
    ("timestamp('2026-11-30') == timestamp", 10, "no timestamp can be made of this"),
    ("timestamp('2026-02-30T00:00:00Z') == timestamp", 10, "no timestamp can be made of this"),
    ("size.contains('a')", 0, "contains() of a number: give it a text"),
    ("type.contains(5)", 14, "contains() of a number: give it a text"),
    ("type.contains('a').contains('b')", 19, "contains() gives true or false: write &&"),
    ("type.matches(type)", 13, "matches() takes a literal text"),
    ("type.matches('(a')", 13, "RE2 does not take this regular expression (missing ))"),
    (r"type.matches(r'(a)\1')", 13, "neither look-around nor back references"),
    ("type.matches('(?=a)')", 13, "neither look-around nor back references"),
    ("type.matches('a{500}')", 13, "instructions, at most 256 are run: repeat less"),
    ("true || type.matches('a{200}') || type.matches('a{200}')", 47, "at most 256 are run"),
]


@pytest.mark.parametrize(("text", "position", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_filter_is_refused(text: str, position: int, message: str) -> None:
    error = refused(text)
    assert message in error.message
    assert error.position == position
    assert str(error) == f"filter, character {position + 1}: {error.message}"


def test_error_shows_the_place() -> None:
    assert refused("size > 1 && typ == 'a'").excerpt() == "size > 1 && typ == 'a'\n            ^"
    far = refused(" " * 100 + "x" + " " * 100)
    assert far.excerpt() == f"{' ' * 40}x{' ' * 29}\n{' ' * 40}^"


def test_error_shows_no_control_characters() -> None:
    assert refused("type == '\x1b[31m'").excerpt() == "type == '?[31m'\n        ^"


@pytest.mark.parametrize(
    "text",
    [
        "x" * (1 << 20),
        "type == '" + "x" * (1 << 20) + "'",
        "1" * (1 << 20),
        "(" * (1 << 20),
        "\\" * (1 << 20),
    ],
    ids=["name", "literal", "number", "parentheses", "backslashes"],
)
def test_a_mebibyte_is_refused_unread(text: str) -> None:
    error = refused(text)
    assert error.position == tokens.TEXT_MAX
    assert len(str(error)) < 200
    assert len(error.excerpt()) < 200


def nested(depth: int) -> list[str]:
    return [
        "(" * depth + "true" + ")" * depth,
        "!" * depth + "true",
        "-" * depth + "1 == 1",
        "has(" * depth + "type" + ")" * depth,
        "size(" * depth + "type" + ")" * depth,
    ]


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1, 600])
def test_deep_nesting_is_refused(depth: int) -> None:
    assert len(nested(depth)) == 5
    for text in nested(depth):
        assert f"nested deeper than {DEPTH_MAX}" in refused(text).message


def test_nesting_within_the_bound_is_taken() -> None:
    for text in nested(DEPTH_MAX - 1)[:3]:
        compile_filter(text)


def test_what_is_long_without_being_deep_is_taken() -> None:
    """Chains and sums are evaluated in loops."""
    assert compile_filter("||".join(["size==1"] * 400)).matches(View(size=1))
    assert not compile_filter("&&".join(["true"] * 600 + ["false"])).matches(View())
    assert compile_filter("+".join(["1"] * 1500) + "== 1500").matches(View())
    assert compile_filter("-".join(["1"] * 1500) + "== -1498").matches(View())


def test_lists_and_keys_have_bounds() -> None:
    items = ",".join(["1"] * LIST_ITEMS_MAX)
    compile_filter(f"size in [{items}]")
    assert "shorten it" in refused(f"size in [{items},1]").message
    keys = ".a" * KEYS_MAX
    compile_filter(f"has(headers{keys})")
    assert "more than 16 keys" in refused(f"has(headers{keys}.a)").message
    assert "more than 16 keys" in refused(f"has(headers{'[0]' * 17})").message


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)+$",
        "(.*a){11}z",
        "^(a?){25}a{25}$",
        r"(\\pL{1,30}){1,30}",
        "((a{100}){100}){100}",
        "(" * 1500,
        "[" * 3000,
        "(a|b|ab)*" * 20 + "c",
    ],
)
def test_hostile_regular_expressions_take_no_time(pattern: str) -> None:
    """Those that others choke on: refused or linear. Seconds would be wrong, not milliseconds."""
    started = time.perf_counter()
    try:
        found = compile_filter(f'body.matches("{pattern}")')
    except FilterError:
        pass
    else:
        assert not found.matches(View(body="a" * 65_535 + "!"))
    assert time.perf_counter() - started < 5


def test_texts_longer_than_are_searched_say_nothing() -> None:
    most = regular_expressions.SEARCHED_BYTES_MAX
    found = compile_filter('body.matches("a") || !body.matches("a")')
    assert found.matches(View(body="a" * most))
    assert not found.matches(View(body="a" * (most + 1)))
    assert not found.matches(View(body="ä" * (most // 2 + 1)))


def test_a_reason_of_re2_may_be_of_any_form() -> None:
    reason = regular_expressions._reason
    assert reason(ValueError(b"bad: x")) == reason(ValueError("bad: y")) == "bad"
    assert reason(ValueError()) == ""
