"""Settings of the write-ahead log, filled in by the code that opens one (brokerd.config)."""

from __future__ import annotations

from dataclasses import dataclass

#: Segments are addressed by 32-bit offsets.
SEGMENT_BYTES_MAX = 1 << 31
#: Half of the smallest one is its head (records.py).
SEGMENT_BYTES_MIN = 16 << 10


@dataclass(slots=True)
class WalConfig:
    """How the log uses disk and memory."""

    #: Stands in every file's header: a volume mounted to the wrong member refuses to start.
    node_id: str = "node"
    #: Size of a segment file.  64 MiB: a rotation every few hundred batches, and the unit in which
    #: space comes back.
    segment_bytes: int = 64 << 20
    #: Dead segments kept for reuse: overwriting allocated blocks makes the sync cheaper
    #: (122 against 176 microseconds p50, design/replication.md §3).
    recycled_segments_max: int = 2
    #: Prepare the next segment and delete old ones in threads of their own; False: when they are
    #: due (tests, determinism).
    in_background: bool = True
    #: Recent entries kept in memory, all groups together.
    cache_bytes: int = 64 << 20
    #: Live bytes that one collect() moves at most, so that a write never waits long behind it.
    collect_bytes_max: int = 4 << 20
    #: A sealed segment with less than this share of live bytes is rewritten.
    rewrite_below_percent: int = 50

    def validate(self) -> None:
        """Raise ValueError for settings that cannot work."""
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segment_bytes {self.segment_bytes} is outside "
                f"{SEGMENT_BYTES_MIN}..{SEGMENT_BYTES_MAX}"
            )
        if not 1 <= len(self.node_id.encode()) <= 200:
            raise ValueError("node_id must have 1 to 200 bytes")
        if not 0 <= self.rewrite_below_percent <= 90:
            raise ValueError("rewrite_below_percent must be within 0..90")
        if self.collect_bytes_max < 1 or self.cache_bytes < 0 or self.recycled_segments_max < 0:
            raise ValueError("collect_bytes_max, cache_bytes, recycled_segments_max: negative")
