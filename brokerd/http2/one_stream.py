"""HTTP/2 (RFC 9113) for a connection that carries one stream: bytes in, events out.

What a peer stream needs and no more, so that a message costs a few microseconds (ADR 12).  No
sockets, no clock, no gRPC: peer_connection.py moves the bytes, grpc_messages.py finds the messages.
Headers are coded by the hpack library.  Everything the other side can make grow has a bound here:
whatever breaks the protocol or a bound is an Http2Error, which ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import hpack

from brokerd.http2 import framing
from brokerd.http2.errors import Http2Error
from brokerd.http2.framing import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_DEFAULT,
    FRAME_HEADER_BYTES,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    IDLE_FRAMES_PER_DATA,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Header,
    frame,
    settings_frame,
)

#: Largest DATA frame that is accepted.  Its bytes are passed on as they come, so it costs nothing.
FRAME_BYTES_MAX = 1 << 20
#: A piece of this size or more is not copied to stand in one frame with what is sent before it.
APART_BYTES_MIN = 32 * 1024
#: Every other frame, from any sender, is read whole before it is looked at: little is kept of a
#: stranger.
WHOLE_FRAME_BYTES_MAX = 1 << 13
#: A request has a dozen short headers.  Bounds the encoded block with its continuations
#: (CVE-2024-27316) and, by hpack, what it unfolds to (header bombs).
HEADER_BYTES_MAX = 1 << 13
#: Our own table of headers; nothing here gains from a larger one.
HEADER_TABLE_BYTES = 4_096
#: Frames that move no message: pings, settings, resets, refused streams, empty data, …
#: (CVE-2019-9512, -9514, -9515, -9518, CVE-2023-44487).  Each frame of data, received or sent,
#: pays for some of them; what is beyond that is a flood.
IDLE_FRAMES_MAX = 512

_FRAME, _SETTING = framing.FRAME, framing.SETTING
_WORD, _TWO_WORDS = framing.WORD, framing.TWO_WORDS


@dataclass(slots=True)
class HeadersReceived:
    """The headers of the stream, or its trailers."""

    headers: list[Header]
    ends_stream: bool


@dataclass(slots=True)
class StreamEnded:
    """The other side sends nothing more on the stream; `code` is set if it was reset."""

    code: int | None = None


@dataclass(slots=True)
class GoingAway:
    """The other side ends the connection and says why."""

    code: int
    text: bytes


#: A memoryview is a piece of the stream's data, valid until the next call.
Event: TypeAlias = memoryview | HeadersReceived | StreamEnded | GoingAway


class Http2Connection:
    """One end of a connection and its only stream.

    State: what is left of an unfinished frame (`_rest`, `_data_left`); windows of both directions;
    `_unsent`, data that waits for the other side's window.  `out` holds what is to be written:
    take it with `data_to_send` after every call.

    In one piece: one machine, as RFC 9113 has it; every frame may concern all of its state.
    """

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_stream",
        "_connection_room",
        "_data_ends",
        "_data_is_ours",
        "_data_left",
        "_decoder",
        "_encoder",
        "_events",
        "_frame_bytes",
        "_has_ended",
        "_idle_frames",
        "_initial_window",
        "_is_client",
        "_is_open",
        "_preface_left",
        "_rest",
        "_room",
        "_stream_last",
        "_unsent",
        "_window",
        "_window_connection",
        "_window_stream",
        "out",
        "stream",
    )

    def __init__(self, *, is_client: bool) -> None:
        self._is_client = is_client
        #: The only stream; 0 until a server has been asked for one.
        self.stream = 1 if is_client else 0
        self._stream_last = self.stream
        self._is_open = False
        self._has_ended = False
        self._preface_left = b"" if is_client else PREFACE
        self._rest = b""
        # The DATA frame that is being received.
        self._data_left = 0
        self._data_ends = False
        self._data_is_ours = False
        # The header block that is being received; `_block_stream` 0: none.
        self._block = bytearray()
        self._block_stream = 0
        self._block_flags = 0
        self._idle_frames = 0
        # What the other side may still send; topped up to `_window`.
        self._window = WINDOW_BYTES_DEFAULT
        self._room = WINDOW_BYTES_DEFAULT
        self._connection_room = WINDOW_BYTES_DEFAULT
        # What it lets us send.
        self._initial_window = WINDOW_BYTES_DEFAULT
        self._window_stream = WINDOW_BYTES_DEFAULT
        self._window_connection = WINDOW_BYTES_DEFAULT
        self._frame_bytes = FRAME_BYTES_DEFAULT
        self._unsent: deque[memoryview] = deque()
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder(max_header_list_size=HEADER_BYTES_MAX)
        self._events: list[Event] = []
        common = [(MAX_FRAME_SIZE, FRAME_BYTES_MAX), (MAX_HEADER_LIST_SIZE, HEADER_BYTES_MAX)]
        self.out: list[bytes | memoryview] = []
        if is_client:
            self.out.append(PREFACE + settings_frame([(ENABLE_PUSH, 0), *common]))
        else:
            self.out.append(settings_frame([(MAX_CONCURRENT_STREAMS, 1), *common]))

    # ---- sending --------------------------------------------------------------------------------

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return what is to be written, and forget it."""
        out = self.out
        self.out = []
        return out

    @property
    def is_blocked(self) -> bool:
        """Whether data waits for the other side's window."""
        return bool(self._unsent)

    def send_data(self, pieces: Sequence[bytes], size: int) -> None:
        """Send `pieces` (`size` bytes together) on the stream, as far as the windows let it."""
        if (
            self._unsent
            or size > self._frame_bytes
            or size > self._window_stream
            or size > self._window_connection
        ):
            self._unsent.extend(map(memoryview, _with_large_apart(pieces)))
            self._send_unsent()
            return
        self._window_stream -= size
        self._window_connection -= size
        out = self.out
        # Frame type 0 is DATA.
        out.append(_FRAME.pack(size << 8, 0, self.stream))
        out += pieces
        if self._idle_frames:
            self._idle_frames = max(0, self._idle_frames - IDLE_FRAMES_PER_DATA)

    def _send_unsent(self) -> None:
        unsent = self._unsent
        while unsent:
            size = min(
                len(unsent[0]), self._frame_bytes, self._window_stream, self._window_connection
            )
            if size <= 0:
                return
            piece = unsent[0][:size]
            if size == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][size:]
            self._window_stream -= size
            self._window_connection -= size
            self.out.append(_FRAME.pack(size << 8, 0, self.stream))
            self.out.append(piece)
            self._idle_frames = max(0, self._idle_frames - IDLE_FRAMES_PER_DATA)

    def send_headers(self, headers: Sequence[Header], *, ends_stream: bool = False) -> None:
        """Send headers, or trailers; what waited for a window is given up by trailers."""
        if ends_stream:
            self._unsent.clear()
        flags = END_HEADERS | (END_STREAM if ends_stream else 0)
        block = self._encoder.encode(headers)
        self.out.append(frame(HEADERS, flags, self.stream, block))

    def send_ping(self) -> None:
        """Ask for a sign of life."""
        self.out.append(frame(PING, 0, 0, bytes(8)))

    def send_goaway(self, code: int, text: str = "") -> None:
        """Say that this connection ends, and why."""
        payload = _TWO_WORDS.pack(self._stream_last, code) + text.encode()[:200]
        self.out.append(frame(GOAWAY, 0, 0, payload))

    def open_window(self, size: int) -> None:
        """Let the other side have up to `size` bytes on the way from now on."""
        self._window = size
        self._grant()

    def _grant(self) -> None:
        window = self._window
        if self._connection_room <= window // 2:
            self.out.append(frame(WINDOW_UPDATE, 0, 0, _WORD.pack(window - self._connection_room)))
            self._connection_room = window
        if self._room <= window // 2 and not self._has_ended:
            self.out.append(frame(WINDOW_UPDATE, 0, self.stream, _WORD.pack(window - self._room)))
            self._room = window

    # ---- receiving ------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Take what was read; return what it means.  Http2Error: the connection must end."""
        if self._preface_left:
            data = self._take_preface(data)
        if self._rest:
            data = self._rest + data
            self._rest = b""
        events: list[Event] = []
        self._events = events
        at, end = 0, len(data)
        view = memoryview(data)
        if self._data_left:
            at = self._take_data(view, 0)
        while end - at >= FRAME_HEADER_BYTES:
            word, flags, stream = _FRAME.unpack_from(data, at)
            stream &= WINDOW_BYTES_MAX
            size = word >> 8
            kind = word & 0xFF
            # Padded data is as rare as it is useless; it is read whole.
            if not kind and not flags & PADDED:
                self._begin_data(size, flags, stream)
                at = self._take_data(view, at + FRAME_HEADER_BYTES)
                continue
            if size > WHOLE_FRAME_BYTES_MAX:
                raise Http2Error(FRAME_SIZE_ERROR, f"frame of {size} bytes")
            begin = at + FRAME_HEADER_BYTES
            if end - begin < size:
                break
            at = begin + size
            self._take_frame(kind, flags, stream, data[begin:at])
        if at < end:
            self._rest = data[at:]
        return events

    def _take_preface(self, data: bytes) -> bytes:
        left = self._preface_left
        count = min(len(left), len(data))
        if data[:count] != left[:count]:
            raise Http2Error(PROTOCOL_ERROR, "not HTTP/2")
        self._preface_left = left[count:]
        return data[count:]

    def _begin_data(self, size: int, flags: int, stream: int) -> None:
        """Account for a frame of data before its bytes have come (§6.9)."""
        if size > FRAME_BYTES_MAX:
            raise Http2Error(FRAME_SIZE_ERROR, f"frame of {size} bytes")
        is_ours = stream == self.stream
        if self._block_stream or not self._is_open or not 0 < stream <= self._stream_last:
            raise Http2Error(PROTOCOL_ERROR, "data out of place")
        if is_ours and self._has_ended:
            raise Http2Error(STREAM_CLOSED, "data after the end")
        self._connection_room -= size
        if is_ours:
            self._room -= size
        if self._connection_room < 0 or self._room < 0:
            raise Http2Error(FLOW_CONTROL_ERROR, "more data than the window")
        self._data_left = size
        self._data_is_ours = is_ours
        self._data_ends = is_ours and bool(flags & END_STREAM)
        if size and is_ours and not flags & PADDED:
            if self._idle_frames:
                self._idle_frames = max(0, self._idle_frames - IDLE_FRAMES_PER_DATA)
        else:
            self._count_idle()
        if self._connection_room <= self._window // 2 or self._room <= self._window // 2:
            self._grant()

    def _take_data(self, view: memoryview, at: int) -> int:
        """Pass on what is there of the current frame of data; return where it ends."""
        piece = view[at : at + self._data_left]
        size = len(piece)
        self._data_left -= size
        if size and self._data_is_ours:
            self._events.append(piece)
        if self._data_ends and not self._data_left:
            self._data_ends = False
            self._has_ended = True
            self._events.append(StreamEnded())
        return at + size

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise Http2Error(ENHANCE_YOUR_CALM, "a flood of frames without messages")

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block_stream and (kind != CONTINUATION or stream != self._block_stream):
            raise Http2Error(PROTOCOL_ERROR, "headers were not finished")
        if not self._is_open:
            # §3.4: both sides begin with their settings.
            if kind != SETTINGS or flags & ACK:
                raise Http2Error(PROTOCOL_ERROR, "no settings")
            self._is_open = True
        self._count_idle()
        take = _TAKE.get(kind)
        # §5.5: unknown frames are ignored.
        if take is not None:
            take(self, flags, stream, payload)

    def _take_padded_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._begin_data(len(payload), flags, stream)
        padding = payload[0] + 1 if payload else 1
        if padding > len(payload):
            raise Http2Error(PROTOCOL_ERROR, "more padding than data")
        self._data_left -= padding
        self._take_data(memoryview(payload)[1:], 0)

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> None:
        is_new = stream > self._stream_last
        if not stream or (self._is_client and stream != self.stream):
            raise Http2Error(PROTOCOL_ERROR, "headers out of place")
        if is_new and not stream % 2:
            raise Http2Error(PROTOCOL_ERROR, "a stream of the wrong side")
        if not is_new and (stream != self.stream or self._has_ended):
            raise Http2Error(STREAM_CLOSED, "headers after the end")
        begin, end = 0, len(payload)
        if flags & PADDED:
            begin, end = 1, end - (payload[0] if payload else 0)
        if flags & WITH_PRIORITY:
            begin += 5
        if begin > end:
            raise Http2Error(PROTOCOL_ERROR, "more padding than headers")
        self._stream_last = max(self._stream_last, stream)
        if not self.stream:
            self.stream = stream
        self._block = bytearray(payload[begin:end])
        self._block_stream, self._block_flags = stream, flags
        self._end_block(flags)

    def _take_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if not self._block_stream:
            raise Http2Error(PROTOCOL_ERROR, "continuation of nothing")
        self._block += payload
        self._end_block(flags)

    def _end_block(self, flags: int) -> None:
        if len(self._block) > HEADER_BYTES_MAX:
            raise Http2Error(ENHANCE_YOUR_CALM, "too many headers")
        if not flags & END_HEADERS:
            return
        try:
            # Also for a stream that is refused: the table of headers is the connection's.
            headers = self._decoder.decode(bytes(self._block), raw=True)
        except hpack.HPACKError as error:
            raise Http2Error(COMPRESSION_ERROR, f"headers: {error}") from error
        stream, ends_stream = self._block_stream, bool(self._block_flags & END_STREAM)
        self._block, self._block_stream = bytearray(), 0
        if stream != self.stream:
            self.out.append(frame(RST_STREAM, 0, stream, _WORD.pack(REFUSED_STREAM)))
            return
        self._has_ended = ends_stream
        found = [(bytes(name), bytes(value)) for name, value in headers]
        self._events.append(HeadersReceived(found, ends_stream))

    def _take_reset(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4 or not 0 < stream <= self._stream_last:
            raise Http2Error(PROTOCOL_ERROR, "reset of nothing")
        if stream == self.stream and not self._has_ended:
            self._has_ended = True
            self._unsent.clear()
            self._events.append(StreamEnded(_WORD.unpack(payload)[0]))

    def _take_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & ACK and payload):
            raise Http2Error(FRAME_SIZE_ERROR, "settings")
        if flags & ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                if value > WINDOW_BYTES_MAX:
                    raise Http2Error(FLOW_CONTROL_ERROR, "a window over its limit")
                self._window_stream += value - self._initial_window
                self._initial_window = value
            elif name == MAX_FRAME_SIZE:
                if not FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise Http2Error(PROTOCOL_ERROR, "frame size out of range")
                self._frame_bytes = value
            elif name == HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, HEADER_TABLE_BYTES)
        self.out.append(frame(SETTINGS, ACK, 0))
        self._send_unsent()

    def _take_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) != 8:
            raise Http2Error(FRAME_SIZE_ERROR, "ping")
        if not flags & ACK:
            self.out.append(frame(PING, ACK, 0, payload))

    def _take_goaway(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) < 8:
            raise Http2Error(FRAME_SIZE_ERROR, "goaway")
        self._events.append(GoingAway(_TWO_WORDS.unpack_from(payload)[1], payload[8:208]))

    def _take_window_update(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(FRAME_SIZE_ERROR, "window")
        increment = _WORD.unpack(payload)[0] & WINDOW_BYTES_MAX
        if not increment or stream > self._stream_last:
            raise Http2Error(PROTOCOL_ERROR, "a window of nothing")
        if not stream:
            self._window_connection += increment
        elif stream == self.stream:
            self._window_stream += increment
        if max(self._window_connection, self._window_stream) > WINDOW_BYTES_MAX:
            raise Http2Error(FLOW_CONTROL_ERROR, "a window over its limit")
        self._send_unsent()

    def _take_push(self, flags: int, stream: int, payload: bytes) -> None:
        raise Http2Error(PROTOCOL_ERROR, "push promise")


_TAKE: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    DATA: Http2Connection._take_padded_data,
    HEADERS: Http2Connection._take_headers,
    RST_STREAM: Http2Connection._take_reset,
    SETTINGS: Http2Connection._take_settings,
    PUSH_PROMISE: Http2Connection._take_push,
    PING: Http2Connection._take_ping,
    GOAWAY: Http2Connection._take_goaway,
    WINDOW_UPDATE: Http2Connection._take_window_update,
    CONTINUATION: Http2Connection._take_continuation,
}


def _with_large_apart(pieces: Sequence[bytes]) -> list[bytes]:
    """Return the same bytes in fewer pieces: those between large ones joined."""
    found: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < APART_BYTES_MIN:
            small.append(piece)
            continue
        found += (b"".join(small), piece)
        small = []
    found.append(b"".join(small))
    # An empty one would wait for a window of no bytes.
    return [piece for piece in found if piece]
