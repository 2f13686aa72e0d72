"""The server's end of HTTP/2 with many streams: events one by one, windows, and bounds."""

from __future__ import annotations

import contextlib
import struct

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.http2 import framing, many_streams
from brokerd.http2.errors import Http2Error
from brokerd.http2.framing import frame, settings_frame
from brokerd.http2.many_streams import (
    Data,
    Event,
    Http2Server,
    Request,
    Reset,
    Stream,
    WindowOpened,
)

START = framing.PREFACE + settings_frame([])
HEADERS = [(b":path", b"/a/b"), (b"x", b"y")]


def open_stream(number: int, *, ends: bool = False) -> bytes:
    flags = framing.END_HEADERS | (framing.END_STREAM if ends else 0)
    return frame(framing.HEADERS, flags, number, hpack.Encoder().encode(HEADERS))


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
    data = START + open_stream(1) + frame(framing.DATA, framing.END_STREAM, 1, b"hello")
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
    assert events_of(server, frame(framing.WINDOW_UPDATE, 0, 0, more)) == [WindowOpened()]
    assert server.send_data(one, data) == 0
    assert server.send_data(three, data) == 10
    widened = settings_frame([(framing.INITIAL_WINDOW_SIZE, 65_540)])
    assert events_of(server, widened + frame(framing.WINDOW_UPDATE, 0, 0, more)) == [
        WindowOpened(),
        WindowOpened(),
    ]
    assert server.send_data(one, data) == 5
    sizes = [len(payload) for kind, _, stream, payload in sent(server) if not kind and stream == 1]
    assert max(sizes) <= framing.FRAME_BYTES_DEFAULT


def test_trailers_before_the_end_of_a_body_give_it_up() -> None:
    server, [stream] = opened(1)
    server.send_headers(stream, b"\x88", ends=True)
    assert [kind for kind, *_ in sent(server)] == [framing.HEADERS, framing.RST_STREAM]
    late = frame(framing.DATA, 0, 1, bytes(1000))
    assert events_of(server, late) == []
    assert events_of(server, frame(framing.HEADERS, framing.END_HEADERS, 1, b"")) == []
    assert server.streams == {}


def test_a_smaller_table_of_headers_is_acknowledged_in_the_next_block() -> None:
    server, [stream] = opened(1)
    events_of(server, settings_frame([(framing.HEADER_TABLE_SIZE, 0)]))
    server.send_headers(stream, many_streams.encode_headers([(b":status", b"200")]))
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    block = next(payload for kind, *_, payload in sent(server) if kind == framing.HEADERS)
    assert decoder.decode(block, raw=True) == [(b":status", b"200")]


def test_what_is_received_is_given_back_to_the_connection_and_asked_for_by_stream() -> None:
    server, [stream] = opened(1)
    for _ in range(3):
        events_of(server, frame(framing.DATA, 0, 1, bytes(16_000)))
    updates = [(number, payload) for kind, _, number, payload in sent(server) if kind == 8]
    assert [number for number, _ in updates] == [0]
    assert stream.room == 65_535 - 48_000
    server.trust()
    server.allow(stream, 1000)
    assert [number for kind, _, number, _ in sent(server) if kind == 8] == [0, 1]
    assert (
        refused(server, frame(framing.DATA, 0, 1, bytes(16_000)) * 2) == framing.FLOW_CONTROL_ERROR
    )


def test_padding_and_priority_are_left_out() -> None:
    server = Http2Server()
    block = hpack.Encoder().encode(HEADERS)
    flags = framing.END_HEADERS | framing.PADDED | framing.WITH_PRIORITY
    padded = frame(framing.HEADERS, flags, 1, b"\x02" + bytes(5) + block + b"\0\0")
    data = frame(framing.DATA, framing.PADDED, 1, b"\x03abc\0\0\0")
    request, body = events_of(server, START + padded + data)
    assert isinstance(request, Request)
    assert request.headers == HEADERS
    assert body == Data(request.stream, b"abc", ends=False)
    assert request.stream.room == 65_535 - 3


