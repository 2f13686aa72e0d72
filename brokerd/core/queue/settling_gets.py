"""A GET that settles first what its consumer has got before (feature flag settling_gets, ADR 23).

The ranges stand between the head of the command and its JSON.  Channels that acknowledge what they
get send it, `queue_decoders` reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from brokerd.core.message import Range

#: Ranges in one command.  The byte that counts them is the brace of the JSON where there are none.
SETTLED_MAX = 64
_NONE = ord("{")
_HEAD_BYTES = 2
_RANGE_BYTES = 16


def encode(get: bytes, ranges: Sequence[Range]) -> bytes:
    """Add 1 to SETTLED_MAX ranges to what `queue_commands.encode_get` made."""
    flat = [number for pair in ranges for number in pair]
    settled = struct.pack(f"<B{len(flat)}Q", len(ranges), *flat)
    return get[:_HEAD_BYTES] + settled + get[_HEAD_BYTES:]


def decode(data: bytes) -> tuple[bytes, list[Range]]:
    """Return a GET as `queue_commands.encode_get` made it, and what it is to settle first."""
    count = data[_HEAD_BYTES]
    if count == _NONE:
        return data, []
    flat = struct.unpack_from(f"<{2 * count}Q", data, _HEAD_BYTES + 1)
    rest = data[_HEAD_BYTES + 1 + _RANGE_BYTES * count :]
    return data[:_HEAD_BYTES] + rest, list(zip(flat[::2], flat[1::2], strict=True))
