"""The grammar of filters: text to a tree (ADR 80; docs/reference/filters.md has the grammar).

Recursive descent with a bound on the depth.  What fields and functions there are, and what fits to
what, is the compiler's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.tokens import END, LITERAL, NAME, OPERATOR, Scalar, Token

#: Parentheses, calls and signs within each other.  Trees that are compiled are as deep at most, so
#: that neither compiling nor evaluating one meets the interpreter's limit.
DEPTH_MAX = 32
LIST_ITEMS_MAX = 256
#: Keys behind a header's name: tables and lists within each other.
KEYS_MAX = 16

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "in")
#: Words of other languages, and what they are here.
_WORDS = {"and": "&&", "or": "||", "not": "!", "null": "has(…), or !has(…)"}
_RESERVED = {"in", "true", "false"}


@dataclass(slots=True)
class Literal:
    """A text, a number, true or false."""

    value: Scalar
    position: int


@dataclass(slots=True)
class ListLiteral:
    """Literals in brackets."""

    items: list[Literal]
    position: int


@dataclass(slots=True)
class Path:
    """A field, and the keys behind it."""

    root: str
    position: int
    keys: list[str | int] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """A function of its arguments; of what stands before the dot, where it stands behind one."""

    name: str
    receiver: Node | None
    arguments: list[Node]
    position: int


@dataclass(slots=True)
class Not:
    """The opposite of a condition."""

    operand: Node
    position: int


@dataclass(slots=True)
class Chain:
    """Conditions joined by one operator, `&&` or `||`."""

    operator: str
    operands: list[Node]
    position: int


@dataclass(slots=True)
class Comparison:
    """Two values and what is asked about them."""

    operator: str
    left: Node
    right: Node
    position: int


@dataclass(slots=True)
class Sum:
    """Values with their signs, 1 or -1."""

    terms: list[tuple[int, Node]]
    position: int


Node: TypeAlias = "Literal | ListLiteral | Path | Call | Not | Chain | Comparison | Sum"


def parse(tokens: list[Token], text: str) -> Node:
    """Return the tree of a whole filter."""
    parser = _Parser(tokens, text)
    if parser.token.kind == END:
        raise FilterError('it is empty: write a condition, for example type == "x"', 0, text)
    node = parser.condition()
    if parser.token.kind != END:
        raise parser.unexpected("&& or || before it")
    return node


class _Parser:
    """A place in the tokens.  `_depth` counts what is open around it."""

    __slots__ = ("_at", "_depth", "_text", "_tokens", "token")

    def __init__(self, tokens: list[Token], text: str) -> None:
        self._tokens = tokens
        self._text = text
        self._at = 0
        self._depth = 0
        self.token = tokens[0]

    def condition(self) -> Node:
        """Conditions joined by ||, each of those joined by &&."""
        self._enter()
        node = self._chain("||")
        self._depth -= 1
        return node

    def unexpected(self, wanted: str) -> FilterError:
        """Return the error for the present token."""
        found = self.token
        if found.kind == NAME and found.text in _WORDS:
            message = f"{found.text} is no word here: write {_WORDS[found.text]}"
        elif found.kind == END:
            message = f"it ends too early: write {wanted}"
        else:
            message = f"{found.text} is not expected here: write {wanted}"
        return self._error(message, found.position)

    def _error(self, message: str, position: int) -> FilterError:
        return FilterError(message, position, self._text)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(
                f"nested deeper than {DEPTH_MAX}: use fewer parentheses", self.token.position
            )

    def _next(self) -> Token:
        passed = self.token
        self._at += 1
        self.token = self._tokens[self._at]
        return passed

    def _is(self, text: str) -> bool:
        return self.token.kind == OPERATOR and self.token.text == text

    def _expect(self, text: str) -> None:
        if not self._is(text):
            raise self.unexpected(text)
        self._next()

    def _chain(self, operator: str) -> Node:
        position = self.token.position
        operands = [self._chain("&&") if operator == "||" else self._comparison()]
        while self._is(operator):
            self._next()
            operands.append(self._chain("&&") if operator == "||" else self._comparison())
        return operands[0] if len(operands) == 1 else Chain(operator, operands, position)

    def _comparison(self) -> Node:
        left = self._sum()
        if self.token.text not in _COMPARISONS or self.token.kind == LITERAL:
            return left
        operator = self._next()
        node = Comparison(operator.text, left, self._sum(), operator.position)
        if self.token.text in _COMPARISONS and self.token.kind != LITERAL:
            raise self.unexpected("&& between two comparisons")
        return node

    def _sum(self) -> Node:
        position = self.token.position
        terms = [(1, self._unary())]
        while self._is("+") or self._is("-"):
            sign = 1 if self._next().text == "+" else -1
            terms.append((sign, self._unary()))
        return terms[0][1] if len(terms) == 1 else Sum(terms, position)

    def _unary(self) -> Node:
        position = self.token.position
        if self._is("!"):
            self._enter()
            self._next()
            negated: Node = Not(self._unary(), position)
            self._depth -= 1
            return negated
        if self._is("-"):
            return self._negative(position)
        return self._postfix(self._primary())

    def _negative(self, position: int) -> Node:
        self._next()
        self._enter()
        operand = self._unary()
        self._depth -= 1
        if not isinstance(operand, Literal):
            return Sum([(-1, operand)], position)
        if isinstance(operand.value, bool | str):
            raise self._error("a minus stands before numbers alone: delete it", position)
        return Literal(-operand.value, position)

    def _primary(self) -> Node:
        token = self.token
        if token.kind == LITERAL:
            self._next()
            return Literal(token.value, token.position)
        if self._is("("):
            self._next()
            node = self.condition()
            self._expect(")")
            return node
        if self._is("["):
            return self._list()
        if token.kind != NAME or token.text in _WORDS or token.text == "in":
            raise self.unexpected("a field, a function or a value")
        self._next()
        if token.text in _RESERVED:
            return Literal(token.text == "true", token.position)
        if self._is("("):
            return Call(token.text, None, self._arguments(), token.position)
        return Path(token.text, token.position)

    def _list(self) -> Node:
        position = self._next().position
        items: list[Literal] = []
        while not self._is("]"):
            if items:
                self._expect(",")
            start = self.token
            item = self._unary()
            if not isinstance(item, Literal):
                raise self._error("a list has texts, numbers, true and false alone", start.position)
            if len(items) == LIST_ITEMS_MAX:
                raise self._error(f"a list of more than {LIST_ITEMS_MAX}: shorten it", position)
            items.append(item)
        self._next()
        if not items:
            raise self._error("nothing is in an empty list: write what is", position)
        return ListLiteral(items, position)

    def _arguments(self) -> list[Node]:
        self._next()
        arguments: list[Node] = []
        while not self._is(")"):
            if arguments:
                self._expect(",")
            arguments.append(self.condition())
        self._next()
        return arguments

    def _postfix(self, node: Node) -> Node:
        while self._is(".") or self._is("["):
            if self._next().text == ".":
                node = self._selected(node)
            else:
                node = self._with_key(node, self._key())
                self._expect("]")
        return node

    def _selected(self, node: Node) -> Node:
        if self.token.kind != NAME:
            raise self.unexpected("a name behind the dot")
        name = self._next()
        if not self._is("("):
            return self._with_key(node, name)
        if isinstance(node, Call) and node.receiver is not None:
            raise self._error(f"{node.name}() gives true or false: write &&", name.position)
        return Call(name.text, node, self._arguments(), name.position)

    def _key(self) -> Token:
        if self.token.kind != LITERAL or type(self.token.value) not in (str, int):
            raise self.unexpected("a text or a number from 0 in the brackets")
        return self._next()

    def _with_key(self, node: Node, token: Token) -> Node:
        if not isinstance(node, Path):
            raise self._error("only a field has parts: delete this", token.position)
        if len(node.keys) == KEYS_MAX:
            raise self._error(f"more than {KEYS_MAX} keys: delete some", token.position)
        key = token.text if token.kind == NAME else token.value
        assert isinstance(key, str | int)
        node.keys.append(key)
        return node
