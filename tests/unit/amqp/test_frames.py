"""Framing errors and content rules on an open server connection: the exact answers."""

from __future__ import annotations

import struct

import pytest

from brokerd.amqp import events, methods
from tests.unit.amqp.pair import (
    body_frame,
    flat,
    frame,
    header_frame,
    opened_server,
    publish_bytes,
    sent,
)

PUBLISH = methods.BasicPublish().encode(1)
ACK = methods.BasicAck(1).encode(1)
TABLE_Z = b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x04\x01kZ\x00"
OVERSIZE = b"\x00\x01" + (131073).to_bytes(4, "big")

#: bytes on channel 1, reply code, start of the explanation, failing class and method.
CONNECTION_ERRORS = [
    pytest.param(
        b"\x03" + OVERSIZE + bytes(20),
        501,
        "type 3, all octets = <<>>: {frame_too_large,131073,131064}",
        (0, 0),
        id="R-FRM-2 R-ERR-26 SEC-36 SEC-57 body",
    ),
    pytest.param(
        b"\x01" + OVERSIZE, 501, "type 1, all", (0, 0), id="R-FRM-2 SEC-36 method head alone"
    ),
    pytest.param(frame(1, 1, ACK[7:-1], 0), 501, "type 1", (0, 0), id="R-FRM-3 R-ERR-26 end octet"),
    pytest.param(frame(4, 1, b"x"), 501, "type 4", (0, 0), id="R-FRM-3 SEC-38 SEC-60 unknown type"),
    pytest.param(
        frame(8, 1, b""),
        505,
        "type 8, all octets = <<>>",
        (0, 0),
        id="R-FRM-3 heartbeat on channel 1",
    ),
    pytest.param(
        frame(8, 0, b"x"),
        501,
        'type 8, all octets = <<"x">>: unknown',
        (0, 0),
        id="heartbeat with payload",
    ),
    pytest.param(body_frame(0, b"x"), 505, "type 3, all", (0, 0), id="R-FRM-4 body on 0"),
    pytest.param(header_frame(0, 1), 505, "type 2, all", (0, 0), id="R-FRM-4 header on 0"),
    pytest.param(
        frame(1, 1, ACK[7:-2]), 501, "cannot decode <<0,0,0,", (60, 80), id="R-ERR-28 cut ack"
    ),
    pytest.param(
        frame(1, 1, ACK[7:-1] + b"\0"), 501, "cannot decode <<", (60, 80), id="R-FRM-5 long ack"
    ),
    pytest.param(
        frame(1, 1, PUBLISH[7:-2]), 501, "cannot decode <<", (60, 40), id="R-FRM-5 cut publish"
    ),
    pytest.param(frame(1, 1, b"\0\x3c"), 501, "type 1, all", (0, 0), id="R-FRM-5 no method id"),
    pytest.param(
        frame(1, 1, b"\0\x3c\x03\xe7"), 503, "unknown method", (60, 999), id="R-FRM-5 R-ERR-30"
    ),
    pytest.param(frame(1, 1, TABLE_Z), 502, "unknown field type 90", (50, 10), id="R-ERR-29"),
    pytest.param(
        methods.BasicDeliver("c", 1).encode(1), 503, "unimplemented", (60, 60), id="server's method"
    ),
    pytest.param(
        methods.ConnectionOpen("/").encode(1), 503, "unimplemented", (10, 40), id="class 10 on 1"
    ),
    pytest.param(body_frame(1, b"x"), 505, "expected method frame", (0, 0), id="R-ERR-27 body"),
    pytest.param(header_frame(1, 1), 505, "expected method frame", (0, 0), id="R-FRM-6 header"),
    pytest.param(
        PUBLISH + body_frame(1, b"x"),
        505,
        "expected content header for class 60, got non content header frame instead",
        (60, 40),
        id="R-FRM-6 R-ERR-27 body without header",
    ),
    pytest.param(
        PUBLISH + PUBLISH,
        505,
        "expected content header for class 60, got non content header frame instead",
        (60, 40),
        id="R-FRM-6 method instead of header",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 1) + ACK,
        505,
        "expected content body, got non content body frame instead",
        (60, 40),
        id="R-FRM-6 method instead of body",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 1) + header_frame(1, 1),
        505,
        "expected content body, got non content body frame instead",
        (60, 40),
        id="R-FRM-6 second header",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 1, class_id=50),
        505,
        "expected content header for class 60, got one for class 50 instead",
        (60, 40),
        id="R-FRM-6 R-ERR-27 wrong class",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 1, weight=1),
        505,
        "expected content header for class 60, got non content header frame instead",
        (60, 40),
        id="R-FRM-6 weight",
    ),
    pytest.param(
        PUBLISH + frame(2, 1, bytes(11)),
        501,
        "type 2, all octets",
        (0, 0),
        id="R-FRM-5 short header",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 0, raw=b"\x80\x00\x09a"),
        502,
        "malformed basic properties",
        (60, 40),
        id="malformed properties",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 3) + body_frame(1, b"four"),
        501,
        "content body frame exceeds remaining content size",
        (60, 40),
        id="R-FRM-7 SEC-41",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 0) + body_frame(1, b"x"),
        505,
        "expected method frame",
        (0, 0),
        id="R-FRM-9 body after an empty message",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 512 * 1024 * 1024 + 1),
        501,
        "content body size 536870913 exceeds maximum allowed size",
        (60, 40),
        id="R-FRM-7 SEC-40 SEC-58",
    ),
    pytest.param(
        PUBLISH + header_frame(1, 2**64 - 1),
        501,
        "content body size",
        (60, 40),
        id="SEC-40 2**64-1",
    ),
    pytest.param(methods.ChannelOpen().encode(1), 504, "second 'channel.open' seen", (20, 10)),
    pytest.param(
        methods.BasicAck(1).encode(2), 504, "expected 'channel.open'", (60, 80), id="R-CH-1"
    ),
    pytest.param(publish_bytes(2, b"x"), 504, "expected 'channel.open'", (60, 40), id="R-ERR-25"),
    pytest.param(body_frame(2, b"x"), 504, "expected 'channel.open'", (0, 0), id="R-CH-1 body"),
]