def test_trailers_end_a_request_and_resets_give_it_up() -> None:
    server, [one, three] = opened(1, 3)
    flags = framing.END_HEADERS | framing.END_STREAM
    assert events_of(server, frame(framing.HEADERS, flags, 1, b"")) == [Data(one, b"", ends=True)]
    assert events_of(server, frame(framing.RST_STREAM, 0, 3, bytes(4))) == [Reset(three)]
    assert events_of(server, frame(framing.RST_STREAM, 0, 3, bytes(4))) == []


def test_no_streams_beyond_the_limit_or_after_goodbye() -> None:
    server, streams = opened(*range(1, 2 * many_streams.CONCURRENT_STREAMS_MAX + 2, 2))
    assert len(streams) == many_streams.CONCURRENT_STREAMS_MAX
    server.reset(streams[0], framing.CANCEL)
    server.reset(streams[0], framing.CANCEL)
    server.send_goaway(framing.NO_ERROR, "bye")
    assert [kind for kind, *_ in sent(server)] == [framing.RST_STREAM, framing.GOAWAY]
    number = 2 * many_streams.CONCURRENT_STREAMS_MAX + 3
    assert events_of(server, open_stream(number)) == []
    assert sent(server)[0][:3] == (framing.RST_STREAM, 0, number)


def test_unknown_frames_pings_and_goodbyes() -> None:
    server, _ = opened(1)
    events = events_of(
        server,
        frame(framing.PING, 0, 0, b"12345678")
        + frame(framing.PING, framing.ACK, 0, bytes(8))
        + frame(99, 0, 0, b"?")
        + frame(framing.PRIORITY, 0, 1, bytes(5))
        + settings_frame([])
        + frame(framing.SETTINGS, framing.ACK, 0)
        + frame(framing.GOAWAY, 0, 0, bytes(8)),
    )
    assert events == []
    assert [(kind, flags) for kind, flags, *_ in sent(server)] == [
        (framing.PING, framing.ACK),
        (framing.SETTINGS, framing.ACK),
    ]


def test_an_answer_ends_a_stream_whose_client_has_ended_it() -> None:
    server = Http2Server()
    (request,) = events_of(server, START + open_stream(1, ends=True))
    assert isinstance(request, Request)
    server.data_to_send()
    assert server.send_data(request.stream, memoryview(b"all of it")) == 9
    server.send_headers(request.stream, b"", ends=True)
    kinds = [kind for kind, *_ in sent(server)]
    assert kinds == [framing.DATA, framing.HEADERS], "there is nothing to reset"
    assert server.streams == {}
    # Its client may give it room all the same: that is no mistake.
    more = frame(framing.WINDOW_UPDATE, 0, 1, struct.pack(">I", 10))
    assert events_of(server, more) == [WindowOpened()]


def test_a_block_of_headers_may_come_in_pieces() -> None:
    server, block = Http2Server(), hpack.Encoder().encode(HEADERS)
    data = START + frame(framing.HEADERS, 0, 1, block[:3])
    assert events_of(server, data) == []
    data = frame(framing.CONTINUATION, framing.END_HEADERS, 1, block[3:])
    (found,) = events_of(server, data)
    assert isinstance(found, Request)
    assert found.headers == HEADERS


def test_the_connection_asks_for_a_sign_of_life() -> None:
    server, _ = opened(1)
    server.send_ping()
    assert sent(server) == [(framing.PING, 0, 0, bytes(8))]


def test_streams_together_are_given_room_before_they_run_out_of_it() -> None:
    server, _ = opened(1, 3, 5, 7, 9)
    body = bytes(framing.FRAME_BYTES_DEFAULT)
    for stream in (1, 3, 5, 7, 9):
        events_of(server, frame(framing.DATA, 0, stream, body))
    updates = [stream for kind, _, stream, _ in sent(server) if kind == framing.WINDOW_UPDATE]
    assert updates == [0, 0], "more than one window's worth, and none was refused"


def test_pings_are_no_flood_if_they_take_their_time() -> None:
    server, _ = opened(1)
    for _ in range(3):
        assert events_of(server, frame(framing.PING, 0, 0, bytes(8)) * 1900) == []
        server.forgive()


