"""HTTP/2 of peer streams, two ends back to back: messages, windows, and what hostile peers send."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.http2 import framing, one_stream
from brokerd.http2.errors import Http2Error
from brokerd.http2.framing import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    settings_frame,
)
from brokerd.http2.one_stream import GoingAway, HeadersReceived, Http2Connection, StreamEnded

REQUEST = [(b":method", b"POST"), (b":path", b"/x")]
NO_SETTINGS = settings_frame([])


class Pair:
    """A client and a server, and the bytes between them."""

    def __init__(self) -> None:
        self.client = Http2Connection(is_client=True)
        self.server = Http2Connection(is_client=False)
        self.client.send_headers(REQUEST)
        self.to_server()
        self.to_client()

    def to_server(self) -> list[one_stream.Event]:
        return self.server.receive(b"".join(self.client.data_to_send()))

    def to_client(self) -> list[one_stream.Event]:
        return self.client.receive(b"".join(self.server.data_to_send()))


def data_of(events: Sequence[one_stream.Event]) -> bytes:
    return b"".join(bytes(event) for event in events if isinstance(event, memoryview))


def server() -> Http2Connection:
    """A server that heard the preface and the settings."""
    found = Http2Connection(is_client=False)
    found.receive(PREFACE + NO_SETTINGS)
    found.data_to_send()
    return found


def called() -> Http2Connection:
    """A server whose stream 1 was opened."""
    found = server()
    found.receive(headers_frame())
    return found


def headers_frame(stream: int = 1, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, hpack.Encoder().encode(REQUEST))


def word(value: int) -> bytes:
    return struct.pack(">I", value)


def kinds(written: Sequence[bytes | memoryview]) -> list[tuple[int, int, bytes]]:
    """(type, stream, payload) of the frames in what is to be written."""
    data, found = b"".join(written), []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


# ---- what works ---------------------------------------------------------------------------------


def test_headers_data_and_trailers_go_both_ways() -> None:
    pair = Pair()
    pair.client.send_data([b"he", b"llo"], 5)
    assert data_of(pair.to_server()) == b"hello"
    pair.server.send_headers([(b":status", b"200")])
    pair.server.send_data([b"answer"], 6)
    pair.server.send_headers([(b"grpc-status", b"0")], ends_stream=True)
    first, answer, last = pair.to_client()
    assert first == HeadersReceived([(b":status", b"200")], False)
    assert data_of([answer]) == b"answer"
    assert last == HeadersReceived([(b"grpc-status", b"0")], True)


def test_data_beyond_the_window_waits_for_it() -> None:
    pair = Pair()
    message = bytes(range(256)) * 1024
    pair.client.send_data([message], len(message))
    found = b""
    assert pair.client.is_blocked
    while len(found) < len(message):
        # Nobody has more on the way than the window.
        on_the_way = pair.client.data_to_send()
        assert sum(map(len, on_the_way)) <= framing.WINDOW_BYTES_DEFAULT + 100
        found += data_of(pair.server.receive(b"".join(on_the_way)))
        pair.to_client()
    assert found == message
    assert not pair.client.is_blocked


def test_wider_window_lets_a_whole_frame_through_at_once() -> None:
    pair = Pair()
    pair.server.open_window(1 << 20)
    pair.to_client()
    pair.client.send_data([bytes(500_000)], 500_000)
    assert not pair.client.is_blocked
    assert [kind for kind, _, _ in kinds(pair.client.data_to_send())] == [SETTINGS, DATA]


def test_messages_leave_in_order_when_the_first_was_held_back() -> None:
    pair = Pair()
    pair.client.send_data([b"a" * 70_000], 70_000)
    pair.client.send_data([b"b"], 1)
    found = data_of(pair.to_server())
    pair.to_client()
    assert found + data_of(pair.to_server()) == b"a" * 70_000 + b"b"


def test_large_pieces_of_a_message_are_not_copied() -> None:
    pair = Pair()
    pair.server.open_window(16 << 20)
    pair.to_client()
    large = bytes(range(256)) * (one_stream.FRAME_BYTES_MAX // 200)
    pieces = [b"head", b"", large, b"", b"be", b"tween", large, large, b"tail", b""]
    pair.client.send_data(pieces, sum(map(len, pieces)))
    out = pair.client.data_to_send()
    uncopied = [piece for piece in out if isinstance(piece, memoryview) and piece.obj is large]
    assert sum(map(len, uncopied)) == 3 * len(large)
    assert data_of(pair.server.receive(b"".join(out))) == b"".join(pieces)
    assert not pair.client.is_blocked


def test_trailers_give_up_what_waits_for_a_window() -> None:
    pair = Pair()
    pair.server.send_headers([(b":status", b"200")])
    pair.server.send_data([bytes(70_000)], 70_000)
    pair.server.send_headers([(b"grpc-status", b"8")], ends_stream=True)
    assert not pair.server.is_blocked
    assert isinstance(pair.to_client()[-1], HeadersReceived)


def test_smaller_initial_window_holds_back_and_frame_size_is_kept() -> None:
    """§6.9.2: the change counts for the open stream; below zero nothing may be sent."""
    pair = Pair()
    pair.client.send_data([bytes(100)], 100)
    pair.client.data_to_send()
    pair.client.receive(settings_frame([(framing.INITIAL_WINDOW_SIZE, 50)]))
    pair.client.send_data([b"x"], 1)
    assert pair.client.is_blocked
    pair.client.receive(frame(WINDOW_UPDATE, 0, 1, word(40_100)))
    assert not pair.client.is_blocked
    pair.client.receive(settings_frame([(framing.MAX_FRAME_SIZE, 16_384)]))
    pair.client.data_to_send()
    pair.client.send_data([bytes(40_000)], 40_000)
    sizes = [len(payload) for kind, _, payload in kinds(pair.client.data_to_send()) if not kind]
    assert sizes == [16_384, 16_384, 40_000 - 2 * 16_384]


def test_pings_and_settings_are_answered_and_unknown_frames_are_not() -> None:
    found = called()
    found.data_to_send()
    found.receive(frame(PING, 0, 0, b"12345678") + frame(77, 0, 5, b"?") + NO_SETTINGS)
    found.receive(frame(PING, ACK, 0, bytes(8)) + frame(SETTINGS, ACK, 0))
    found.receive(frame(PRIORITY, 0, 9, bytes(5)))
    assert kinds(found.data_to_send()) == [(PING, 0, b"12345678"), (SETTINGS, 0, b"")]


def test_ping_and_goaway_are_sent_as_asked() -> None:
    pair = Pair()
    pair.client.send_ping()
    assert pair.to_server() == []
    pair.to_client()
    pair.server.send_goaway(framing.ENHANCE_YOUR_CALM, "too fast")
    assert pair.to_client() == [GoingAway(framing.ENHANCE_YOUR_CALM, b"too fast")]


def test_reset_ends_the_stream_once() -> None:
    found = called()
    assert found.receive(frame(RST_STREAM, 0, 1, word(8)) * 2) == [StreamEnded(8)]


def test_end_of_the_stream_is_told_after_its_data() -> None:
    found = called()
    events = found.receive(frame(DATA, END_STREAM, 1, b"last"))
    assert data_of(events[:1]) == b"last"
    assert events[1:] == [StreamEnded()]
    assert called().receive(frame(DATA, END_STREAM, 1)) == [StreamEnded()]


def test_padding_and_priorities_are_left_out() -> None:
    found = server()
    block = hpack.Encoder().encode(REQUEST)
    padded = b"\x03" + bytes(5) + block + bytes(3)
    events = found.receive(frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, padded))
    assert events == [HeadersReceived(REQUEST, False)]
    assert data_of(found.receive(frame(DATA, PADDED, 1, b"\x02data\x00\x00"))) == b"data"
    assert found.receive(frame(DATA, PADDED | END_STREAM, 1, b"\x00")) == [StreamEnded()]


def test_headers_are_put_together_from_continuations() -> None:
    found = server()
    block = hpack.Encoder().encode(REQUEST)
    events = found.receive(
        frame(HEADERS, END_STREAM, 1, block[:1])
        + frame(CONTINUATION, 0, 1, block[1:3])
        + frame(CONTINUATION, END_HEADERS, 1, block[3:])
    )
    assert events == [HeadersReceived(REQUEST, True)]


def test_second_call_is_refused_and_the_first_goes_on() -> None:
    """Its data count for the connection's window only."""
    found = called()
    found.data_to_send()
    assert found.receive(headers_frame(3) + frame(DATA, 0, 3, bytes(40_000))) == []
    assert kinds(found.data_to_send()) == [
        (RST_STREAM, 3, word(framing.REFUSED_STREAM)),
        (WINDOW_UPDATE, 0, word(40_000)),
    ]
    assert data_of(found.receive(frame(DATA, 0, 1, b"first"))) == b"first"