@pytest.mark.parametrize("is_bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize(("data", "code", "explanation", "ids"), CONNECTION_ERRORS)
def test_connection_errors(
    data: bytes, code: int, explanation: str, ids: tuple[int, int], is_bytewise: bool
) -> None:
    """R-CON-15: good messages before the mistake are kept, the answer is one connection.close."""
    machine = opened_server(channels=(1,))
    good = publish_bytes(1, b"good")
    found: list[events.Event] = []
    pieces = [good + data] if not is_bytewise else [bytes((b,)) for b in good + data]
    for piece in pieces:
        found += machine.receive_data(piece, 0)
    *published, second = flat(found)
    assert published[0] == ("publish", 1, methods.BasicPublish(0, "x", "k").encode(1)[7:-1],
                            b"\0\0", b"good")  # fmt: skip
    assert isinstance(second, events.ConnectionFailed)
    assert second.code == code
    ((channel, close),) = sent(machine)
    assert channel == 0
    assert isinstance(close, methods.ConnectionClose)
    assert (close.reply_code, close.class_id, close.method_id) == (code, *ids)
    assert close.reply_text == second.reason
    if code == 501 and is_bytewise:
        # What is quoted of a frame that is not read is what has arrived of it.
        explanation = explanation[:6]
    assert close.reply_text.split(" - ", 1)[1].startswith(explanation)
    machine.check_invariants()
    # Everything later is ignored; the answer is still understood if frame borders are known.
    assert machine.receive_data(publish_bytes(1, b"late"), 0) == []
    assert machine.overview()["unread_bytes"] == 0


def test_errors_that_keep_frame_borders_still_read_the_answer() -> None:
    machine = opened_server(channels=(1,))
    late = publish_bytes(1, b"late") + methods.ConnectionCloseOk().encode(0)
    found = machine.receive_data(body_frame(1, b"x") + late, 0)
    assert [type(e) for e in found] == [events.ConnectionFailed, events.ConnectionClosed]
    assert machine.wants_close


def test_frame_with_the_slack_passes_and_one_more_does_not() -> None:
    """R-FRM-2: payload up to frame_max - 8 + 8."""
    machine = opened_server(channels=(1,), max_message_size=1 << 20)
    body = bytes(131072)
    (event,) = machine.receive_data(PUBLISH + header_frame(1, len(body)) + body_frame(1, body), 0)
    assert isinstance(event, events.PublishesReceived)
    too_long = PUBLISH + header_frame(1, len(body) + 1) + body_frame(1, body + b"x")
    (event,) = machine.receive_data(too_long, 0)
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == 501


def test_bodies_may_come_in_any_number_of_frames() -> None:
    """R-FRM-6: empty body frames are legal in between."""
    machine = opened_server(channels=(1,))
    data = PUBLISH + header_frame(1, 5)
    for piece in (b"", b"ab", b"", b"c", b"de"):
        data += body_frame(1, piece)
    (event,) = machine.receive_data(data, 0)
    assert event == events.PublishesReceived(1, [(PUBLISH[7:-1], b"\0\0", b"abcde")])


def test_message_above_the_configured_size_costs_the_channel_only() -> None:
    """R-FRM-8, R-ERR-34, R-ERR-46, R-ERR-47, SEC-43: its body is swallowed."""
    machine = opened_server(channels=(1, 2), max_message_size=10)
    data = publish_bytes(1, b"ok") + publish_bytes(1, b"too long for us") + publish_bytes(2, b"ok")
    found = machine.receive_data(data, 0)
    text = "PRECONDITION_FAILED - message size 15 is larger than configured max size 10"
    assert [type(e) for e in found] == [
        events.PublishesReceived,
        events.ChannelError,
        events.PublishesReceived,
    ]
    assert found[1] == events.ChannelError(1, 406, text, 60, 40)
    assert sent(machine) == [(1, methods.ChannelClose(406, text, 60, 40))]
    machine.check_invariants()


def test_memory_follows_what_arrived_not_what_was_announced() -> None:
    """SEC-40, SEC-58: nothing is claimed for an announced body."""
    machine = opened_server(channels=(1,), max_message_size=512 * 1024 * 1024)
    assert machine.receive_data(PUBLISH + header_frame(1, 500 * 1024 * 1024), 0) == []
    overview = machine.overview()
    assert overview["unread_bytes"] == 0
    content = machine._channels[1].content
    assert content is not None
    assert content.body == b""


def test_publishes_of_one_read_are_one_event_per_run() -> None:
    """design/hot-path.md rule 1; the order across channels is kept."""
    machine = opened_server(channels=(1, 2))
    run = b"".join(publish_bytes(1, bytes([n]), key=f"k{n % 2}") for n in range(10))
    data = run + publish_bytes(2, b"z") + run + methods.QueueDeclare(queue="q").encode(1) + run
    found = machine.receive_data(data, 0)
    assert [type(e) for e in found] == [
        events.PublishesReceived,
        events.PublishesReceived,
        events.PublishesReceived,
        events.MethodReceived,
        events.PublishesReceived,
    ]
    bodies = [item[2] for item in found[0].items]  # type: ignore[union-attr]
    assert bodies == [bytes([n]) for n in range(10)]


def test_acks_of_one_read_are_one_event() -> None:
    """design/hot-path.md rule 4."""
    machine = opened_server(channels=(1, 2))
    data = b"".join(methods.BasicAck(n, n == 3).encode(1) for n in range(1, 6))
    found = machine.receive_data(data + methods.BasicAck(7).encode(2) + data, 0)
    run = [(1, False), (2, False), (3, True), (4, False), (5, False)]
    assert found == [
        events.AcksReceived(1, run),
        events.AcksReceived(2, [(7, False)]),
        events.AcksReceived(1, run),
    ]


def test_wrong_frame_inside_a_run_of_acks_is_judged() -> None:
    machine = opened_server(channels=(1,))
    found = machine.receive_data(ACK + ACK[:-1] + b"\x00" + ACK, 0)
    assert found[0] == events.AcksReceived(1, [(1, False)])
    assert isinstance(found[1], events.ConnectionFailed)
    assert len(found) == 2


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 8])
def test_tiny_method_frames_do_not_confuse_the_fast_way(size: int) -> None:
    """A method frame shorter than its ids, followed by octets that look like them."""
    machine = opened_server(channels=(1,))
    payload = b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00"[:size]
    found = machine.receive_data(
        publish_bytes(1, b"") + frame(1, 1, payload) + b"\x00\x3c\x00\x28" + bytes(60), 0
    )
    assert isinstance(found[-1], events.ConnectionFailed)
    assert found[-1].code == 501


