"""Durations and quantities as resources write them. PURE; for the specs and `manifests/`."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import regex
from pydantic import AfterValidator, BeforeValidator

#: Larger numbers lose precision in JSON readers that keep numbers as doubles.
NUMBER_MAX = 2**53 - 1

_DURATION = regex.compile(r"(?:[0-9]{1,19}(?:ms|s|m|h|d))+")
_DURATION_PART = regex.compile(r"([0-9]+)(ms|s|m|h|d)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_QUANTITY = regex.compile(r"([0-9]{1,19})(k|M|G|T|Ki|Mi|Gi|Ti)?")
_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}

#: As Kubernetes itself writes quantities, fractions and exponents included.
_ANY_QUANTITY = regex.compile(
    r"([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE](-?[0-9]{1,2}))?"
)
_FACTORS = {
    "m": Decimal("0.001"),
    **{unit: Decimal(factor) for unit, factor in _BYTES.items()},
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def duration_ms(text: str) -> int:
    """`1h30m` as milliseconds; raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s or 1h30m")
    total = sum(int(n) * _MILLISECONDS[unit] for n, unit in _DURATION_PART.findall(text))
    if total > NUMBER_MAX:
        raise ValueError(f"{text!r} is too long")
    return total


def quantity_bytes(value: str | int) -> int:
    """`2Gi` or a plain number as bytes; raises ValueError."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a quantity such as 512Mi or 2G")
    total = int(match[1]) * _BYTES[match[2] or ""]
    if total > NUMBER_MAX:
        raise ValueError(f"{value!r} is too large")
    return total


def decimal_quantity(text: str) -> Decimal:
    """Any quantity of Kubernetes, exactly; 0 for what is none."""
    match = _ANY_QUANTITY.fullmatch(text)
    if match is None:
        return Decimal(0)
    number, unit, exponent = match.groups()
    return Decimal(number) * _FACTORS[unit or ""] * Decimal(10) ** int(exponent or 0)


def _check_duration(text: str) -> str:
    duration_ms(text)
    return text


#: Fields of these types hold numbers after parsing.
Milliseconds = Annotated[int, BeforeValidator(lambda value: duration_ms(str(value)))]
Bytes = Annotated[int, BeforeValidator(quantity_bytes)]
#: A duration that is passed on as it was written.
DurationText = Annotated[str, AfterValidator(_check_duration)]
