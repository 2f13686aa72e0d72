"""From a tree to closures: which fields and functions there are, and what fits to what.

What can be seen to be wrong before there is a message is a FilterError: unknown names, a text
compared with a number.  What a message makes of a filter never is one.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brokerd.core.filters import conversions, operators
from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.fields import FIELDS, Field, Part
from brokerd.core.filters.kinds import ORDERED, PLAIN, Evaluate, Kind, kind_of, narrowed
from brokerd.core.filters.regular_expressions import PROGRAM_SIZE_MAX, RegularExpression
from brokerd.core.filters.syntax import (
    Call,
    Chain,
    Comparison,
    ListLiteral,
    Literal,
    Node,
    Not,
    Path,
    Sum,
)
from brokerd.core.filters.tokens import Scalar

_FUNCTIONS = ("has", "size", "duration", "timestamp", "int", "double", "string")
_METHODS = ("startsWith", "endsWith", "contains", "matches")
#: Of a text whose argument is a text.
_TEXT_METHODS = {
    "startsWith": operators.starts_with,
    "endsWith": operators.ends_with,
    "contains": operators.contains,
}
#: Characters of a name that are looked at for one that is like it.
_NAME_MAX = 64
_SCALARS = (Kind.NUMBER, Kind.TEXT)


@dataclass(slots=True)
class Value:
    """A compiled part."""

    kind: Kind
    evaluate: Evaluate
    position: int
    is_constant: bool = False
    #: The value of a constant.
    constant: Scalar | None = None


class Compiler:
    """One filter on its way to closures; `part` and `program_size` grow with what it uses."""

    __slots__ = ("_fields", "_text", "part", "program_size")

    def __init__(self, text: str, fields: Mapping[str, Field] = FIELDS) -> None:
        self._text = text
        self._fields = fields
        self.part = Part.QUEUE
        #: Instructions of its regular expressions.
        self.program_size = 0

    def condition(self, node: Node) -> Evaluate:
        """Compile what has to be true or false."""
        value = self._value(node)
        if value.kind is Kind.ANY:
            return narrowed(value.evaluate, Kind.BOOL)
        if value.kind is not Kind.BOOL:
            raise self._error(
                f"{value.kind.value} is no condition: compare it, or ask has(…)", value.position
            )
        return value.evaluate

    def _error(self, message: str, position: int) -> FilterError:
        return FilterError(message, position, self._text)

    def _value(self, node: Node) -> Value:
        if isinstance(node, Comparison):
            return self._comparison(node)
        if isinstance(node, Path):
            return self._path(node)
        if isinstance(node, Literal):
            return _constant(node.value, node.position)
        if isinstance(node, Chain):
            conditions = [self.condition(operand) for operand in node.operands]
            join = operators.all_of if node.operator == "&&" else operators.any_of
            return Value(Kind.BOOL, join(conditions), node.position)
        if isinstance(node, Not):
            condition = self.condition(node.operand)
            return Value(Kind.BOOL, operators.opposite(condition), node.position)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Sum):
            return self._sum(node)
        assert isinstance(node, ListLiteral)
        raise self._error("a list stands behind in alone: write x in […]", node.position)

    def _path(self, node: Path) -> Value:
        if node.root == "headers" and node.keys and "headers" in self._fields:
            return self._header(node)
        name = node.root
        if node.keys and f"{node.root}.{node.keys[0]}" in self._fields:
            name = f"{node.root}.{node.keys[0]}"
        found = self._fields.get(name)
        if found is None:
            fields = [name for name in self._fields if "." not in name]
            raise self._unknown("field", name, fields, node)
        if len(node.keys) > name.count("."):
            key = str(node.keys[name.count(".")])
            parts = [part for part in self._fields if part.startswith(f"{name}.")]
            if parts:
                raise self._unknown("field", f"{name}.{key}", parts, node)
            raise self._error(f"{name} has no parts: write {name} alone", node.position)
        self.part = max(self.part, found.part)
        return Value(found.kind, found.read, node.position)

    def _header(self, node: Path) -> Value:
        first = node.keys[0]
        if not isinstance(first, str):
            raise self._error('headers have names: write headers["name"]', node.position)
        field = self._fields["headers"]
        self.part = max(self.part, field.part)
        return Value(Kind.ANY, operators.at(first, node.keys[1:], field.read), node.position)

    def _unknown(self, what: str, name: str, names: list[str], node: Path | Call) -> FilterError:
        like = difflib.get_close_matches(name[:_NAME_MAX], names, 1)
        there = f"write {like[0]}?" if like else f"there are {', '.join(names)}"
        has_headers = what == "field" and "." not in name and "headers" in self._fields
        header = ', or headers["…"]' if has_headers else ""
        return self._error(f"{name[:_NAME_MAX]} is no {what} here: {there}{header}", node.position)

    def _comparison(self, node: Comparison) -> Value:
        left = self._value(node.left)
        if node.operator == "in":
            return Value(Kind.BOOL, self._membership(node, left), node.position)
        right = self._value(node.right)
        function = operators.COMPARISONS[node.operator]
        is_order = node.operator not in ("==", "!=")
        allowed = ORDERED if is_order else (*ORDERED, Kind.BOOL)
        for value in (left, right):
            if value.kind not in allowed:
                raise self._error(
                    f"{value.kind.value} cannot be compared by {node.operator}: use another"
                    " operator, or has(…)",
                    value.position,
                )
        if left.kind is Kind.ANY and right.kind is Kind.ANY:
            function = operators.alike(function, [kind for kind in PLAIN if kind in allowed])
        else:
            self._fit(left, right, node)
        if right.is_constant:
            evaluate = operators.joined_with(function, left.evaluate, right.constant)
        else:
            evaluate = operators.joined(function, left.evaluate, right.evaluate)
        return Value(Kind.BOOL, evaluate, node.position)

    def _fit(self, left: Value, right: Value, node: Comparison) -> None:
        """See that two values are of one kind; a header's is, where the message has it so."""
        for value, other in ((left, right), (right, left)):
            if value.kind is Kind.ANY and other.kind in PLAIN:
                value.evaluate = narrowed(value.evaluate, other.kind)
                value.kind = other.kind
        if left.kind is not right.kind:
            raise self._error(
                f"{left.kind.value} and {right.kind.value} cannot be compared: convert one with"
                " int(), double(), string(), duration() or timestamp()",
                node.position,
            )

    def _membership(self, node: Comparison, left: Value) -> Evaluate:
        if isinstance(node.right, ListLiteral):
            values: dict[Kind, frozenset[object]] = {}
            for item in node.right.items:
                kind = _plain_kind(item.value)
                values[kind] = values.get(kind, frozenset()) | {item.value}
            if left.kind is not Kind.ANY and left.kind not in values:
                raise self._error(
                    f"{left.kind.value} is never in this list: convert it with int(), double() or"
                    " string()",
                    node.position,
                )
            return operators.among(values, left.evaluate)
        right = self._value(node.right)
        if right.kind not in (Kind.ANY, Kind.TABLE):
            raise self._error(
                f"nothing is in {right.kind.value}: write a list, a header, or contains()",
                node.position,
            )
        if left.kind is not Kind.ANY and left.kind not in PLAIN:
            raise self._error(f"{left.kind.value} is in no list: compare it", node.position)
        return operators.joined(operators.contained, left.evaluate, right.evaluate)

    def _sum(self, node: Sum) -> Value:
        signs = [sign for sign, _ in node.terms]
        values = [self._value(term) for _, term in node.terms]
        kinds = {value.kind for value in values}
        times = [sign for sign, value in zip(signs, values, strict=True) if value.kind is Kind.TIME]
        finish: Callable[[object], object] = _whole
        if kinds <= {Kind.NUMBER, Kind.ANY}:
            for value in values:
                if value.kind is Kind.ANY:
                    value.evaluate = narrowed(value.evaluate, Kind.NUMBER)
            kind, finish = Kind.NUMBER, _number
        elif kinds <= {Kind.TIME, Kind.DURATION} and sum(times) in (0, 1) and len(times) <= 2:
            kind = Kind.TIME if sum(times) else Kind.DURATION
        else:
            raise self._error(
                "these cannot be added: numbers, durations, a time and durations can, and a time"
                " less another",
                node.position,
            )
        terms = [(sign, value.evaluate) for sign, value in zip(signs, values, strict=True)]
        return Value(kind, operators.total(terms, finish), node.position)

    def _call(self, node: Call) -> Value:
        if node.receiver is not None:
            if node.name not in _METHODS:
                if node.name in _FUNCTIONS:
                    raise self._error(
                        f"{node.name} stands before its value: write {node.name}(…)", node.position
                    )
                raise self._unknown("function", node.name, [*_METHODS, *_FUNCTIONS], node)
            return self._method(node, node.receiver)
        if node.name in _METHODS:
            raise self._error(
                f"{node.name} stands behind its text: write type.{node.name}(…)", node.position
            )
        if node.name not in _FUNCTIONS:
            raise self._unknown("function", node.name, [*_METHODS, *_FUNCTIONS], node)
        argument = self._only_argument(node)
        if node.name == "has":
            if not isinstance(argument, Path):
                raise self._error("has() takes a field: write has(type)", node.position)
            return Value(
                Kind.BOOL, operators.presence(self._path(argument).evaluate), node.position
            )
        value = self._value(argument)
        if node.name == "size":
            self._check(node, value, (Kind.TEXT, Kind.LIST, Kind.TABLE, Kind.ANY))
            return Value(
                Kind.NUMBER, operators.applied(operators.size_of, value.evaluate), node.position
            )
        return self._conversion(node, value)

    def _only_argument(self, node: Call) -> Node:
        if len(node.arguments) != 1:
            raise self._error(
                f"{node.name}() takes one value, not {len(node.arguments)}: write one",
                node.position,
            )
        return node.arguments[0]

    def _check(self, node: Call, value: Value, kinds: tuple[Kind, ...]) -> None:
        if value.kind not in kinds:
            wanted = ", ".join(kind.value for kind in kinds)
            raise self._error(
                f"{node.name}() of {value.kind.value}: give it {wanted}", value.position
            )

    def _conversion(self, node: Call, value: Value) -> Value:
        kind, function, kinds = _CONVERSIONS[node.name]
        self._check(node, value, (*kinds, Kind.ANY))
        if value.is_constant:
            converted = function(value.constant)
            if converted is None:
                raise self._error(
                    f"no {node.name} can be made of this: write {_EXAMPLES[node.name]}",
                    value.position,
                )
            assert isinstance(converted, str | int | float)
            return Value(kind, operators.constant(converted), node.position, True, converted)
        return Value(kind, operators.applied(function, value.evaluate), node.position)

    def _method(self, node: Call, receiver: Node) -> Value:
        value = self._value(receiver)
        argument = self._value(self._only_argument(node))
        for part in (value, argument):
            self._check(node, part, (Kind.TEXT, Kind.ANY))
        subject = narrowed(value.evaluate, Kind.TEXT) if value.kind is Kind.ANY else value.evaluate
        if node.name == "matches":
            evaluate = operators.applied(self._search(argument), subject)
        elif argument.is_constant:
            evaluate = operators.joined_with(_TEXT_METHODS[node.name], subject, argument.constant)
        else:
            evaluate = operators.joined(
                _TEXT_METHODS[node.name], subject, narrowed(argument.evaluate, Kind.TEXT)
            )
        return Value(Kind.BOOL, evaluate, node.position)

    def _search(self, argument: Value) -> Callable[[object], object]:
        pattern = argument.constant
        if not isinstance(pattern, str):
            raise self._error("matches() takes a literal text: write one", argument.position)
        try:
            expression = RegularExpression(pattern)
        except ValueError as fault:
            raise self._error(
                f"RE2 does not take this regular expression ({fault}): see its syntax, which has"
                " neither look-around nor back references",
                argument.position,
            ) from None
        self.program_size += expression.program_size
        if self.program_size > PROGRAM_SIZE_MAX:
            raise self._error(
                f"regular expressions of {self.program_size} instructions, at most"
                f" {PROGRAM_SIZE_MAX} are run: repeat less",
                argument.position,
            )

        def search(value: object) -> object:
            assert isinstance(value, str)
            return expression.search(value)

        return search


