"""The server's end of HTTP/2 with many streams: events one by one, windows, and bounds."""

from __future__ import annotations

import contextlib
import struct

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.errors import Http2Error
from brokerd.cluster.peer import http2
from brokerd.cluster.peer.http2 import frame, settings_frame
from brokerd.server.grpc import rpc_http2
from brokerd.server.grpc.rpc_http2 import (
    Data,
    Event,
    Http2Server,
    Request,
    Reset,
    Stream,
    WindowOpened,
)

START = http2.PREFACE + settings_frame([])
HEADERS = [(b":path", b"/a/b"), (b"x", b"y")]


def open_stream(number: int, *, ends: bool = False) -> bytes:
    flags = http2.END_HEADERS | (http2.END_STREAM if ends else 0)
    return frame(http2.HEADERS, flags, number, hpack.Encoder().encode(HEADERS))


def events_of(server: Http2Server, data: bytes) -> list[Event]:
    server.receive(data)
    found = []
    while (event := server.next_event()) is not None:
        found.append(event)
    return found


def opened(*numbers: int) -> tuple[Http2Server, list[Stream]]:
    server = Http2Server()
    found = events_of(server, START + b"".join(map(open_stream, numbers)))
    server.data_to_send()
    return server, [event.stream for event in found if isinstance(event, Request)]


