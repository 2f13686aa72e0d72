"""The exchange type x-delayed-message: it keeps a message for a while, then routes it.

Pure.  How long is said by the message's header `x-delay`, how it routes by the exchange's argument
`x-delayed-type`, as in RabbitMQ's plug-in rabbitmq_delayed_message_exchange.  What waits is in a
queue of the exchange's own (names.delayed_queue); its leader hands on what is due, with the header
negated, so that no exchange keeps it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerd.core.catalog import names, refusals
from brokerd.core.catalog.refusals import Refused

TYPE = "x-delayed-message"
#: The argument that names the type by which it routes.
DELAYED_TYPE = "x-delayed-type"
#: Milliseconds, in a message's headers.
DELAY = "x-delay"
#: A text in a message's headers: it replaces the waiting message that has the same.
DELAY_KEY = "x-delay-key"
#: The delay of a message that takes the waiting one with its key away, and is itself kept nowhere.
CANCELS = -1
KEY_BYTES_MAX = 255
#: Of the plug-in: longer ones count as none in its profiles, and are refused in ours.
DELAY_MS_MAX = (1 << 32) - 1
#: Digits of a text that are looked at.
_DIGITS_MAX = 20


def routing_type(exchange_type: str, arguments: Mapping[str, Any]) -> str:
    """Return the type by which an exchange routes: its own, or that of what it keeps."""
    if exchange_type != TYPE:
        return exchange_type
    named = arguments.get(DELAYED_TYPE)
    return named if type(named) is str else "direct"


def check_exchange(
    name: str, arguments: Mapping[str, Any], known: tuple[str, ...]
) -> Refused | None:
    """Refuse a declaration that does not say how the exchange routes, or leaves its queue no name.

    known: all types of exchanges.  The text is the plug-in's.
    """
    named = arguments.get(DELAYED_TYPE)
    if type(named) is not str or named not in known or named == TYPE:
        return refusals.precondition_failed(
            f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
        )
    if names.is_too_long(names.delayed_queue(name)):
        most = names.NAME_BYTES_MAX - len(names.DELAYED_PREFIX)
        return refusals.precondition_failed(
            f"the name of an exchange of type {TYPE} has at most {most} bytes"
        )
    return None


def said_ms(headers: Mapping[str, Any]) -> int | None:
    """Return the delay that a message's headers say, in ms; None where it is not a number.

    0 where they say none.  Texts of digits and floats count, as in the plug-in.
    """
    value = headers.get(DELAY, 0)
    if isinstance(value, str) and value.isascii():
        text = value[1:] if value[:1] in ("-", "+") else value
        if not text.isdigit():
            return None
        number = int(text[:_DIGITS_MAX])
        return -number if value.startswith("-") else number
    if isinstance(value, float):
        # No number that a clock could mean.
        return int(value) if abs(value) <= 2.0**63 else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value)


def key_of(headers: Mapping[str, Any]) -> str | None:
    """Return the key of a message, None where it has none that could be one."""
    key = headers.get(DELAY_KEY)
    return key if isinstance(key, str) and key and not is_overlong(key) else None


def is_overlong(key: object) -> bool:
    """Say whether this is a text that is too long for a key."""
    return isinstance(key, str) and len(key.encode("utf-8", "surrogateescape")) > KEY_BYTES_MAX


def cancels(headers: Mapping[str, Any]) -> bool:
    """Say whether a message takes the waiting one with its key away."""
    return DELAY_KEY in headers and said_ms(headers) == CANCELS and key_of(headers) is not None


def goes_to_queue(headers: Mapping[str, Any]) -> bool:
    """Say whether a message goes to the exchange's queue: to wait there, or to cancel another."""
    return delay_ms(headers) > 0 or cancels(headers)


def delay_ms(headers: Mapping[str, Any]) -> int:
    """Return how long an exchange of this type keeps a message, in ms; 0: not at all."""
    said = said_ms(headers)
    return said if said is not None and 0 < said <= DELAY_MS_MAX else 0
