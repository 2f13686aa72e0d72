"""Frames of HTTP/2 (RFC 9113): their layout, types, flags, settings and codes.

Both ends are here: one_stream.py for a connection between members, many_streams.py for the gRPC
port of clients.  Neither knows a socket, a clock or gRPC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types (RFC 9113 §6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

# Flags.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

# Settings (§6.5.2).
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

# Error codes (§7).
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 5, 6, 7, 8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11

#: What both sides start with (§6.9.2, §6.5.2).  A stranger gets no larger window than this.
WINDOW_BYTES_DEFAULT = 65_535
FRAME_BYTES_DEFAULT = 16_384
WINDOW_BYTES_MAX = 2**31 - 1
#: Frames without a message that one frame of data pays for (one_stream.py, many_streams.py).
IDLE_FRAMES_PER_DATA = 8

#: The head of a frame, one setting, and what the payloads of other frames are made of.
FRAME = struct.Struct(">IBI")
SETTING = struct.Struct(">HI")
WORD = struct.Struct(">I")
TWO_WORDS = struct.Struct(">II")
FRAME_HEADER_BYTES = FRAME.size

Header: TypeAlias = tuple[bytes, bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Lay one frame out."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings_frame(settings: Iterable[tuple[int, int]]) -> bytes:
    """Lay a SETTINGS frame out."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings))
