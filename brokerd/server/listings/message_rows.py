"""Messages as JSON has them, in the words of RabbitMQ's HTTP API: properties and payload.

For gets by the management API, and for looks at a queue's messages.
"""

from __future__ import annotations

import base64
import contextlib
import math
from typing import Any

from brokerd.amqp import values
from brokerd.amqp.properties import BasicProperties

Json = dict[str, Any]

TEXTS = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_NUMBERS = ("delivery_mode", "priority", "timestamp")
#: Bytes of a character in UTF-8 that a cut may have left without their last.
_CUT_MAX = 3


def payload(shown: bytes, *, is_base64: bool, is_cut: bool = False) -> tuple[str, str]:
    """Return a body and its encoding: as it is where it is UTF-8, else in base64.

    is_cut: it has been cut somewhere, perhaps within its last character, which is left out then.
    """
    if not is_base64:
        for less in range(_CUT_MAX + 1 if is_cut else 1):
            with contextlib.suppress(UnicodeDecodeError):
                return shown[: len(shown) - less].decode(), "string"
    return base64.b64encode(shown).decode(), "base64"


def properties(header: bytes) -> Any:
    """Return properties; [] for none, as RabbitMQ's JSON has an empty list of pairs."""
    decoded = BasicProperties.decode(header)
    found: Json = {}
    for name in (*TEXTS, *_NUMBERS):
        value = getattr(decoded, name)
        if value is not None:
            found[name] = _value(value)
    if decoded.headers is not None:
        found["headers"] = _value(decoded.headers)
    return found or []


def text(name: str) -> str:
    """Return a text of AMQP, which need not be UTF-8, as JSON can hold it."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _value(value: Any) -> Any:
    """Return a field's value as JSON has it; bytes that are no text in base64."""
    if isinstance(value, dict):
        return {_value(key): _value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, values.Decimal):
        return value.value / 10**value.scale
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return str(value)
    return value
