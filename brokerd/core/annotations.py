"""What the broker remembers beside a message's own bytes.

Kept as small JSON in `Content[3]`, and only where there is something to remember, so that the
ordinary message costs nothing.  Never sent to clients as such.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


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


NONE = b""


def encode(annotations: Annotations) -> bytes:
    """Return the JSON form, b"" when there is nothing to remember."""
    fields = {
        key: value for key, value in asdict(annotations).items() if value not in (None, [], 0)
    }
    for name in ("ttl_ms", "priority"):
        if getattr(annotations, name) == 0:
            fields[name] = 0
    return json.dumps(fields, separators=(",", ":")).encode() if fields else NONE


def decode(raw: bytes) -> Annotations:
    """Return what `encode` was given."""
    if not raw:
        return Annotations()
    fields = json.loads(raw)
    fields["deaths"] = [Death(**death) for death in fields.get("deaths", [])]
    if "first_death" in fields:
        fields["first_death"] = tuple(fields["first_death"])
    return Annotations(**fields)