def test_stream_and_connection_are_given_room_apart() -> None:
    found = called()
    found.receive(headers_frame(3) + frame(DATA, 0, 3, bytes(10_000)))
    found.data_to_send()
    # The connection has had the data of the refused call as well.
    found.receive(frame(DATA, 0, 1, bytes(25_000)))
    assert kinds(found.data_to_send()) == [(WINDOW_UPDATE, 0, word(35_000))]
    found.receive(frame(DATA, 0, 1, bytes(10_000)))
    assert kinds(found.data_to_send()) == [(WINDOW_UPDATE, 1, word(35_000))]


def test_room_for_a_call_that_was_refused_is_no_room_for_the_first() -> None:
    found = called()
    found.receive(headers_frame(3) + frame(WINDOW_UPDATE, 0, 3, word(1000)))
    found.receive(frame(WINDOW_UPDATE, 0, 0, word(100_000)))
    found.data_to_send()
    found.send_data([bytes(65_536)], 65_536)
    size = sum(len(payload) for kind, _, payload in kinds(found.data_to_send()) if kind == DATA)
    assert size == 65_535


def test_a_smaller_table_of_headers_is_kept_to() -> None:
    pair = Pair()
    pair.server.receive(settings_frame([(framing.HEADER_TABLE_SIZE, 0)]))
    pair.server.send_headers([(b":status", b"200"), (b"x-name", b"value")])
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    block = next(p for kind, _, p in kinds(pair.server.data_to_send()) if kind == HEADERS)
    assert [tuple(header) for header in decoder.decode(block, raw=True)][1] == (b"x-name", b"value")