def test_header_frame_shorter_than_its_fields_is_judged() -> None:
    for size in range(14):
        machine = opened_server(channels=(1,))
        payload = struct.pack(">HHQ", 60, 0, 0)[:size] if size < 12 else bytes((0, 60)) + bytes(10)
        payload = payload[:size]
        found = machine.receive_data(PUBLISH + frame(2, 1, payload) + bytes(60), 0)
        assert isinstance(found[-1], events.ConnectionFailed)
        assert found[-1].code == (501 if size < 12 else 502)


def outcome(data: bytes, is_bytewise: bool) -> tuple[list[object], list[tuple[int, str]]]:
    machine = opened_server(channels=(1, 2), max_message_size=100)
    found: list[events.Event] = []
    step = 1 if is_bytewise else len(data)
    for start in range(0, len(data), step):
        found += machine.receive_data(data[start : start + step], 0)
    for event in found:
        if isinstance(event, events.ConnectionFailed):
            # Framing errors quote what has arrived.
            event.reason = event.reason[:20]
    return flat(found), [(channel, method.NAME) for channel, method in sent(machine)]


RUNS = {
    "equal": [publish_bytes(1, b"body")] * 3,
    "unique": [publish_bytes(1, b"body", raw=b"\x00\x80\x02i" + bytes((n,))) for n in b"abc"],
    "empty": [publish_bytes(1, b"")] * 3,
    "acks": [methods.BasicAck(n).encode(1) for n in (1, 2, 3)],
}


