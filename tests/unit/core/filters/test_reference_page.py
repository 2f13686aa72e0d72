"""docs/reference/filters.md: its examples compile, its tables have what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerd.core.filters import compiler, conversions, fields, regular_expressions, syntax, tokens
from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.message_filter import compile_filter
from tests.unit.core.filters.views import View, death, with_headers

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "filters.md"


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    part = PAGE.read_text().split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


EXAMPLES = [row[1].strip("`") for row in rows("Filters")]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_compiles_and_can_match(text: str) -> None:
    """One message satisfies them all: each says yes to something."""
    view = with_headers(
        **{"tenant": "acme", "x-exception-message": "a timeout", "CC": ["a", "audit"], "tries": "2"}
    )
    view.exchange, view.routing_key = "events", "eu.orders"
    view.age_ms, view.size, view.body = 600_000, 1 << 21, "order-123456"
    view.properties.type = "order.paid"
    view.deaths = [death("work", "rejected", 3)]
    view.deaths[0].time_s = 1_796_040_000
    view.first_death = ("rejected", "work", "")
    assert compile_filter(text).matches(view)
    assert not compile_filter(text).matches(View(exchange="other", routing_key="us.orders"))


def test_what_the_page_says_of_absent_fields() -> None:
    for text in ("headers.a == 1", "headers.a != 1", "!(headers.a == 1)"):
        assert not compile_filter(text).matches(View())
    for value in (5, "5"):
        assert compile_filter('string(headers.a) == "5"').matches(with_headers(a=value))


def test_the_fields_are_those_of_the_code() -> None:
    described = {
        name: row[1] for row in rows("Fields") for name in re.findall(r"`([a-z_.]+)`", row[0])
    }
    kinds = {name: field.kind.value for name, field in fields.FIELDS.items()}
    assert described == {name: kind.removeprefix("a ") for name, kind in kinds.items()}


def test_the_functions_are_those_of_the_code() -> None:
    described = {
        name for row in rows("Functions") for name in re.findall(r"`(?:text\.)?(\w+)\(", row[0])
    }
    assert described == {*compiler._FUNCTIONS, *compiler._METHODS}


def test_the_bounds_are_those_of_the_code() -> None:
    numbers = [int(re.sub(r"\D", "", row[1].split(";")[0])) for row in rows("Bounds")]
    assert numbers == [
        tokens.TEXT_MAX,
        syntax.DEPTH_MAX,
        syntax.LIST_ITEMS_MAX,
        syntax.KEYS_MAX,
        conversions.TEXT_MAX,
        regular_expressions.PROGRAM_SIZE_MAX,
        regular_expressions.SEARCHED_BYTES_MAX >> 10,
        fields.BODY_BYTES_MAX >> 10,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "size == null",
        "type == b'a'",
        "size == 5u",
        "redelivered ? true : false",
        "size * 2 == 4",
        "size / 2 == 4",
        "size % 2 == 0",
        "true // yes",
        "headers.exists(x, true)",
        'type + "a" == "b"',
        "headers[type] == 1",
        "type.size() == 1",
    ],
)
def test_what_cel_has_beyond_it_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        compile_filter(text)
