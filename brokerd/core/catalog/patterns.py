"""Users' regular expressions: compiled once, matched with a time limit (R-POL-2, SEC-19).

Pure.  For policies and permissions; the only module of the room that knows the `regex` library.
"""

from __future__ import annotations

from typing import TypeAlias

import regex

#: For one match of one name.  Names are at most 255 bytes: what needs longer is an attack.
MATCH_TIMEOUT_S = 0.05
CACHE_SIZE_MAX = 4096

_Compiled: TypeAlias = "regex.Pattern[str]"


#: Invisible to callers but for speed: a pattern's text decides what it compiles to.
_compiled: dict[str, _Compiled | None] = {}


def matches(pattern: str, name: str) -> bool:
    """Say whether the pattern is found anywhere in the name.

    No, where it does not compile or takes too long: an attack must not gain what it attacks.
    """
    return found(pattern, name, MATCH_TIMEOUT_S) is True


def found(pattern: str, name: str, timeout_s: float) -> bool | None:
    """Say whether the pattern is found in the name; None: it takes longer than that."""
    compiled = _compiled[pattern] if pattern in _compiled else _remember(pattern, _compile(pattern))
    if compiled is None:
        return False
    try:
        return compiled.search(name, timeout=timeout_s) is not None
    except TimeoutError:
        return None


def _remember(pattern: str, compiled: _Compiled | None) -> _Compiled | None:
    if len(_compiled) >= CACHE_SIZE_MAX:
        _compiled.clear()
    _compiled[pattern] = compiled
    return compiled


def _compile(pattern: str) -> _Compiled | None:
    try:
        return regex.compile(pattern, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError):
        return None


def error(pattern: str) -> str | None:
    """Return why a pattern is refused, None if it compiles."""
    try:
        _remember(pattern, regex.compile(pattern, cache_pattern=False))
    except (regex.error, RecursionError, OverflowError) as fault:
        return f"invalid regular expression: {fault}"
    return None


def escape(text: str) -> str:
    """Return a pattern that matches the text itself."""
    escaped: str = regex.escape(text)
    return escaped
