"""Filters of rows: columns are the fields, and each row decides what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.row_filter import RowFilter

ROW: dict[str, Any] = {
    "name": "orders",
    "messages": 7,
    "durable": True,
    "members": ["n0", "n1"],
    "leader": None,
    "headers": "not of a message",
}


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("messages > 6 && name.startsWith('ord')", True),
        ("messages > 7", False),
        ("durable", True),
        ("!durable", False),
        ('"n1" in members', True),
        ("has(leader)", False),
        ("leader == 'n0'", False),
        ("name > 5", False),
        ("headers == 'not of a message'", True),
        ("name in ['orders', 'more']", True),
    ],
)
def test_columns_are_fields(text: str, is_true: bool) -> None:
    assert RowFilter(text, ROW.keys()).matches(ROW) == is_true


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mesages > 1", "mesages is no field here: write messages?"),
        ("zzz > 1", "zzz is no field here: there are name, messages"),
        ("messages >", ""),
    ],
)
def test_what_is_no_column_is_told(text: str, says: str) -> None:
    with pytest.raises(FilterError) as wrong:
        RowFilter(text, ("name", "messages"))
    assert says in str(wrong.value)
    assert "headers" not in str(wrong.value)


def test_a_column_has_no_parts() -> None:
    with pytest.raises(FilterError, match="has no parts"):
        RowFilter("name.first == 'a'", ("name",))
    with pytest.raises(FilterError, match="is no field"):
        RowFilter('headers["a"] == 1', ("name",))