# ---- what is wrong, and what is too much --------------------------------------------------------

FRAME_TOO_LARGE = (one_stream.FRAME_BYTES_MAX + 1).to_bytes(3, "big") + b"\0\0" + word(1)
WHOLE_TOO_LARGE = (one_stream.WHOLE_FRAME_BYTES_MAX + 1).to_bytes(3, "big") + b"\x01\x04" + word(1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (FRAME_TOO_LARGE, framing.FRAME_SIZE_ERROR),
        (WHOLE_TOO_LARGE, framing.FRAME_SIZE_ERROR),
        (frame(DATA, 0, 0, b"x"), framing.PROTOCOL_ERROR),
        (frame(DATA, 0, 5, b"x"), framing.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b"\x05abc"), framing.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b""), framing.PROTOCOL_ERROR),
        (frame(DATA, END_STREAM, 1) + frame(DATA, 0, 1, b"x"), framing.STREAM_CLOSED),
        (frame(DATA, END_STREAM, 1) + headers_frame(1), framing.STREAM_CLOSED),
        (headers_frame(0), framing.PROTOCOL_ERROR),
        (headers_frame(2), framing.PROTOCOL_ERROR),
        (headers_frame(5) + headers_frame(3), framing.STREAM_CLOSED),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09abc"), framing.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"abc"), framing.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), framing.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\x80"), framing.COMPRESSION_ERROR),
        (frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), framing.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, b"") + frame(DATA, 0, 1, b"x"), framing.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 3, b""), framing.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, b""), framing.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, b"x"), framing.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 0, word(1)), framing.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 9, word(1)), framing.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 1), framing.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, b"12345"), framing.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), framing.FRAME_SIZE_ERROR),
        (settings_frame([(framing.INITIAL_WINDOW_SIZE, 2**31)]), framing.FLOW_CONTROL_ERROR),
        (settings_frame([(framing.MAX_FRAME_SIZE, 100)]), framing.PROTOCOL_ERROR),
        (settings_frame([(framing.MAX_FRAME_SIZE, 1 << 24)]), framing.PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"short"), framing.FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, bytes(8)), framing.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 0, b"short"), framing.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), framing.FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 1, b"x"), framing.FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 1, word(0)), framing.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 9, word(1)), framing.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, word(2**31 - 1)), framing.FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 0, 1, word(2**31 - 1)), framing.FLOW_CONTROL_ERROR),
        (frame(PUSH_PROMISE, 0, 1, bytes(4)), framing.PROTOCOL_ERROR),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(data: bytes, code: int) -> None:
    with pytest.raises(Http2Error) as caught:
        called().receive(data)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX",
        b"\x16\x03\x01\x02\x00\x01",
        PREFACE + headers_frame(),
        PREFACE + frame(SETTINGS, ACK, 0),
        PREFACE + frame(DATA, 0, 1, b"x"),
    ],
)
def test_connection_begins_with_preface_and_settings(data: bytes) -> None:
    with pytest.raises(Http2Error) as caught:
        Http2Connection(is_client=False).receive(data)
    assert caught.value.code == framing.PROTOCOL_ERROR


def test_client_takes_no_streams_of_the_server() -> None:
    with pytest.raises(Http2Error):
        Pair().client.receive(headers_frame(2))


