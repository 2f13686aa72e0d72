"""What operators and functions do with values: closures over the closures of their operands.

No rule about what fits to what; `compiler.py` sees to that.  None is "absent, or not to be said",
and every closure gives it back where an operand is None; && and || alone can do without one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

from brokerd.core.filters.kinds import Evaluate, Kind, kind_of
from brokerd.core.filters.ports import MessageView

#: Of two values that the compiler has seen to fit.
_Two: TypeAlias = Callable[..., object]

COMPARISONS: dict[str, _Two] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def all_of(conditions: Sequence[Evaluate]) -> Evaluate:
    """&&: false where one is false, true where all are true."""

    def evaluate(message: MessageView) -> object:
        result: bool | None = True
        for condition in conditions:
            value = condition(message)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def any_of(conditions: Sequence[Evaluate]) -> Evaluate:
    """||: true where one is true, false where all are false."""

    def evaluate(message: MessageView) -> object:
        result: bool | None = False
        for condition in conditions:
            value = condition(message)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def opposite(condition: Evaluate) -> Evaluate:
    """!: of what cannot be said neither."""

    def evaluate(message: MessageView) -> object:
        value = condition(message)
        return None if value is None else value is False

    return evaluate


def presence(read: Evaluate) -> Evaluate:
    """has(): the one that says false of what is absent."""

    def evaluate(message: MessageView) -> object:
        return read(message) is not None

    return evaluate


def constant(value: object) -> Evaluate:
    """The same for every message."""

    def evaluate(message: MessageView) -> object:
        return value

    return evaluate


def applied(function: Callable[[object], object], operand: Evaluate) -> Evaluate:
    """A function of one value."""

    def evaluate(message: MessageView) -> object:
        value = operand(message)
        return None if value is None else function(value)

    return evaluate


def joined(function: _Two, left: Evaluate, right: Evaluate) -> Evaluate:
    """A function of two values."""

    def evaluate(message: MessageView) -> object:
        first = left(message)
        if first is None:
            return None
        second = right(message)
        return None if second is None else function(first, second)

    return evaluate


def joined_with(function: _Two, left: Evaluate, second: object) -> Evaluate:
    """A function of a value and a constant: what most comparisons are."""

    def evaluate(message: MessageView) -> object:
        first = left(message)
        return None if first is None else function(first, second)

    return evaluate


def alike(function: _Two, kinds: Sequence[Kind]) -> _Two:
    """The function for two values of headers, where both are of the same one of these kinds."""

    def apply(first: object, second: object) -> object:
        kind = kind_of(first)
        if kind not in kinds or kind is not kind_of(second):
            return None
        return function(first, second)

    return apply


def total(terms: Sequence[tuple[int, Evaluate]], finish: Callable[[object], object]) -> Evaluate:
    """Sum of numbers with their signs; `finish` judges it."""

    def evaluate(message: MessageView) -> object:
        result: int | float = 0
        for sign, term in terms:
            value = term(message)
            if value is None:
                return None
            assert isinstance(value, int | float)
            result += sign * value
        return finish(result)

    return evaluate


def among(values: dict[Kind, frozenset[object]], read: Evaluate) -> Evaluate:
    """Whether a value is one of the literals of its kind; None if there are none of its kind."""

    def evaluate(message: MessageView) -> object:
        value = read(message)
        kind = kind_of(value)
        if kind is None or kind not in values:
            return None
        return value in values[kind]

    return evaluate


def contained(first: object, held: object) -> object:
    """Whether a value is in a list of a header, or a text a key of a table."""
    if isinstance(held, list):
        kind = kind_of(first)
        if kind is None:
            return None
        return any(kind_of(item) is kind and item == first for item in held)
    return first in held if isinstance(held, dict) and isinstance(first, str) else None


def size_of(value: object) -> object:
    """Characters of a text, bytes of a binary header, entries of a list or table."""
    return len(value) if isinstance(value, str | bytes | list | dict) else None


def at(first: str, keys: Sequence[str | int], root: Evaluate) -> Evaluate:
    """What stands in a table below these keys."""

    def evaluate(message: MessageView) -> object:
        table = root(message)
        return table.get(first) if isinstance(table, dict) else None

    def evaluate_deep(message: MessageView) -> object:
        value = evaluate(message)
        for key in keys:
            if isinstance(value, dict) and isinstance(key, str):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value

    return evaluate_deep if keys else evaluate


def starts_with(first: str, second: str) -> bool:
    return first.startswith(second)


def ends_with(first: str, second: str) -> bool:
    return first.endswith(second)


def contains(first: str, second: str) -> bool:
    return second in first