LONG = many_streams.HEADER_BYTES_MAX + 1
HEAD = struct.Struct(">IBI")


def head(size: int, kind: int, stream: int, flags: int = 0) -> bytes:
    """The head of a frame without the rest: it must be judged by that."""
    return HEAD.pack(size << 8 | kind, flags, stream)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (head(LONG, framing.HEADERS, 3), framing.ENHANCE_YOUR_CALM),
        (
            frame(framing.HEADERS, 0, 3, bytes(LONG - 2)) + head(2, framing.CONTINUATION, 3),
            framing.ENHANCE_YOUR_CALM,
        ),
        (head(LONG, framing.SETTINGS, 0), framing.FRAME_SIZE_ERROR),
        (head(16_385, framing.DATA, 1), framing.FRAME_SIZE_ERROR),
        (head(1, framing.DATA, 5), framing.PROTOCOL_ERROR),
        (head(1, framing.DATA, 0), framing.PROTOCOL_ERROR),
        (frame(framing.HEADERS, 0, 3) + head(0, framing.PING, 0), framing.PROTOCOL_ERROR),
        (frame(framing.HEADERS, 0, 3) + head(0, framing.CONTINUATION, 5), framing.PROTOCOL_ERROR),
        (frame(framing.CONTINUATION, 0, 1), framing.PROTOCOL_ERROR),
        (frame(framing.HEADERS, framing.END_HEADERS, 2), framing.PROTOCOL_ERROR),
        (frame(framing.HEADERS, framing.END_HEADERS, 1), framing.PROTOCOL_ERROR),
        (frame(framing.HEADERS, framing.PADDED, 3, b"\x09"), framing.PROTOCOL_ERROR),
        (frame(framing.HEADERS, framing.END_HEADERS, 3, b"\xff\xff"), framing.COMPRESSION_ERROR),
        (frame(framing.DATA, framing.PADDED, 1, b"\x05x"), framing.PROTOCOL_ERROR),
        (
            frame(framing.DATA, framing.END_STREAM, 1) + frame(framing.DATA, 0, 1),
            framing.STREAM_CLOSED,
        ),
        (frame(framing.RST_STREAM, 0, 7, bytes(4)), framing.PROTOCOL_ERROR),
        (frame(framing.SETTINGS, 0, 0, b"x"), framing.FRAME_SIZE_ERROR),
        (settings_frame([(framing.INITIAL_WINDOW_SIZE, 2**31)]), framing.FLOW_CONTROL_ERROR),
        (settings_frame([(framing.MAX_FRAME_SIZE, 1)]), framing.PROTOCOL_ERROR),
        (frame(framing.PING, 0, 0, b"x"), framing.FRAME_SIZE_ERROR),
        (frame(framing.WINDOW_UPDATE, 0, 0, b"x"), framing.FRAME_SIZE_ERROR),
        (frame(framing.WINDOW_UPDATE, 0, 0, bytes(4)), framing.PROTOCOL_ERROR),
        (frame(framing.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), framing.FLOW_CONTROL_ERROR),
        (
            frame(framing.WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 65_536))
            + settings_frame([(framing.INITIAL_WINDOW_SIZE, 2**31 - 1)]),
            framing.FLOW_CONTROL_ERROR,
        ),
        (frame(framing.PUSH_PROMISE, 0, 1), framing.PROTOCOL_ERROR),
        (frame(framing.PING, 0, 0, bytes(8)) * 2001, framing.ENHANCE_YOUR_CALM),
        (frame(framing.DATA, 0, 1) * 2001, framing.ENHANCE_YOUR_CALM),
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
        framing.PREFACE + frame(framing.PING, 0, 0, bytes(8)),
        framing.PREFACE + frame(framing.SETTINGS, framing.ACK, 0),
    ],
)
def test_what_does_not_begin_as_http2_does(data: bytes) -> None:
    assert refused(Http2Server(), data) == framing.PROTOCOL_ERROR


@given(st.binary(max_size=400))
def test_no_bytes_do_anything_else(data: bytes) -> None:
    server, _ = opened(1)
    with contextlib.suppress(Http2Error):
        events_of(server, data)
