"""Kinds of values in a filter, and which kind a header's value is of.

Times and durations exist only as fields and as what functions make: no header is one.  Both are
integers of milliseconds here, so that what is not told apart by a kind must not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from brokerd.core.filters.ports import MessageView

#: What a part of a filter is compiled to.  None: absent, or not to be said.
Evaluate: TypeAlias = Callable[[MessageView], object]


class Kind(Enum):
    """The value is the word that errors use."""

    BOOL = "true or false"
    NUMBER = "a number"
    TEXT = "a text"
    TIME = "a time"
    DURATION = "a duration"
    LIST = "a list"
    TABLE = "a table"
    #: It is there or not; its parts are fields of their own.
    DEATH = "a death"
    #: A header's value, whose kind each message decides.
    ANY = "the value of a header"


#: What a header's value can be compared as.
PLAIN = (Kind.BOOL, Kind.NUMBER, Kind.TEXT)
#: What has an order.
ORDERED = (Kind.NUMBER, Kind.TEXT, Kind.TIME, Kind.DURATION, Kind.ANY)
#: What AMQP and CEL call an integer.
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def kind_of(value: object) -> Kind | None:
    """Return the kind of a value that can be compared, None for others."""
    if isinstance(value, str):
        return Kind.TEXT
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, int):
        return Kind.NUMBER
    # What is not a number compares with nothing, not even with itself.
    return Kind.NUMBER if isinstance(value, float) and value == value else None


def narrowed(evaluate: Evaluate, kind: Kind) -> Evaluate:
    """Return what gives the value where it is of a plain kind, and None where it is not."""

    def narrow(message: MessageView) -> object:
        value = evaluate(message)
        return value if kind_of(value) is kind else None

    return narrow
