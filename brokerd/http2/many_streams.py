"""HTTP/2 (RFC 9113), the server's end with many streams: bytes in, events out (ADR 18).

For the gRPC port of clients; no sockets, no clock, no gRPC.  rpc_connection.py moves the bytes,
rpc_call.py serves the calls.  Events are taken one by one, so that the caller can stop in the
middle: nothing behind a request is looked at before it is known who sent it.  Everything that
the other side can make grow has a bound here; what breaks one, or the protocol, is an Http2Error,
which ends the connection.  Frame layout and codes are those of the members' connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import hpack

from brokerd.http2 import framing
from brokerd.http2.errors import Http2Error
from brokerd.http2.framing import Header

#: A block of headers, as it comes and as it unfolds: refused by its length, before it is read.
HEADER_BYTES_MAX = 8 * 1024
#: Largest frame of data that is accepted: the protocol's default.
DATA_FRAME_BYTES_MAX = framing.FRAME_BYTES_DEFAULT
#: Largest one that is sent, whatever the other side takes: streams have turns.
SENT_FRAME_BYTES_MAX = 64 * 1024
#: Streams at once, as announced to the other side; a client delays calls beyond them.
CONCURRENT_STREAMS_MAX = 2000
#: Frames that move nothing (one_stream.py); every stream may be given up at once.
IDLE_FRAMES_MAX = CONCURRENT_STREAMS_MAX
#: What all streams together may have on the way once somebody has logged in.
CONNECTION_WINDOW_BYTES = 1024 * 1024

_FRAME, _SETTING = framing.FRAME, framing.SETTING
_WORD, _TWO_WORDS = framing.WORD, framing.TWO_WORDS
#: "The table of headers has size 0 from now on" (RFC 7541 §6.3): we never put anything in it.
_NO_TABLE = b"\x20"


@dataclass(slots=True)
class Stream:
    """One stream: `window` is what it may send, `room` what the other side may still send."""

    id: int
    window: int
    room: int = framing.WINDOW_BYTES_DEFAULT
    #: The other side sends nothing more.
    has_ended: bool = False


@dataclass(slots=True)
class Request:
    """Headers that open a stream."""

    stream: Stream
    headers: list[Header]


@dataclass(slots=True)
class Data:
    """Data of a stream; `ends`: the last."""

    stream: Stream
    data: bytes
    ends: bool


@dataclass(slots=True)
class Reset:
    """The other side has given a stream up."""

    stream: Stream


@dataclass(slots=True)
class WindowOpened:
    """More may be sent."""


Event: TypeAlias = Request | Data | Reset | WindowOpened


class Http2Server:
    """The server's end of a connection.

    State: bytes that were not looked at yet (`_buffer` from `_at` on, `_skip` bytes of data to
    pass over); an unfinished block of headers; streams that are open on either side; windows.
    `out` holds what is to be written.

    In one piece: one machine, as RFC 9113 has it; every frame may concern all of its state.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.out: list[bytes | memoryview] = [
            framing.settings_frame(
                [
                    (framing.MAX_CONCURRENT_STREAMS, CONCURRENT_STREAMS_MAX),
                    (framing.MAX_HEADER_LIST_SIZE, HEADER_BYTES_MAX),
                ]
            )
        ]
        #: No new streams: the connection ends.
        self.is_leaving = False
        self._buffer = bytearray()
        self._at = 0
        self._skip = 0
        self._preface_left = framing.PREFACE
        self._is_open = False
        self._block = bytearray()
        self._block_stream = 0
        self._block_flags = 0
        self._stream_last = 0
        self._idle_frames = 0
        self._room = self._room_max = framing.WINDOW_BYTES_DEFAULT
        self._window = self._initial_window = framing.WINDOW_BYTES_DEFAULT
        self._frame_bytes = framing.FRAME_BYTES_DEFAULT
        self._says_no_table = False
        self._decoder = hpack.Decoder(max_header_list_size=HEADER_BYTES_MAX)

    # ---- sending --------------------------------------------------------------------------------

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return what is to be written, and forget it."""
        out = self.out
        self.out = []
        return out

    def send_headers(self, stream: Stream, block: bytes, *, ends: bool = False) -> None:
        """Send an encoded block of headers (which leaves the table alone), or trailers."""
        if self._says_no_table:
            self._says_no_table = False
            block = _NO_TABLE + block
        flags = framing.END_HEADERS | (framing.END_STREAM if ends else 0)
        self.out.append(framing.frame(framing.HEADERS, flags, stream.id, block))
        if ends:
            if not stream.has_ended:
                # RFC 9113 §8.1: it need not send the rest.
                self._reset(stream.id, framing.NO_ERROR)
            self.streams.pop(stream.id, None)

    def send_data(self, stream: Stream, data: memoryview) -> int:
        """Send as much of the data as the windows let; return how much that was."""
        sent = 0
        while sent < len(data):
            size = min(
                len(data) - sent,
                self._frame_bytes,
                SENT_FRAME_BYTES_MAX,
                stream.window,
                self._window,
            )
            if size <= 0:
                break
            stream.window -= size
            self._window -= size
            self.out.append(_FRAME.pack(size << 8, 0, stream.id))
            self.out.append(data[sent : sent + size])
            sent += size
            self._something_moved()
        return sent

    def reset(self, stream: Stream, code: int) -> None:
        """Give a stream up."""
        if self.streams.pop(stream.id, None) is not None:
            self._reset(stream.id, code)

    def _reset(self, stream: int, code: int) -> None:
        self.out.append(framing.frame(framing.RST_STREAM, 0, stream, _WORD.pack(code)))

    def send_ping(self) -> None:
        """Ask for a sign of life."""
        self.out.append(framing.frame(framing.PING, 0, 0, bytes(8)))

    def send_goaway(self, code: int, text: str = "") -> None:
        """Say that no further stream is taken, and why."""
        self.is_leaving = True
        payload = _TWO_WORDS.pack(self._stream_last, code) + text.encode()[:200]
        self.out.append(framing.frame(framing.GOAWAY, 0, 0, payload))

    def allow(self, stream: Stream, size: int) -> None:
        """Let the other side send that many bytes more on a stream."""
        stream.room += size
        self.out.append(framing.frame(framing.WINDOW_UPDATE, 0, stream.id, _WORD.pack(size)))

    def trust(self) -> None:
        """Somebody has logged in: more may be on the way."""
        self._room_max = CONNECTION_WINDOW_BYTES
        self._grant()

    def _grant(self) -> None:
        if self._room <= self._room_max // 2:
            size = self._room_max - self._room
            self.out.append(framing.frame(framing.WINDOW_UPDATE, 0, 0, _WORD.pack(size)))
            self._room = self._room_max

    # ---- receiving ------------------------------------------------------------------------------

    def receive(self, data: bytes | memoryview) -> None:
        """Take what was read; `next_event` says what it means."""
        self._buffer += data

    def next_event(self) -> Event | None:
        """Return what came next, None if more must be read first."""
        while True:
            if self._skip or self._preface_left:
                self._pass_over()
            left = len(self._buffer) - self._at
            if self._skip or self._preface_left or left < framing.FRAME_HEADER_BYTES:
                break
            word, flags, stream = _FRAME.unpack_from(self._buffer, self._at)
            size, kind, stream = word >> 8, word & 0xFF, stream & framing.WINDOW_BYTES_MAX
            self._check_frame(kind, size, stream)
            if not kind and stream not in self.streams:
                self._at += framing.FRAME_HEADER_BYTES
                self._pass_data_over(stream, size)
                continue
            if left - framing.FRAME_HEADER_BYTES < size:
                break
            begin = self._at + framing.FRAME_HEADER_BYTES
            self._at = begin + size
            event = self._take_frame(kind, flags, stream, bytes(self._buffer[begin : self._at]))
            if event is not None:
                return event
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        return None

    def _pass_over(self) -> None:
        """Take the preface, or data to pass over, as far as it has come."""
        count = min(self._skip, len(self._buffer) - self._at)
        self._at += count
        self._skip -= count
        if self._preface_left:
            count = min(len(self._preface_left), len(self._buffer))
            if self._buffer[:count] != self._preface_left[:count]:
                raise Http2Error(framing.PROTOCOL_ERROR, "not HTTP/2")
            self._preface_left = self._preface_left[count:]
            self._at = count

    def _check_frame(self, kind: int, size: int, stream: int) -> None:
        """Judge a frame by its head, before the rest has come."""
        if not self._is_open and kind != framing.SETTINGS:
            raise Http2Error(framing.PROTOCOL_ERROR, "no settings")
        if self._block_stream and (kind != framing.CONTINUATION or stream != self._block_stream):
            raise Http2Error(framing.PROTOCOL_ERROR, "headers were not finished")
        if kind in (framing.HEADERS, framing.CONTINUATION):
            if len(self._block) + size > HEADER_BYTES_MAX:
                raise Http2Error(
                    framing.ENHANCE_YOUR_CALM, f"more than {HEADER_BYTES_MAX} bytes of headers"
                )
        elif size > (HEADER_BYTES_MAX if kind else DATA_FRAME_BYTES_MAX):
            raise Http2Error(framing.FRAME_SIZE_ERROR, f"frame of {size} bytes")

    def _pass_data_over(self, stream: int, size: int) -> None:
        """Data of a stream that was ended here may still be on the way."""
        if not 0 < stream <= self._stream_last:
            raise Http2Error(framing.PROTOCOL_ERROR, "data out of place")
        self.count_idle()
        self._account(size)
        self._skip = size

    def _account(self, size: int) -> None:
        # Given back at once: what is not taken yet is counted by stream, so that one of which
        # nothing is taken does not stop the others.  More than half of the window is left behind
        # each frame, and no frame is so large.
        self._room -= size
        self._grant()

    def count_idle(self) -> None:
        """Count what moves nothing; Http2Error if it is a flood."""
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise Http2Error(framing.ENHANCE_YOUR_CALM, "a flood of frames without messages")

    def forgive(self) -> None:
        """Called now and then: a ping every few seconds is no flood, however long it goes on."""
        self._idle_frames = 0

    def _something_moved(self) -> None:
        if self._idle_frames:
            self._idle_frames = max(0, self._idle_frames - framing.IDLE_FRAMES_PER_DATA)

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Event | None:
        if kind == framing.DATA:
            return self._take_data(flags, self.streams[stream], payload)
        if kind != framing.HEADERS:
            self.count_idle()
        # §5.5: unknown frames are ignored.
        take = _TAKE.get(kind)
        return take(self, flags, stream, payload) if take is not None else None

    def _take_data(self, flags: int, stream: Stream, payload: bytes) -> Event | None:
        if stream.has_ended:
            raise Http2Error(framing.STREAM_CLOSED, "data after the end")
        size = len(payload)
        self._account(size)
        stream.room -= size
        if stream.room < 0:
            raise Http2Error(framing.FLOW_CONTROL_ERROR, "more data than the window")
        if flags & framing.PADDED:
            if not payload or payload[0] >= size:
                raise Http2Error(framing.PROTOCOL_ERROR, "more padding than data")
            # Padding moves nothing, and no call takes it.
            self.allow(stream, payload[0] + 1)
            payload = payload[1 : size - payload[0]]
        stream.has_ended = bool(flags & framing.END_STREAM)
        if payload and not flags & framing.PADDED:
            self._something_moved()
        else:
            self.count_idle()
        return Data(stream, payload, stream.has_ended)

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> Event | None:
        if not stream % 2:
            raise Http2Error(framing.PROTOCOL_ERROR, "a stream of the wrong side")
        begin, end = 0, len(payload)
        if flags & framing.PADDED:
            begin, end = 1, end - (payload[0] if payload else 0)
        if flags & framing.WITH_PRIORITY:
            begin += 5
        if begin > end:
            raise Http2Error(framing.PROTOCOL_ERROR, "more padding than headers")
        self._block = bytearray(payload[begin:end])
        self._block_stream, self._block_flags = stream, flags
        return self._end_block(flags)

    def _take_continuation(self, flags: int, stream: int, payload: bytes) -> Event | None:
        if not self._block_stream:
            raise Http2Error(framing.PROTOCOL_ERROR, "continuation of nothing")
        self._block += payload
        return self._end_block(flags)

    def _end_block(self, flags: int) -> Event | None:
        if not flags & framing.END_HEADERS:
            return None
        try:
            # Also for a stream that is refused: the table of headers is the connection's.
            headers = self._decoder.decode(bytes(self._block), raw=True)
        except hpack.HPACKError as error:
            raise Http2Error(framing.COMPRESSION_ERROR, f"headers: {error}") from error
        number, ends = self._block_stream, bool(self._block_flags & framing.END_STREAM)
        self._block, self._block_stream = bytearray(), 0
        if number <= self._stream_last:
            return self._take_trailers(number, ends)
        self._stream_last = number
        if self.is_leaving or len(self.streams) >= CONCURRENT_STREAMS_MAX:
            self.count_idle()
            self._reset(number, framing.REFUSED_STREAM)
            return None
        stream = Stream(number, self._initial_window, has_ended=ends)
        self.streams[number] = stream
        return Request(stream, [(bytes(name), bytes(value)) for name, value in headers])

    def _take_trailers(self, number: int, ends: bool) -> Event | None:
        self.count_idle()
        stream = self.streams.get(number)
        if stream is None:
            return None
        if stream.has_ended or not ends:
            raise Http2Error(framing.PROTOCOL_ERROR, "headers out of place")
        stream.has_ended = True
        return Data(stream, b"", ends=True)

    def _take_reset(self, flags: int, number: int, payload: bytes) -> Event | None:
        if len(payload) != 4 or not 0 < number <= self._stream_last:
            raise Http2Error(framing.PROTOCOL_ERROR, "reset of nothing")
        stream = self.streams.pop(number, None)
        return Reset(stream) if stream is not None else None

    def _take_settings(self, flags: int, stream: int, payload: bytes) -> Event | None:
        if stream or len(payload) % 6 or (flags & framing.ACK and payload):
            raise Http2Error(framing.FRAME_SIZE_ERROR, "settings")
        if flags & framing.ACK:
            if not self._is_open:
                raise Http2Error(framing.PROTOCOL_ERROR, "no settings")
            return None
        self._is_open = True
        # The last of each name counts; a thousand of one name cost no more than one.
        found = dict(_SETTING.iter_unpack(payload))
        window = found.get(framing.INITIAL_WINDOW_SIZE, self._initial_window)
        if window > framing.WINDOW_BYTES_MAX:
            raise Http2Error(framing.FLOW_CONTROL_ERROR, "a window over its limit")
        self._frame_bytes = found.get(framing.MAX_FRAME_SIZE, self._frame_bytes)
        if not framing.FRAME_BYTES_DEFAULT <= self._frame_bytes < 1 << 24:
            raise Http2Error(framing.PROTOCOL_ERROR, "frame size out of range")
        self._says_no_table = self._says_no_table or framing.HEADER_TABLE_SIZE in found
        self.out.append(framing.frame(framing.SETTINGS, framing.ACK, 0))
        if window == self._initial_window:
            return None
        for known in self.streams.values():
            known.window += window - self._initial_window
            if known.window > framing.WINDOW_BYTES_MAX:
                raise Http2Error(framing.FLOW_CONTROL_ERROR, "a window over its limit")
        self._initial_window = window
        return WindowOpened()

    def _take_ping(self, flags: int, stream: int, payload: bytes) -> Event | None:
        if stream or len(payload) != 8:
            raise Http2Error(framing.FRAME_SIZE_ERROR, "ping")
        if not flags & framing.ACK:
            self.out.append(framing.frame(framing.PING, framing.ACK, 0, payload))
        return None

    def _take_window_update(self, flags: int, number: int, payload: bytes) -> Event | None:
        if len(payload) != 4:
            raise Http2Error(framing.FRAME_SIZE_ERROR, "window")
        increment = _WORD.unpack(payload)[0] & framing.WINDOW_BYTES_MAX
        if not increment or number > self._stream_last:
            raise Http2Error(framing.PROTOCOL_ERROR, "a window of nothing")
        window = 0
        if not number:
            self._window = window = self._window + increment
        elif number in self.streams:
            stream = self.streams[number]
            stream.window = window = stream.window + increment
        if window > framing.WINDOW_BYTES_MAX:
            raise Http2Error(framing.FLOW_CONTROL_ERROR, "a window over its limit")
        return WindowOpened()

    def _take_push(self, flags: int, stream: int, payload: bytes) -> Event | None:
        raise Http2Error(framing.PROTOCOL_ERROR, "push promise")


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Return a block that leaves the table of headers alone, so that it fits any connection."""
    never = [hpack.NeverIndexedHeaderTuple(name, value) for name, value in headers]
    return bytes(hpack.Encoder().encode(never))


_TAKE: dict[int, Callable[[Http2Server, int, int, bytes], Event | None]] = {
    framing.HEADERS: Http2Server._take_headers,
    framing.RST_STREAM: Http2Server._take_reset,
    framing.SETTINGS: Http2Server._take_settings,
    framing.PUSH_PROMISE: Http2Server._take_push,
    framing.PING: Http2Server._take_ping,
    framing.WINDOW_UPDATE: Http2Server._take_window_update,
    framing.CONTINUATION: Http2Server._take_continuation,
}
