"""Erlang terms: how rabbitmqctl prints nested values, and how scripts write what they eval.

Pure text work, no member is asked.  Used by output.py and eval_forms.py.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from dataclasses import dataclass
from typing import Any

#: SEC-42's spirit for what a person types: deeper than any form that is understood.
DEPTH_MAX = 16
TEXT_MAX = 64 * 1024


class BadTerm(ValueError):
    """Not a term; the text says where."""


@dataclass(slots=True, frozen=True)
class Atom:
    """An atom, or a call without arguments such as node()."""

    name: str


class Address(str):
    """An IP address: text in tables, its numbers in JSON."""

    __slots__ = ()

    def numbers(self) -> list[int] | str:
        """Return Erlang's form: 4 numbers, or 8 of IPv6; the text where it is no address."""
        try:
            parsed = ipaddress.ip_address(str(self))
        except ValueError:
            return str(self)
        packed = parsed.packed
        if parsed.version == 4:
            return list(packed)
        return [packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2)]


@dataclass(slots=True, frozen=True)
class Table:
    """An AMQP field table: entries of {"key", "type", "value"}, in their order."""

    entries: list[dict[str, Any]]


def table(arguments: dict[str, Any]) -> Table:
    """Return a plain JSON object as a field table with the types AMQP clients would have sent."""
    return Table([{"key": key} | _typed(value) for key, value in arguments.items()])


