"""Durations, times and numbers from text, as CEL writes them.  None for what is none.

Bounded: a text longer than `TEXT_MAX` is none of them.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from brokerd.core.filters.kinds import INT_MAX, INT_MIN

#: Characters of any of them.
TEXT_MAX = 64

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: RFC 3339; seconds may have any number of digits behind the dot.
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))",
    re.ASCII,
)
_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def duration_ms(text: str) -> int | None:
    """Return "1h30m", "5m", "1.5s", "20ms", "2d", with a sign before it or none, in ms."""
    unsigned = text[1:] if text.startswith(("-", "+")) else text
    if not unsigned or len(unsigned) > TEXT_MAX:
        return None
    total, at = 0.0, 0
    while at < len(unsigned):
        part = _PART.match(unsigned, at)
        if part is None:
            return None
        total += float(part.group(1)) * _UNITS_MS[part.group(2)]
        at = part.end()
    if total > INT_MAX:
        return None
    return -round(total) if text.startswith("-") else round(total)


def time_ms(value: str | int | float) -> int | None:
    """Return a time of RFC 3339, or in seconds since 1970, in ms since 1970."""
    if not isinstance(value, str):
        return in_range(value * 1000)
    match = _TIME.fullmatch(value) if len(value) <= TEXT_MAX else None
    if match is None:
        return None
    date, clock, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}+00:00")
    except ValueError:
        return None
    ms = (moment - _EPOCH) // _MS + int(((fraction or "") + "000")[:3])
    if sign is None:
        return ms
    offset_ms = (int(hours) * 60 + int(minutes)) * 60_000
    return ms - offset_ms if sign == "+" else ms + offset_ms


def int_of(value: str | int | float) -> int | None:
    """Return a number without what is behind its point, or a text of digits, as an integer."""
    if not isinstance(value, str):
        return in_range(value)
    if len(value) > TEXT_MAX or _INT.fullmatch(value) is None:
        return None
    return in_range(int(value))


def double_of(value: str | int | float) -> float | None:
    """Return a number, or a text that is one, with a point."""
    if isinstance(value, str) and (len(value) > TEXT_MAX or _DOUBLE.fullmatch(value) is None):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def in_range(number: int | float) -> int | None:
    """Return an integer of 64 bits, None for what is none: too large, infinite, not a number."""
    if isinstance(number, float):
        if not math.isfinite(number):
            return None
        number = math.trunc(number)
    return number if INT_MIN <= number <= INT_MAX else None
