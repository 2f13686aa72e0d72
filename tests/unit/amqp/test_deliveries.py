"""Whole deliveries in one read against the same bytes frame by frame (R-FRM-6, R-FRM-7)."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from brokerd.amqp import events, methods
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.events import Event
from brokerd.amqp.frames import content_frames
from brokerd.amqp.properties import BasicProperties
from tests.unit.amqp.pair import NO_PROPERTIES, ConnectionPair, header_frame

RAW = (NO_PROPERTIES, BasicProperties(delivery_mode=2, headers={"a": 1}).encode())
LIMIT = 20_000


def client() -> AmqpConnection:
    """A client with the channels 1 and 2 open, which takes no message beyond LIMIT."""
    pair = ConnectionPair()
    pair.client.config = replace(pair.client.config, max_message_size=LIMIT)
    pair.exchange()
    for number in (1, 2):
        pair.client.open_channel(number)
    pair.exchange()
    return pair.client


def delivery(
    tag: int, body: bytes, raw: bytes = RAW[0], key: str = "k", redelivered: bool = False
) -> list[bytes]:
    """The frames of one message on channel 1, the body cut as for 8 KiB."""
    content = content_frames(1, 60, raw, body, 8192)
    frames = [methods.BasicDeliver("tag", tag, redelivered, "x", key).encode(1)]
    for kind in range(0, len(content), 3):
        frames.append(b"".join(content[kind : kind + 3]))
    return frames


def read(pieces: list[bytes]) -> tuple[list[Event], bytes, int]:
    """What a client makes of these reads: events, what it answers, what it keeps."""
    machine = client()
    out: list[Event] = []
    for piece in pieces:
        out += machine.receive_data(piece, 0)
    machine.check_invariants()
    return out, machine.data_to_send(), machine.held_bytes


def plain(found: list[Event]) -> list[object]:
    """Events that can be compared, each delivery of a run by itself."""
    out: list[object] = []
    for event in found:
        if not isinstance(event, events.DeliveriesReceived):
            out.append(event)
            continue
        first = event.method
        for place, body in enumerate(event.bodies):
            method = methods.BasicDeliver(
                *(first.consumer_tag, first.delivery_tag + place, first.redelivered),
                *(first.exchange, first.routing_key),
            )
            out.append((event.channel, method.encode(1), event.header, body))
    return out


def same_in_one_read(frames: list[bytes]) -> list[Event]:
    """Fail unless one read gives what the frames give one by one; return the events."""
    whole, answer, held = read([b"".join(frames)])
    parts, expected, kept = read(frames)
    assert plain(whole) == plain(parts)
    assert (answer, held) == (expected, kept)
    return whole


def test_a_run_of_deliveries_is_what_its_frames_are() -> None:
    """Empty, split and equal bodies; other keys, tags, bits and properties in between."""
    frames: list[bytes] = []
    bodies = [b"", b"x" * 10, b"x" * 10, b"y" * 20_000, b"z" * 8184, b"z" * 8185, b""]
    for number, body in enumerate(bodies * 2):
        key = ("k", "k", "longer")[number % 3]
        frames += delivery(2**40 + number, body, RAW[number % 2], key, number % 4 == 0)
    found = same_in_one_read(frames)
    assert len(plain(found)) == len(bodies) * 2


def test_a_run_ends_where_anything_but_tag_and_body_changes() -> None:
    """Tags that are not the next, a redelivered one, other properties, another key."""
    frames: list[bytes] = []
    for tag, raw, key, redelivered in (
        *((1, 0, "k", False), (2, 0, "k", False)),
        *((4, 0, "k", False), (5, 0, "k", True)),
        *((6, 0, "k", True), (7, 1, "k", True)),
        *((8, 1, "l", True), (9, 1, "l", True), (9, 1, "l", True)),
    ):
        frames += delivery(tag, b"%d" % tag, RAW[raw], key, redelivered)
    found = same_in_one_read(frames)
    runs = [event for event in found if isinstance(event, events.DeliveriesReceived)]
    assert [run.method.delivery_tag for run in runs] == [1, 4, 5, 7, 8, 9]
    assert [len(run.bodies) for run in runs] == [2, 1, 2, 1, 2, 1]


def test_other_frames_may_stand_between_deliveries() -> None:
    """An ack, an answer, a delivery of another channel, a heartbeat."""
    other = [part.replace(b"\x00\x01", b"\x00\x02", 1) for part in delivery(9, b"two")]
    frames = [
        *delivery(1, b"one"),
        methods.BasicAck(3).encode(1),
        *other,
        *delivery(2, b"three"),
        b"\x08\x00\x00\x00\x00\x00\x00\xce",
        methods.BasicQosOk().encode(1),
        *delivery(3, b"four"),
    ]
    assert len(same_in_one_read(frames)) == 6


@pytest.mark.parametrize(
    "wrong",
    [
        [header_frame(1, 5, weight=1)],
        [header_frame(1, 5, class_id=50)],
        [header_frame(1, LIMIT + 1)],
        [header_frame(1, 5, raw=b"\x80\x00\x09")],
        [header_frame(2, 5)],
        [header_frame(1, 3), b"\x03\x00\x01\x00\x00\x00\x04abcd\xce"],
        [header_frame(1, 5), methods.BasicAck(3).encode(1)],
    ],
    ids=["weight", "class", "too large", "properties", "channel", "longer body", "method"],
)
def test_what_is_wrong_is_judged_by_the_general_path(wrong: list[bytes]) -> None:
    """R-FRM-6, R-FRM-7."""
    good, bad = delivery(1, b"one"), delivery(2, b"two")[:1]
    found = same_in_one_read([*good, *bad, *wrong])
    assert isinstance(found[0], events.DeliveriesReceived)
    assert not any(isinstance(event, events.DeliveriesReceived) for event in found[1:])


def test_a_wrong_octet_anywhere_is_seen_as_before() -> None:
    """The fast way takes nothing that the general one would not."""
    frames = delivery(7, b"first", RAW[1]) + delivery(8, b"other", RAW[1])
    whole = b"".join(frames)
    heads = {0, 1, 2, 3, 4, 5, 6}
    chooser = random.Random(1)
    start = 0
    for frame in frames:
        for place in range(len(frame)):
            if place in heads and place != 0:
                # Frames of another length have other borders; channels are tested above.
                continue
            wrong = bytearray(whole)
            wrong[start + place] ^= chooser.randrange(1, 256)
            cut, pos = [], 0
            for each in frames:
                cut.append(bytes(wrong[pos : pos + len(each)]))
                pos += len(each)
            same_in_one_read(cut)
        start += len(frame)


def test_a_delivery_in_two_reads_is_taken_whole_with_the_second() -> None:
    whole = b"".join(delivery(1, b"one", RAW[1]) + delivery(2, b"two", RAW[1]))
    expected = plain(read([whole])[0])
    for cut in range(1, len(whole)):
        assert plain(read([whole[:cut], whole[cut:]])[0]) == expected


def test_names_that_do_not_fill_the_method_are_an_error() -> None:
    """R-FRM-5: a frame whose fields end before it does, behind one that is right."""
    good = delivery(1, b"one")
    method = methods.BasicDeliver("tag", 2, False, "x", "k").encode(1)
    longer = method[:-1] + b"\x00" + method[-1:]
    longer = longer[:3] + struct.pack(">I", len(longer) - 8) + longer[7:]
    found = same_in_one_read([*good, longer, *delivery(2, b"two")[1:]])
    assert isinstance(found[1], events.ConnectionFailed)