def _typed(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        entries = [{"key": key} | _typed(item) for key, item in value.items()]
        return {"type": "table", "value": entries}
    if isinstance(value, list):
        return {"type": "array", "value": [_typed(item) for item in value]}
    if value is None:
        return {"type": "void", "value": None}
    if isinstance(value, bool):
        return {"type": "bool", "value": value}
    if isinstance(value, int):
        kind = "signedint" if -(2**31) <= value < 2**31 else "long"
        return {"type": kind, "value": value}
    return {"type": "double" if isinstance(value, float) else "longstr", "value": value}


# ---- writing ------------------------------------------------------------------------------------


def field_table(entries: list[dict[str, Any]]) -> str:
    """Return [{"key",value},…] as rabbitmqctl's listings print arguments."""
    return "[" + ",".join(f"{{{quoted(e['key'])},{_field(e)}}}" for e in entries) + "]"


def _field(entry: dict[str, Any]) -> str:
    kind, value = entry["type"], entry["value"]
    if kind == "table":
        return field_table(value)
    if kind == "array":
        return "[" + ",".join(_field(item) for item in value) + "]"
    if kind == "binary":
        return "<<" + ",".join(map(str, base64.b64decode(value))) + ">>"
    if kind == "decimal":
        return "{" + ",".join(map(str, value)) + "}"
    if kind == "void":
        return "undefined"
    if kind == "bool":
        return "true" if value else "false"
    return quoted(value) if kind == "longstr" else str(value)


def json_table(entries: list[dict[str, Any]]) -> list[Any]:
    """Return [[key, type, value], …] as rabbitmqctl's JSON formatter prints arguments."""
    return [[e["key"], e["type"], _json_field(e)] for e in entries]


def _json_field(entry: dict[str, Any]) -> Any:
    if entry["type"] == "table":
        return json_table(entry["value"])
    if entry["type"] == "array":
        return [[item["type"], _json_field(item)] for item in entry["value"]]
    return entry["value"]


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    """Return a text in double quotes on one line."""
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char.isprintable():
            out.append(char)
        else:
            out.append(f"\\x{{{ord(char):X}}}")
    return '"' + "".join(out) + '"'


def term(value: Any) -> str:
    """Return any JSON value, Atom or Table as a term."""
    if isinstance(value, Table):
        return field_table(value.entries)
    if isinstance(value, Atom):
        return value.name
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(map(term, value)) + "]"
    if isinstance(value, tuple):
        return "{" + ",".join(map(term, value)) + "}"
    if isinstance(value, dict):
        return "#{" + ",".join(f"{term(k)} => {term(v)}" for k, v in value.items()) + "}"
    return f"<<{quoted(value)}>>" if isinstance(value, str) else str(value)


# ---- reading ------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:(?P<binary><<\s*"(?P<b>(?:[^"\\]|\\.)*)"\s*>>|<<\s*>>)
    |(?P<string>"(?P<s>(?:[^"\\]|\\.)*)")
    |(?P<float>-?\d+\.\d+)
    |(?P<integer>-?\d+)
    |(?P<quoted>'(?P<q>(?:[^'\\]|\\.)*)')
    |(?P<atom>[a-z][A-Za-z0-9_@]*)
    |(?P<punctuation>[{}\[\]():,.|]))""",
    re.VERBOSE,
)

Token = tuple[str, Any]


@dataclass(slots=True, frozen=True)
class Call:
    """module:function(arguments), or function(arguments) with module ''."""

    module: str
    function: str
    arguments: list[Any]


def parse(text: str) -> Any:
    """Read one expression that ends with a full stop: a call or a term.

    Binaries and strings become str, lists list, tuples tuple, atoms Atom (true and false bool).
    Raises BadTerm.
    """
    if len(text) > TEXT_MAX:
        raise BadTerm(f"longer than {TEXT_MAX} characters")
    reader = _Reader(_tokens(text))
    value = reader.value(0)
    reader.expect(".")
    if reader.rest():
        raise BadTerm("more than one expression")
    return value


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadTerm(f"syntax error before: {text[at:].strip()[:20]}")
        at = match.end()
        kind = match.lastgroup or ""
        group = {"b": "binary", "s": "string", "q": "quoted"}.get(kind, kind)
        found.append((group, _token_value(group, match)))
    return found


def _token_value(kind: str, match: re.Match[str]) -> Any:
    if kind == "binary":
        return _unescaped(match["b"] or "")
    if kind == "string":
        return _unescaped(match["s"])
    if kind == "quoted":
        return _unescaped(match["q"])
    text = match[kind]
    if kind == "integer":
        if len(text) > 40:
            raise BadTerm("a number is too long")
        return int(text)
    return float(text) if kind == "float" else text


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


class _Reader:
    """Recursive descent over tokens; depth is bounded."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def rest(self) -> list[Token]:
        """Return what has not been read."""
        return self._tokens[self._at :]

    def _peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def expect(self, mark: str) -> None:
        """Read a punctuation mark."""
        kind, value = self._next()
        if kind != "punctuation" or value != mark:
            raise BadTerm(f"syntax error before: {value}")

    def _is(self, mark: str) -> bool:
        return self._peek() == ("punctuation", mark)

    def value(self, depth: int) -> Any:
        """Read a value."""
        if depth > DEPTH_MAX:
            raise BadTerm(f"nested deeper than {DEPTH_MAX}")
        kind, value = self._next()
        if kind in ("binary", "string", "integer", "float"):
            return value
        if kind in ("atom", "quoted"):
            return self._name(value, depth)
        if (kind, value) == ("punctuation", "{"):
            return tuple(self._items("}", depth))
        if (kind, value) == ("punctuation", "["):
            return self._items("]", depth)
        raise BadTerm(f"syntax error before: {value}")

    def _name(self, name: str, depth: int) -> Any:
        if self._is(":"):
            self._next()
            kind, function = self._next()
            if kind not in ("atom", "quoted"):
                raise BadTerm(f"syntax error before: {function}")
            self.expect("(")
            return Call(name, function, self._items(")", depth))
        if self._is("("):
            self._next()
            return Call("", name, self._items(")", depth))
        return {"true": True, "false": False}.get(name, Atom(name))

    def _items(self, close: str, depth: int) -> list[Any]:
        items: list[Any] = []
        if self._is(close):
            self._next()
            return items
        while True:
            items.append(self.value(depth + 1))
            if self._is(","):
                self._next()
                continue
            self.expect(close)
            return items