@pytest.mark.parametrize("name", RUNS)
def test_fast_ways_take_only_what_is_right(name: str) -> None:
    """Any one octet of a run changed: the fast ways see what the careful way sees.

    Byte by byte no whole message is ever there at once, so only the careful way is taken.
    """
    data = b"".join(RUNS[name])
    assert outcome(data, False) == outcome(data, True)
    for position in range(len(data)):
        for change in (0x01, 0x02, 0x80, 0xFF):
            wrong = bytearray(data)
            wrong[position] ^= change
            # Octets behind it let a frame that became longer be whole.
            whole = bytes(wrong) + bytes(300)
            assert outcome(whole, False) == outcome(whole, True), (position, change)


def test_header_frame_above_frame_max_is_refused_in_a_run() -> None:
    """SEC-36: every frame, also a header with a huge table."""
    machine = opened_server(channels=(1,))
    entry = b"\x01kS" + (131_072).to_bytes(4, "big") + bytes(131_072)
    raw = b"\x20\x00" + len(entry).to_bytes(4, "big") + entry
    found = machine.receive_data(publish_bytes(1, b"x") + publish_bytes(1, b"x", raw=raw), 0)
    assert [type(e) for e in found] == [events.PublishesReceived, events.ConnectionFailed]
    assert len(flat(found)) == 2