def test_more_data_than_the_window_ends_the_connection() -> None:
    """The window of one who is not admitted is 64 KiB; nothing is granted before it is read."""
    found = called()
    with pytest.raises(Http2Error) as caught:
        found.receive(frame(DATA, 0, 1, bytes(65_536)))
    assert caught.value.code == framing.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 1)),
        frame(RST_STREAM, 0, 1, word(8)),
        frame(WINDOW_UPDATE, 0, 1, word(1)),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(DATA, 0, 1),
        frame(DATA, PADDED, 1, b"\x00"),
        frame(99, 0, 0),
    ],
)
def test_flood_of_frames_without_messages_ends_the_connection(flood: bytes) -> None:
    """CVE-2019-9512, -9514, -9515, -9518."""
    found = called()
    with pytest.raises(Http2Error) as caught:
        found.receive(flood * (one_stream.IDLE_FRAMES_MAX + 1))
    assert caught.value.code == framing.ENHANCE_YOUR_CALM


def test_flood_of_calls_that_are_reset_ends_the_connection() -> None:
    """CVE-2023-44487: rapid reset."""
    found = called()
    encoder = hpack.Encoder()
    flood = b"".join(
        frame(HEADERS, END_HEADERS, stream, encoder.encode(REQUEST))
        + frame(RST_STREAM, 0, stream, word(8))
        for stream in range(3, 3 + 2 * one_stream.IDLE_FRAMES_MAX, 2)
    )
    with pytest.raises(Http2Error) as caught:
        found.receive(flood)
    assert caught.value.code == framing.ENHANCE_YOUR_CALM


def test_flood_of_continuations_ends_the_connection() -> None:
    """CVE-2024-27316; without bytes they are a flood of frames."""
    found = server()
    found.receive(frame(HEADERS, 0, 1, b""))
    with pytest.raises(Http2Error) as caught:
        found.receive(frame(CONTINUATION, 0, 1, bytes(1000)) * 17)
    assert caught.value.code == framing.ENHANCE_YOUR_CALM
    found = server()
    found.receive(frame(HEADERS, 0, 1, b""))
    with pytest.raises(Http2Error):
        found.receive(frame(CONTINUATION, 0, 1) * one_stream.IDLE_FRAMES_MAX)


def test_headers_that_unfold_to_more_than_they_are_end_the_connection() -> None:
    """A header bomb: one entry of the table, named again and again by one byte each."""
    encoder = hpack.Encoder()
    first = encoder.encode([(b"x", b"y" * 3000)])
    again = encoder.encode([(b"x", b"y" * 3000)])
    assert len(again) == 1
    with pytest.raises(Http2Error) as caught:
        server().receive(frame(HEADERS, END_HEADERS, 1, first + again * 5000))
    assert caught.value.code == framing.COMPRESSION_ERROR


def test_messages_pay_for_the_frames_around_them() -> None:
    """A peer that probes with each message, as gRPC's core does, is no flood."""
    found = called()
    one = (
        frame(DATA, 0, 1, b"x") + frame(PING, 0, 0, bytes(8)) + frame(WINDOW_UPDATE, 0, 0, word(1))
    )
    for _ in range(one_stream.IDLE_FRAMES_MAX):
        found.receive(one)
    pair = Pair()
    for _ in range(one_stream.IDLE_FRAMES_MAX * 2):
        pair.client.send_data([b"x"], 1)
        pair.client.data_to_send()
        pair.client.receive(frame(PING, 0, 0, bytes(8)))


# ---- however it is cut --------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_cuts_change_nothing(cuts: list[int]) -> None:
    data = (
        PREFACE
        + NO_SETTINGS
        + headers_frame()
        + frame(DATA, 0, 1, b"0123456789" * 5)
        + frame(DATA, PADDED, 1, b"\x01ab\0")
        + frame(PING, 0, 0, b"pingpong")
        + frame(DATA, END_STREAM, 1, b"end")
    )
    whole = Http2Connection(is_client=False)
    expected = whole.receive(data)
    cut = Http2Connection(is_client=False)
    events: list[one_stream.Event] = []
    at = 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        # A view is good until the next call.
        events += [
            memoryview(bytes(event)) if isinstance(event, memoryview) else event
            for event in cut.receive(data[at : at + size])
        ]
        at += size
    assert data_of(events) == data_of(expected) == b"0123456789" * 5 + b"ab" + b"end"
    others = [event for event in events if not isinstance(event, memoryview)]
    assert others == [event for event in expected if not isinstance(event, memoryview)]
    assert cut.data_to_send() == whole.data_to_send()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 4), st.binary())))
@settings(max_examples=300, deadline=None)
def test_nonsense_is_an_http2_error_or_nothing(
    frames: list[tuple[int, int, int, bytes]],
) -> None:
    for found in (called(), Pair().client):
        with contextlib.suppress(Http2Error):
            found.receive(b"".join(frame(*each) for each in frames))
