"""Content: a method, one header frame and body frames become one message.

`walk_publishes` takes whole messages of the usual shape out of a buffer in one straight loop and
stops, without judging, at the first thing that looks different; `ContentAssembly` then takes frame
by frame and is the only judge of what is wrong.  Memory is claimed as bytes arrive, never from the
announced body size (SEC-40).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from io import BytesIO

from brokerd.amqp import spec
from brokerd.amqp.errors import (
    FieldSyntaxError,
    FrameError,
    PreconditionFailed,
    ProtocolError,
    UnexpectedFrame,
    erlang_snippet,
)
from brokerd.amqp.frames import CONTENT_HEAD, FRAME_HEAD
from brokerd.amqp.methods import BasicPublish, Method
from brokerd.amqp.properties import is_well_formed

_HEADER_FIELDS = struct.Struct(">HHQ")
#: frame head, class id and method id in one number
_METHOD_HEAD = struct.Struct(">BHII")
_PUBLISH_KEY = (spec.CLASS_BASIC << 16) | BasicPublish.METHOD_ID

#: Clients send the same publish again and again (design/hot-path.md rule 2).
_publishes: dict[bytes, BasicPublish] = {}


def parse_publish(payload: bytes) -> BasicPublish:
    """The basic.publish in a method payload, from the cache when these bytes were seen before.

    The result is shared: never change it.
    """
    publish = _publishes.get(payload)
    if publish is None:
        publish = BasicPublish.decode(payload, 4)
        if len(_publishes) >= spec.PUBLISH_CACHE_ENTRIES_MAX:
            _publishes.clear()
        _publishes[payload] = publish
    return publish


@lru_cache(256)
def equally_large(body_start: int, span: int) -> struct.Struct:
    """Return the layout of a message of `span` octets: up to the body, the body, the end mark."""
    return struct.Struct(f"{body_start}s{span - 1 - body_start}sB")


def walk_publishes(
    buffer: bytes,
    pos: int,
    channel: int,
    frame_max: int,
    message_size_max: int,
    items: list[tuple[bytes, bytes, bytes]],
) -> int:
    """Takes whole messages [publish][header][at most one body frame] of `channel` from `pos` on.

    Appends (publish payload, raw properties, body) to `items` and returns the position behind the
    last message taken; what stands there is incomplete, wrong, or something else.
    """
    size_total = len(buffer)
    view = memoryview(buffer)
    payload_max = frame_max or spec.MESSAGE_SIZE_CEILING
    starts_with = buffer.startswith
    append = items.append
    method_head = _METHOD_HEAD.unpack_from
    content_head = CONTENT_HEAD.unpack_from
    frame_head = FRAME_HEAD.unpack_from
    publish = b""
    header = b""
    # The last publish as a whole frame: the same octets again need no look.
    method_frame = b""
    # All octets of a message up to its body, once two in a row had the same.  A further one has
    # the same publish, properties and sizes, and needs no look at any of them.
    prefix = b""
    span = 0
    body_start = 0
    while True:
        if prefix:
            if starts_with(prefix, pos):
                # All that are here and alike, taken apart by one call.
                stop = pos + (size_total - pos) // span * span
                for start, body, end_mark in equally_large(body_start, span).iter_unpack(
                    view[pos:stop]
                ):
                    if start != prefix or end_mark != 0xCE:
                        break
                    append((publish, header, body))
                    pos += span
            prefix = b""
        # A message without a body is the smallest: 12 + 20 octets and what the fields need.
        if size_total - pos < 34:
            return pos
        if method_frame and starts_with(method_frame, pos):
            at = pos + len(method_frame)
        else:
            kind, number, size, key = method_head(buffer, pos)
            at = pos + 8 + size
            if (
                kind != 1
                or number != channel
                or key != _PUBLISH_KEY
                or not 9 <= size <= payload_max
                or at > size_total
                or buffer[at - 1] != 0xCE
            ):
                return pos
            publish = buffer[pos + 7 : at - 1]
            if publish not in _publishes:
                try:
                    parse_publish(publish)
                except ProtocolError:
                    return pos
            method_frame = buffer[pos:at]
        if at + 22 > size_total:
            return pos
        kind, number, size, class_id, weight, body_size = content_head(buffer, at)
        body_at = at + 8 + size
        if (
            kind != 2
            or number != channel
            or class_id != 60
            or weight
            or not 14 <= size <= payload_max
            or body_size > message_size_max
            or body_at > size_total
            or buffer[body_at - 1] != 0xCE
        ):
            return pos
        candidate = buffer[at + 19 : body_at - 1]
        is_repeated = candidate == header
        if not is_repeated:
            if not is_well_formed(candidate):
                return pos
            header = candidate
        if not body_size:
            append((publish, header, b""))
            pos = body_at
            continue
        if body_at + 8 > size_total:
            return pos
        kind, number, size = frame_head(buffer, body_at)
        stop = body_at + 8 + size
        if (
            kind != 3
            or number != channel
            or size != body_size
            or size > payload_max
            or stop > size_total
            or buffer[stop - 1] != 0xCE
        ):
            return pos
        append((publish, header, buffer[body_at + 7 : stop - 1]))
        if is_repeated:
            prefix = buffer[pos : body_at + 7]
            span = stop - pos
            body_start = body_at + 7 - pos
        pos = stop


class ContentAssembly:
    """One message in the making on one channel.

    State: `header` is None until the header frame came; then `missing` body bytes are awaited.
    """

    __slots__ = ("_body", "_pieces", "header", "method", "method_id", "missing", "payload")

    def __init__(self, payload: bytes, method: Method) -> None:
        #: The method frame's payload, kept for the publish cache.
        self.payload = payload
        self.method = method
        self.method_id = method.METHOD_ID
        self.header: bytes | None = None
        self.missing = 0
        # A body that comes in one frame is kept as it is.  More frames are written into a BytesIO:
        # a flood of tiny frames costs their bytes only, and what comes out in the end is no copy.
        self._body = b""
        self._pieces: BytesIO | None = None

    @property
    def is_complete(self) -> bool:
        """Whether header and all body bytes are there."""
        return self.header is not None and not self.missing

    @property
    def size(self) -> int:
        """Body bytes that have come."""
        return len(self._body) if self._pieces is None else self._pieces.tell()

    @property
    def body(self) -> bytes:
        """The body, once complete."""
        return self._body if self._pieces is None else self._pieces.getvalue()

    def take_header(self, payload: bytes, message_size_max: int) -> None:
        """The header frame's payload; R-FRM-6, R-FRM-7 and R-FRM-8."""
        if self.header is not None:
            raise self._unexpected("expected content body, got non content body frame instead")
        if len(payload) < spec.CONTENT_HEADER_SIZE:
            raise FrameError(f"type 2, {erlang_snippet(payload)}: unknown_frame")
        class_id, weight, body_size = _HEADER_FIELDS.unpack_from(payload)
        if class_id != self.method.CLASS_ID:
            raise self._unexpected(
                f"expected content header for class {self.method.CLASS_ID}, "
                f"got one for class {class_id} instead"
            )
        if weight:
            raise self._unexpected(
                f"expected content header for class {self.method.CLASS_ID}, "
                "got non content header frame instead"
            )
        if body_size > spec.MESSAGE_SIZE_CEILING:
            raise FrameError(
                f"content body size {body_size} exceeds maximum allowed size "
                f"{spec.MESSAGE_SIZE_CEILING}",
                class_id=60,
                method_id=self.method_id,
            )
        if body_size > message_size_max:
            raise PreconditionFailed(
                f"message size {body_size} is larger than configured max size {message_size_max}",
                class_id=60,
                method_id=self.method_id,
            )
        header = payload[spec.CONTENT_HEADER_SIZE :]
        if not is_well_formed(header):
            raise FieldSyntaxError(
                "malformed basic properties", class_id=60, method_id=self.method_id
            )
        self.header = header
        self.missing = body_size

    def take_body(self, payload: bytes) -> None:
        """A body frame's payload."""
        if self.header is None:
            raise self._unexpected(
                f"expected content header for class {self.method.CLASS_ID}, "
                "got non content header frame instead"
            )
        size = len(payload)
        if size > self.missing:
            # R-FRM-7, SEC-41.
            raise FrameError(
                "content body frame exceeds remaining content size",
                class_id=60,
                method_id=self.method_id,
            )
        self.missing -= size
        if self._pieces is not None:
            self._pieces.write(payload)
        elif self._body:
            self._pieces = BytesIO()
            self._pieces.write(self._body)
            self._pieces.write(payload)
            self._body = b""
        else:
            self._body = payload

    def refuse_method(self) -> ProtocolError:
        """The error for a method frame in the middle of the content."""
        if self.header is None:
            return self._unexpected(
                f"expected content header for class {self.method.CLASS_ID}, "
                "got non content header frame instead"
            )
        return self._unexpected("expected content body, got non content body frame instead")

    def _unexpected(self, explanation: str) -> UnexpectedFrame:
        return UnexpectedFrame(explanation, class_id=self.method.CLASS_ID, method_id=self.method_id)