def _constant(value: bool | int | float | str, position: int) -> Value:
    return Value(_plain_kind(value), operators.constant(value), position, True, value)


def _plain_kind(value: bool | int | float | str) -> Kind:
    kind = kind_of(value)
    assert kind is not None
    return kind


def _number(value: object) -> object:
    """A sum of numbers, where it is one that fits into 64 bits."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _whole(value)


def _whole(value: object) -> object:
    assert isinstance(value, int)
    return conversions.in_range(value)


def _duration(value: object) -> object:
    return conversions.duration_ms(value) if isinstance(value, str) else None


def _scalar(value: object) -> str | int | float | None:
    return None if isinstance(value, bool) or not isinstance(value, str | int | float) else value


def _time(value: object) -> object:
    scalar = _scalar(value)
    return None if scalar is None else conversions.time_ms(scalar)


def _int(value: object) -> object:
    scalar = _scalar(value)
    return None if scalar is None else conversions.int_of(scalar)


def _double(value: object) -> object:
    scalar = _scalar(value)
    return None if scalar is None else conversions.double_of(scalar)


def _string(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    scalar = _scalar(value)
    return None if scalar is None else str(scalar)


#: What each gives, how, and of what.
_CONVERSIONS: dict[str, tuple[Kind, Callable[[object], object], tuple[Kind, ...]]] = {
    "duration": (Kind.DURATION, _duration, (Kind.TEXT,)),
    "timestamp": (Kind.TIME, _time, _SCALARS),
    "int": (Kind.NUMBER, _int, _SCALARS),
    "double": (Kind.NUMBER, _double, _SCALARS),
    "string": (Kind.TEXT, _string, PLAIN),
}
_EXAMPLES = {
    "duration": 'duration("1h30m")',
    "timestamp": 'timestamp("2026-11-30T16:50:00Z")',
    "int": 'int("5")',
    "double": 'double("1.5")',
    "string": "string(5)",
}
