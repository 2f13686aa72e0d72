"""A filter's text in tokens, and the text without its literals (for the audit log).

Only `syntax.py` and `message_filter.py` use it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.kinds import INT_MAX

#: Characters of a filter.
TEXT_MAX = 4096

Scalar: TypeAlias = "bool | int | float | str"

NAME, LITERAL, OPERATOR, END = "name", "literal", "operator", "end"


@dataclass(slots=True)
class Token:
    """A word, a literal with its value, or an operator."""

    kind: str
    text: str
    position: int
    value: Scalar


#: No part can match in more than one way, so that the time is linear in the text.
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
    |(?P<raw>[rR](?:"[^"\x00-\x1f\x7f]*"|'[^'\x00-\x1f\x7f]*'))
    |(?P<quoted>"(?:[^"\\\x00-\x1f\x7f]|\\.)*"|'(?:[^'\\\x00-\x1f\x7f]|\\.)*')
    |(?P<number>(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?P<unit>[A-Za-z_]\w*)?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<operator>&&|\|\||==|!=|<=|>=|[!<>()\[\],.+\-])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "'": "'"}
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x10FFFF
#: What begins with something of other languages, and what it is here.
_INSTEAD = {"&": "&&", "|": "||", "=": "==", "~": "matches()", "`": "double quotes"}
_SPACED = {*("&&", "||", "==", "!=", "<", "<=", ">", ">=", "in", "+", "-")}
#: A header's name stays in the audit log; what does not look like one may be anything.
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def tokens_of(text: str) -> list[Token]:
    """Return the tokens, the last of which is the end; FilterError for what is none."""
    if len(text) > TEXT_MAX:
        raise FilterError(
            f"it has {len(text)} characters, at most {TEXT_MAX} are read: shorten it",
            TEXT_MAX,
            text,
        )
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise FilterError(_complaint(text[position]), position, text)
        token = _token(match, text)
        if token is not None:
            found.append(token)
        position = match.end()
    found.append(Token(END, "", len(text), False))
    return found


def _token(match: re.Match[str], text: str) -> Token | None:
    position, group, part = match.start(), match.lastgroup, match.group()
    if group == "space":
        return None
    if group == "raw":
        return Token(LITERAL, part, position, _checked(part[2:-1], position, text))
    if group == "quoted":
        return Token(LITERAL, part, position, _unescaped(part[1:-1], position + 1, text))
    if group == "name":
        return Token(NAME, part, position, False)
    if group == "operator":
        return Token(OPERATOR, part, position, False)
    if match.group("unit"):
        raise FilterError(f'a number ends in letters: write duration("{part}")?', position, text)
    return Token(LITERAL, part, position, _number(part, position, text))


def _complaint(character: str) -> str:
    if character in "\"'":
        return f"a text that begins here has no end: close it with {character} on the same line"
    if character in _INSTEAD:
        return f"{character} is no operator here: write {_INSTEAD[character]}"
    return f"{character!a} begins nothing: delete it, or put texts into double quotes"


def _number(part: str, position: int, text: str) -> int | float:
    if part.startswith("0x"):
        # As many digits as the text has, of which none takes long in this base.
        value: int | float = int(part, 16)
    elif part.isdigit():
        value = INT_MAX + 1 if len(part.lstrip("0")) > len(str(INT_MAX)) else int(part)
    else:
        value = float(part)
    if value > INT_MAX and (isinstance(value, int) or value == float("inf")):
        raise FilterError(f"a number above {INT_MAX}: write a smaller one", position, text)
    return value


def _unescaped(part: str, start: int, text: str) -> str:
    pieces: list[str] = []
    done = 0
    for match in _ESCAPE.finditer(part):
        pieces.append(part[done : match.start()])
        done = match.end()
        code = match.group(1) or match.group(2) or match.group(3)
        if code is not None:
            number = int(code, 16)
            if number > _CODE_POINT_MAX or number in _SURROGATES:
                raise FilterError("this escape is no character", start + match.start(), text)
            pieces.append(chr(number))
        elif match.group(4) in _ESCAPED:
            pieces.append(_ESCAPED[match.group(4)])
        else:
            raise FilterError(
                r"an unknown escape: write \\ for a backslash, or a raw text r\"…\"",
                start + match.start(),
                text,
            )
    pieces.append(part[done:])
    return _checked("".join(pieces), start, text)


def _checked(value: str, position: int, text: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FilterError("this text is not Unicode: send UTF-8", position, text) from None
    return value


def without_literals(tokens: Sequence[Token]) -> str:
    """Return the text with a question mark for each literal; names of headers stay."""
    out: list[str] = []
    for at, token in enumerate(tokens):
        if token.kind == LITERAL:
            out.append(token.text if _is_header_name(tokens, at) else "?")
        elif token.text in _SPACED:
            out.append(f" {token.text} ")
        else:
            out.append(", " if token.text == "," else token.text)
    return "".join(out)


def _is_header_name(tokens: Sequence[Token], at: int) -> bool:
    """Say whether the literal at a place is in brackets behind a path, and looks like a name."""
    value = tokens[at].value
    return (
        at >= 2
        and isinstance(value, str)
        and tokens[at - 1].text == "["
        and (tokens[at - 2].text == "]" or tokens[at - 2].kind == NAME)
        and tokens[at - 2].text != "in"
        and _HEADER_NAME.fullmatch(value) is not None
    )
