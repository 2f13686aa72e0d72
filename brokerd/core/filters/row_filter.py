"""Filters of rows: the language of message filters, with the columns of a listing as its fields.

    chosen = RowFilter('messages > 100 && name.startsWith("order")', ("name", "messages"))
    chosen.matches({"name": "orders", "messages": 200})

For brokerctl's listings.  Pure.  What a column holds, each row decides, as with headers of
messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from brokerd.core.filters.compiler import Compiler
from brokerd.core.filters.fields import Field, Part
from brokerd.core.filters.kinds import Evaluate, Kind
from brokerd.core.filters.ports import MessageView
from brokerd.core.filters.syntax import parse
from brokerd.core.filters.tokens import tokens_of


class RowFilter:
    """A compiled filter of rows; it holds no state of them."""

    __slots__ = ("_evaluate",)

    def __init__(self, text: str, columns: Collection[str]) -> None:
        """Compile it; FilterError says what is wrong with the text, where, and what to do."""
        fields = {name: Field(Kind.ANY, Part.QUEUE, _column(name)) for name in columns}
        self._evaluate = Compiler(text, fields).condition(parse(tokens_of(text), text))

    def matches(self, row: Mapping[str, object]) -> bool:
        """Say whether the filter is true for a row; never raises for what is in it."""
        return self._evaluate(cast(MessageView, row)) is True


def _column(name: str) -> Evaluate:
    def read(row: Any) -> object:
        return row.get(name)

    return read
