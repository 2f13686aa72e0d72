"""What several channels of a member settle at once, as one command (feature flag
joined_settlements, ADR 65).

The parts are SETTLE commands as `queue_commands.encode_ranges` makes them.  Members send it,
`queue_decoders` reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from brokerd.core.queue.queue_commands import VERSION, Kind

_HEAD = struct.Struct("<BBI")


def encode(parts: Sequence[bytes]) -> bytes:
    """Join one or more SETTLE commands.  Reply: empty."""
    sizes = struct.pack(f"<{len(parts)}I", *map(len, parts))
    return b"".join((_HEAD.pack(VERSION, Kind.JOINED_SETTLEMENTS, len(parts)), sizes, *parts))


def decode(data: bytes) -> list[bytes]:
    """Return the parts; struct.error or ValueError if it is none."""
    _, _, count = _HEAD.unpack_from(data)
    sizes = struct.unpack_from(f"<{count}I", data, _HEAD.size)
    at = _HEAD.size + 4 * count
    # First: compiled, a slice that begins behind the end is a SystemError.
    if at + sum(sizes) != len(data):
        raise ValueError(f"parts of {sum(sizes)} bytes from {at} on, in {len(data)} bytes")
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts
