"""What a link has passed on, dropped and been refused: the figures of its row.

PURE.  For the link's machine, which owns them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brokerd.amqp.values import Table, Value
from brokerd.federation.upstream import RECEIVED_FROM

#: RabbitMQ's message interceptor stamps this one, milliseconds since 1970.
STAMP = "timestamp_in_ms"
HOP_BUCKETS = 8


class Drop(Enum):
    """Why a message does not go on; the value is its figure's name in `overview`."""

    MAX_HOPS = "drop_maxhops"
    LOOP = "drop_loop"
    #: It would come back for ever.
    MALFORMED = "drop_malformed"


@dataclass(slots=True)
class Counts:
    """What has passed since the link was made; only rises, the last lag aside."""

    messages: int = 0
    bytes: int = 0
    #: By length of x-received-from after our own entry: 1, 2, … and "8 or more" last.
    hops: list[int] = field(default_factory=lambda: [0] * HOP_BUCKETS)
    dropped: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))
    #: What the destination has taken over.
    moved: int = 0
    refused: int = 0
    #: Found no queue at the destination; those of them that were given up.
    unroutable: int = 0
    unroutable_dropped: int = 0
    reconnects: int = 0
    lag_count: int = 0
    lag_sum_ms: int = 0
    lag_max_ms: int = 0

    def passed(self, table: Table, count: int, size: int, now_ms: int) -> None:
        """Count messages that go on.  table: the headers of each; size: of all."""
        self.messages += count
        self.bytes += size
        received = table.get(RECEIVED_FROM)
        hops = len(received) if isinstance(received, list) else 0
        self.hops[min(hops, HOP_BUCKETS - 1)] += count
        stamp = table.get(STAMP)
        if type(stamp) is int:
            lag_ms = max(0, now_ms - stamp)
            self.lag_count += count
            self.lag_sum_ms += lag_ms * count
            self.lag_max_ms = max(self.lag_max_ms, lag_ms)

    def overview(self) -> dict[str, Value]:
        """Return the figures by the names of telemetry's row `fed`."""
        return {
            "in": self.messages,
            "in_bytes": self.bytes,
            "moved": self.moved,
            "hops": list(self.hops),
            **{drop.value: count for drop, count in self.dropped.items()},
            "refused": self.refused,
            "unroutable": self.unroutable,
            "unroutable_dropped": self.unroutable_dropped,
            "reconnects": self.reconnects,
            "lag_count": self.lag_count,
            "lag_sum_ms": self.lag_sum_ms,
            "lag_max_ms": self.lag_max_ms,
        }
