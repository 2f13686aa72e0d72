"""Frames: judging the head of one, writing them, and walking runs of basic.ack in bulk.

For `connection.py` and `content.py`.  Nothing here knows of channels' states.
"""

from __future__ import annotations

import struct

from brokerd.amqp import spec
from brokerd.amqp.errors import FrameError, FramingLost, erlang_snippet

#: type, channel, payload size
FRAME_HEAD = struct.Struct(">BHI")
#: type, channel, payload size, class id, weight, body size: a header frame up to its flag word
CONTENT_HEAD = struct.Struct(">BHIHHQ")
#: The first eleven octets (frame head, class, method), delivery tag, bits, end octet.
ACK_FRAME = struct.Struct(">11sQBB")
ACK_FRAME_SIZE = ACK_FRAME.size
#: The payload size in an ack's frame head.
_ACK_SIZE = (ACK_FRAME_SIZE - spec.EMPTY_FRAME_SIZE).to_bytes(4, "big")
ACK_KEY = b"\x00\x3c\x00\x50"
GET_KEY = b"\x00\x3c\x00\x46"
PUBLISH_KEY = b"\x00\x3c\x00\x28"


def check_size(kind: int, size: int, size_max: int) -> None:
    """Judges a payload's size as soon as the head is there (R-FRM-3).

    `size_max` is the negotiated frame_max, 0 for none.
    """
    # The reader compares with frame_max - 8 + 8: the envelope, and as much slack.
    payload_max = size_max or spec.MESSAGE_SIZE_CEILING
    if size > payload_max - spec.EMPTY_FRAME_SIZE + spec.FRAME_SIZE_SLACK:
        raise FramingLost(
            # The payload is not looked at.
            f"type {kind}, {erlang_snippet(b'')}: "
            f"{{frame_too_large,{size},{payload_max - spec.EMPTY_FRAME_SIZE}}}"
        )


def unknown_type(kind: int, payload: bytes) -> FrameError:
    """The error for a frame of unknown type; it shows the payload, once that is there (R-FRM-2)."""
    return FramingLost(f"type {kind}, {erlang_snippet(payload)}: unknown_frame")


def wrong_end(kind: int, payload: bytes, octet: int) -> FrameError:
    """The error for an end octet that is not 0xCE (R-FRM-3)."""
    return FramingLost(
        f"type {kind}, {erlang_snippet(payload)}: {{invalid_frame_end_marker,{octet}}}"
    )


def walk_acks(buffer: bytes, pos: int, acks: list[tuple[int, bool]]) -> int:
    """Collects the run of basic.ack frames that starts at `pos`, all on that frame's channel.

    Returns the position behind the run; `pos` itself when the first is not whole or not right, so
    that the general path judges it.  Acks have no variable field, so a run is one `iter_unpack`
    (design/hot-path.md rule 4).
    """
    head = buffer[pos : pos + 11]
    if head[3:7] != _ACK_SIZE:
        return pos
    count = (len(buffer) - pos) // ACK_FRAME_SIZE
    run = memoryview(buffer)[pos : pos + count * ACK_FRAME_SIZE]
    append = acks.append
    for start, tag, bits, end in ACK_FRAME.iter_unpack(run):
        if start != head or end != 0xCE:
            break
        append((tag, bits & 1 == 1))
        pos += ACK_FRAME_SIZE
    return pos


def content_frames(
    channel: int, class_id: int, header_raw: bytes, body: bytes, frame_max: int
) -> list[bytes]:
    """Header frame and body frames, the body split to fit frame_max (R-FRM-9, R-FRM-10)."""
    size = len(body)
    out = [
        CONTENT_HEAD.pack(
            2, channel, spec.CONTENT_HEADER_SIZE + len(header_raw), class_id, 0, size
        ),
        header_raw,
        spec.FRAME_END_BYTE,
    ]
    if not size:
        return out
    step = frame_max - spec.EMPTY_FRAME_SIZE if frame_max else size
    if size <= step:
        out += (FRAME_HEAD.pack(3, channel, size), body, spec.FRAME_END_BYTE)
        return out
    for start in range(0, size, step):
        piece = body[start : start + step]
        out += (FRAME_HEAD.pack(3, channel, len(piece)), piece, spec.FRAME_END_BYTE)
    return out