def sent(server: Http2Server) -> list[tuple[int, int, int, bytes]]:
    data, found = b"".join(server.data_to_send()), []
    while data:
        size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
        stream = int.from_bytes(data[5:9], "big")
        found.append((kind, flags, stream, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def refused(server: Http2Server, data: bytes) -> int:
    with pytest.raises(Http2Error) as caught:
        events_of(server, data)
    return caught.value.code


@given(st.lists(st.integers(1, 40), min_size=1))
def test_a_call_is_found_however_the_bytes_are_cut(cuts: list[int]) -> None:
    server, found, at = Http2Server(), [], 0
    data = START + open_stream(1) + frame(http2.DATA, http2.END_STREAM, 1, b"hello")
    while at < len(data):
        size = cuts[at % len(cuts)]
        found += events_of(server, data[at : at + size])
        at += size
    (stream,) = server.streams.values()
    assert stream.has_ended
    assert found == [Request(stream, HEADERS), Data(stream, b"hello", ends=True)]


def test_events_are_taken_one_by_one() -> None:
    server = Http2Server()
    server.receive(START + open_stream(1) + open_stream(3))
    assert isinstance(server.next_event(), Request)
    assert list(server.streams) == [1]


def test_data_go_as_far_as_the_windows_let() -> None:
    server, [one, three] = opened(1, 3)
    data = memoryview(bytes(100_000))
    assert server.send_data(one, data) == 65_535
    assert server.send_data(three, data) == 0
    more = struct.pack(">I", 10)
    assert events_of(server, frame(http2.WINDOW_UPDATE, 0, 0, more)) == [WindowOpened()]
    assert server.send_data(one, data) == 0
    assert server.send_data(three, data) == 10
    widened = settings_frame([(http2.INITIAL_WINDOW_SIZE, 65_540)])
    assert events_of(server, widened + frame(http2.WINDOW_UPDATE, 0, 0, more)) == [
        WindowOpened(),
        WindowOpened(),
    ]
    assert server.send_data(one, data) == 5
    sizes = [len(payload) for kind, _, stream, payload in sent(server) if not kind and stream == 1]
    assert max(sizes) <= http2.FRAME_BYTES_DEFAULT


def test_trailers_before_the_end_of_a_body_give_it_up() -> None:
    server, [stream] = opened(1)
    server.send_headers(stream, b"\x88", ends=True)
    assert [kind for kind, *_ in sent(server)] == [http2.HEADERS, http2.RST_STREAM]
    late = frame(http2.DATA, 0, 1, bytes(1000))
    assert events_of(server, late) == []
    assert events_of(server, frame(http2.HEADERS, http2.END_HEADERS, 1, b"")) == []
    assert server.streams == {}


def test_a_smaller_table_of_headers_is_acknowledged_in_the_next_block() -> None:
    server, [stream] = opened(1)
    events_of(server, settings_frame([(http2.HEADER_TABLE_SIZE, 0)]))
    server.send_headers(stream, rpc_http2.encode_headers([(b":status", b"200")]))
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    block = next(payload for kind, *_, payload in sent(server) if kind == http2.HEADERS)
    assert decoder.decode(block, raw=True) == [(b":status", b"200")]


def test_what_is_received_is_given_back_to_the_connection_and_asked_for_by_stream() -> None:
    server, [stream] = opened(1)
    for _ in range(3):
        events_of(server, frame(http2.DATA, 0, 1, bytes(16_000)))
    updates = [(number, payload) for kind, _, number, payload in sent(server) if kind == 8]
    assert [number for number, _ in updates] == [0]
    assert stream.room == 65_535 - 48_000
    server.trust()
    server.allow(stream, 1000)
    assert [number for kind, _, number, _ in sent(server) if kind == 8] == [0, 1]
    assert refused(server, frame(http2.DATA, 0, 1, bytes(16_000)) * 2) == http2.FLOW_CONTROL_ERROR


def test_padding_and_priority_are_left_out() -> None:
    server = Http2Server()
    block = hpack.Encoder().encode(HEADERS)
    flags = http2.END_HEADERS | http2.PADDED | http2.WITH_PRIORITY
    padded = frame(http2.HEADERS, flags, 1, b"\x02" + bytes(5) + block + b"\0\0")
    data = frame(http2.DATA, http2.PADDED, 1, b"\x03abc\0\0\0")
    request, body = events_of(server, START + padded + data)
    assert isinstance(request, Request)
    assert request.headers == HEADERS
    assert body == Data(request.stream, b"abc", ends=False)
    assert request.stream.room == 65_535 - 3


def test_trailers_end_a_request_and_resets_give_it_up() -> None:
    server, [one, three] = opened(1, 3)
    flags = http2.END_HEADERS | http2.END_STREAM
    assert events_of(server, frame(http2.HEADERS, flags, 1, b"")) == [Data(one, b"", ends=True)]
    assert events_of(server, frame(http2.RST_STREAM, 0, 3, bytes(4))) == [Reset(three)]
    assert events_of(server, frame(http2.RST_STREAM, 0, 3, bytes(4))) == []


def test_no_streams_beyond_the_limit_or_after_goodbye() -> None:
    server, streams = opened(*range(1, 2 * rpc_http2.CONCURRENT_STREAMS_MAX + 2, 2))
    assert len(streams) == rpc_http2.CONCURRENT_STREAMS_MAX
    server.reset(streams[0], http2.CANCEL)
    server.reset(streams[0], http2.CANCEL)
    server.send_goaway(http2.NO_ERROR, "bye")
    assert [kind for kind, *_ in sent(server)] == [http2.RST_STREAM, http2.GOAWAY]
    number = 2 * rpc_http2.CONCURRENT_STREAMS_MAX + 3
    assert events_of(server, open_stream(number)) == []
    assert sent(server)[0][:3] == (http2.RST_STREAM, 0, number)


def test_unknown_frames_pings_and_goodbyes() -> None:
    server, _ = opened(1)
    events = events_of(
        server,
        frame(http2.PING, 0, 0, b"12345678")
        + frame(http2.PING, http2.ACK, 0, bytes(8))
        + frame(99, 0, 0, b"?")
        + frame(http2.PRIORITY, 0, 1, bytes(5))
        + settings_frame([])
        + frame(http2.SETTINGS, http2.ACK, 0)
        + frame(http2.GOAWAY, 0, 0, bytes(8)),
    )
    assert events == []
    assert [(kind, flags) for kind, flags, *_ in sent(server)] == [
        (http2.PING, http2.ACK),
        (http2.SETTINGS, http2.ACK),
    ]


def test_pings_are_no_flood_if_they_take_their_time() -> None:
    server, _ = opened(1)
    for _ in range(3):
        assert events_of(server, frame(http2.PING, 0, 0, bytes(8)) * 1900) == []
        server.forgive()


LONG = rpc_http2.HEADER_BYTES_MAX + 1
HEAD = struct.Struct(">IBI")


def head(size: int, kind: int, stream: int, flags: int = 0) -> bytes:
    """The head of a frame without the rest: it must be judged by that."""
    return HEAD.pack(size << 8 | kind, flags, stream)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (head(LONG, http2.HEADERS, 3), http2.ENHANCE_YOUR_CALM),
        (
            frame(http2.HEADERS, 0, 3, bytes(LONG - 2)) + head(2, http2.CONTINUATION, 3),
            http2.ENHANCE_YOUR_CALM,
        ),
        (head(LONG, http2.SETTINGS, 0), http2.FRAME_SIZE_ERROR),
        (head(16_385, http2.DATA, 1), http2.FRAME_SIZE_ERROR),
        (head(1, http2.DATA, 5), http2.PROTOCOL_ERROR),
        (head(1, http2.DATA, 0), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, 0, 3) + head(0, http2.PING, 0), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, 0, 3) + head(0, http2.CONTINUATION, 5), http2.PROTOCOL_ERROR),
        (frame(http2.CONTINUATION, 0, 1), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, http2.END_HEADERS, 2), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, http2.END_HEADERS, 1), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, http2.PADDED, 3, b"\x09"), http2.PROTOCOL_ERROR),
        (frame(http2.HEADERS, http2.END_HEADERS, 3, b"\xff\xff"), http2.COMPRESSION_ERROR),
        (frame(http2.DATA, http2.PADDED, 1, b"\x05x"), http2.PROTOCOL_ERROR),
        (frame(http2.DATA, http2.END_STREAM, 1) + frame(http2.DATA, 0, 1), http2.STREAM_CLOSED),
        (frame(http2.RST_STREAM, 0, 7, bytes(4)), http2.PROTOCOL_ERROR),
        (frame(http2.SETTINGS, 0, 0, b"x"), http2.FRAME_SIZE_ERROR),
        (settings_frame([(http2.INITIAL_WINDOW_SIZE, 2**31)]), http2.FLOW_CONTROL_ERROR),
        (settings_frame([(http2.MAX_FRAME_SIZE, 1)]), http2.PROTOCOL_ERROR),
        (frame(http2.PING, 0, 0, b"x"), http2.FRAME_SIZE_ERROR),
        (frame(http2.WINDOW_UPDATE, 0, 0, b"x"), http2.FRAME_SIZE_ERROR),
        (frame(http2.WINDOW_UPDATE, 0, 0, bytes(4)), http2.PROTOCOL_ERROR),
        (frame(http2.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), http2.FLOW_CONTROL_ERROR),
        (
            frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 65_536))
            + settings_frame([(http2.INITIAL_WINDOW_SIZE, 2**31 - 1)]),
            http2.FLOW_CONTROL_ERROR,
        ),
        (frame(http2.PUSH_PROMISE, 0, 1), http2.PROTOCOL_ERROR),
        (frame(http2.PING, 0, 0, bytes(8)) * 2001, http2.ENHANCE_YOUR_CALM),
        (frame(http2.DATA, 0, 1) * 2001, http2.ENHANCE_YOUR_CALM),
    ],
)
def test_what_breaks_the_protocol_or_a_bound_ends_the_connection(data: bytes, code: int) -> None:
    server, _ = opened(1)
    assert refused(server, data) == code


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/1.1",
        http2.PREFACE + frame(http2.PING, 0, 0, bytes(8)),
        http2.PREFACE + frame(http2.SETTINGS, http2.ACK, 0),
    ],
)
def test_what_does_not_begin_as_http2_does(data: bytes) -> None:
    assert refused(Http2Server(), data) == http2.PROTOCOL_ERROR


@given(st.binary(max_size=400))
def test_no_bytes_do_anything_else(data: bytes) -> None:
    server, _ = opened(1)
    with contextlib.suppress(Http2Error):
        events_of(server, data)
