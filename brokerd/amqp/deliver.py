"""Deliver frames by joining prepared parts (design/hot-path.md rule 5).

For the delivery path of the server: one encoder per (channel, consumer, exchange, routing key).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from brokerd.amqp import spec
from brokerd.amqp.frames import CONTENT_HEAD, FRAME_HEAD, content_frames
from brokerd.amqp.values import encode_shortstr

_TAG = struct.Struct(">Q?")
_IDS = b"\x00\x3c\x00\x3c"


class DeliverEncoder:
    """Writes basic.deliver for one consumer and one (exchange, routing key)."""

    __slots__ = ("_after_tag", "_before_tag", "_body_max", "_channel", "_frame_max")

    def __init__(
        self, channel: int, consumer_tag: str, exchange: str, routing_key: str, frame_max: int
    ) -> None:
        tag = encode_shortstr(consumer_tag)
        names = encode_shortstr(exchange) + encode_shortstr(routing_key)
        size = len(_IDS) + len(tag) + _TAG.size + len(names)
        self._before_tag = FRAME_HEAD.pack(1, channel, size) + _IDS + tag
        self._after_tag = names + spec.FRAME_END_BYTE
        self._channel = channel
        self._frame_max = frame_max
        self._body_max = frame_max - spec.EMPTY_FRAME_SIZE if frame_max else 2**32 - 1

    def frames(
        self, first_tag: int, redelivered: bool, items: Sequence[tuple[bytes, bytes]]
    ) -> bytes:
        """The frames of a batch of (raw properties, body), tagged from `first_tag` upwards."""
        return b"".join(self.parts(first_tag, redelivered, items))

    def parts(
        self, first_tag: int, redelivered: bool, items: Sequence[tuple[bytes, bytes]]
    ) -> list[bytes]:
        """The same, not yet joined: for a writer that joins several consumers' batches at once."""
        out: list[bytes] = []
        pack = _TAG.pack
        before = self._before_tag
        # The end octet of one message's body and the start of the next message are one part.
        after_body = spec.FRAME_END_BYTE + before
        lead = before
        last_header: bytes | None = None
        last_size = -1
        between = b""
        tag = first_tag
        for header, body in items:
            size = len(body)
            if size != last_size or header != last_header:
                between = self._between(header, size)
                last_size = size
                last_header = header
            out += (lead, pack(tag, redelivered), between)
            if 0 < size <= self._body_max:
                out.append(body)
                lead = after_body
            else:
                # No body frame at all, or several; `between` ends behind the header frame.
                if size:
                    out += content_frames(self._channel, 60, header, body, self._frame_max)[3:]
                lead = before
            tag += 1
        if lead is after_body:
            out.append(spec.FRAME_END_BYTE)
        return out

    def _between(self, header: bytes, size: int) -> bytes:
        """From behind the tag to the first body octet (to the header's end without one)."""
        channel = self._channel
        head = CONTENT_HEAD.pack(2, channel, spec.CONTENT_HEADER_SIZE + len(header), 60, 0, size)
        between = self._after_tag + head + header + spec.FRAME_END_BYTE
        if 0 < size <= self._body_max:
            between += FRAME_HEAD.pack(3, channel, size)
        return between
