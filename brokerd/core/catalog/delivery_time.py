"""The header `x-opt-delivery-time` (a preview): each queue keeps its copy of a message until then.

Pure.  The queue machine keeps it among what waits (core/queue/delayed.py); at its time it goes
behind the messages of its priority as if it were new, and its TTL begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: An integer, milliseconds since 1970 (UTC), in a message's headers.
HEADER = "x-opt-delivery-time"


def deliver_at_ms(headers: Mapping[str, Any]) -> int | None:
    """Return the time that a message's headers say, at least 0; None where it is no integer."""
    value = headers.get(HEADER)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return max(0, value)
