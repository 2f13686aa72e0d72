"""What the broker remembers beside a message's own bytes.

Kept in `Content[3]`, and only where there is something to remember, so that the ordinary message
costs nothing.  Never sent to clients as such.  Two forms stand side by side in logs: a packed one
for what many messages have, their own TTL and priority, and small JSON for all else.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Death:
    """One {queue, reason} pair of a message's history (R-DLX-21, R-DLX-22)."""

    queue: str
    reason: str
    count: int
    #: Seconds, of the first death of this pair.
    time_s: int
    #: Where the message had been published before the first death of this pair.
    exchange: str
    routing_keys: list[str]
    original_expiration: str | None = None


class RedrivenFrom(NamedTuple):
    """Which message of which job a copy is of, so that its queue counts what becomes of it."""

    #: Uid of the queue that the job sends from; the job's number there.
    source: int
    job: int
    #: The message's number there.
    number: int
    #: Fingerprint of its group.
    group: str


@dataclass(slots=True)
class Annotations:
    """All that can stand there; `encode` leaves out what is empty."""

    #: BCC keys, removed from the headers but used for dead-letter routing (R-DLX-10).
    bcc: list[str] = field(default_factory=list)
    #: Newest first.
    deaths: list[Death] = field(default_factory=list)
    #: (reason, queue, exchange) of the very first death (R-DLX-23).
    first_death: tuple[str, str, str] | None = None
    #: Carried to the next quorum queue (R-DL-9).
    delivery_count: int = 0
    #: Milliseconds from enqueue; from the expiration property (R-TTL-1).  None: no own TTL.
    ttl_ms: int | None = None
    #: From the priority property; None: it has none, which is not the same as 0 (R-PRI-2).
    priority: int | None = None
    #: It has been through an alternate exchange, and no queue's alternate takes it again (R-MQ-7).
    rerouted: bool = False
    #: Milliseconds for which the queue of an exchange of type x-delayed-message keeps it; counts
    #: nowhere else.
    delay_ms: int | None = None
    #: There it replaces the waiting message with the same key; without `delay_ms` that one goes.
    delay_key: str | None = None
    #: Milliseconds since 1970; a queue keeps it until then (core/catalog/delivery_times.py).
    deliver_at_ms: int | None = None
    #: Of a copy that a redrive sends.  It holds at the queue that takes the copy: what goes on from
    #: there, whichever way, has none.
    redriven: RedrivenFrom | None = None


NONE = b""

_FIELDS = tuple(Annotations.__dataclass_fields__)
#: Of these, 0 says something else than nothing.
_ZERO_COUNTS = frozenset(("ttl_ms", "priority", "delay_ms"))

#: Form (no JSON begins so), which of the two are there, TTL in milliseconds, priority.
_PACKED = struct.Struct("<BBQB")
_PACKED_FORM = 2
_HAS_TTL, _HAS_PRIORITY = 1, 2
_TTL_MAX = (1 << 64) - 1
_PRIORITY_MAX = 255


def encode(annotations: Annotations) -> bytes:
    """Return the form for the log, b"" when there is nothing to remember."""
    if _is_packable(annotations):
        return _pack(annotations.ttl_ms, annotations.priority)
    fields = {
        name: value
        for name in _FIELDS
        if (value := getattr(annotations, name)) is not None and (value or name in _ZERO_COUNTS)
    }
    if "deaths" in fields:
        fields["deaths"] = [asdict(death) for death in annotations.deaths]
    return json.dumps(fields, separators=(",", ":")).encode() if fields else NONE


def _is_packable(annotations: Annotations) -> bool:
    return not (
        annotations.deaths
        or annotations.bcc
        or annotations.first_death
        or annotations.delivery_count
        or annotations.rerouted
        or annotations.delay_ms is not None
        or annotations.delay_key is not None
        or annotations.deliver_at_ms is not None
        or annotations.redriven is not None
    ) and (
        0 <= (annotations.ttl_ms or 0) <= _TTL_MAX
        and 0 <= (annotations.priority or 0) <= _PRIORITY_MAX
    )


def _pack(ttl_ms: int | None, priority: int | None) -> bytes:
    if ttl_ms is None and priority is None:
        return NONE
    if ttl_ms is None:
        return _PACKED.pack(_PACKED_FORM, _HAS_PRIORITY, 0, priority)
    if priority is None:
        return _PACKED.pack(_PACKED_FORM, _HAS_TTL, ttl_ms, 0)
    return _PACKED.pack(_PACKED_FORM, _HAS_TTL | _HAS_PRIORITY, ttl_ms, priority)


def decode(raw: bytes) -> Annotations:
    """Return what `encode` was given, in either form; ValueError for anything else."""
    if not raw:
        return Annotations()
    if raw[0] == _PACKED_FORM:
        if len(raw) != _PACKED.size:
            raise ValueError(f"packed annotations have {_PACKED.size} bytes, not {len(raw)}")
        _, has, ttl_ms, priority = _PACKED.unpack(raw)
        return Annotations(
            ttl_ms=ttl_ms if has & _HAS_TTL else None,
            priority=priority if has & _HAS_PRIORITY else None,
        )
    fields = json.loads(raw)
    if not isinstance(fields, dict):
        raise ValueError("annotations are an object")
    fields["deaths"] = [Death(**death) for death in fields.get("deaths", [])]
    if "first_death" in fields:
        fields["first_death"] = tuple(fields["first_death"])
    if "redriven" in fields:
        fields["redriven"] = RedrivenFrom(*fields["redriven"])
    return Annotations(**fields)
