"""Frames, field types, channels and heartbeats of an open connection (R-FRM, R-CH, R-HB)."""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.amqp import methods as M
from tests.compat.servers import Closed, Server, closed_by
from tests.integration.members import eventually
from tests.integration.raw_client import RawClient, frame, publish

SENTINEL = M.BasicQos(99, 0, False).encode(1)
ACCEPTED = Closed("connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (99)", (60, 10))
FRAME_MAX = 8192
LARGEST = FRAME_MAX - 8


# ---- frames -------------------------------------------------------------------------------------


def delivered(raw: RawClient, queue: str) -> tuple[bytes, list[bytes]]:
    """Get one message; return its properties and the payloads of its body frames."""
    raw.send(1, M.BasicGet(0, queue, True))
    raw.expect(M.BasicGetOk)
    header = raw.next_frame()
    assert header is not None
    assert header[0] == 2
    (size,) = struct.unpack_from(">Q", header[2], 4)
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < size:
        piece = raw.next_frame()
        assert piece is not None
        assert piece[0] == 3
        pieces.append(piece[2])
    return header[2][12:], pieces


@pytest.mark.parametrize(
    "size", [0, 1, LARGEST - 1, LARGEST, LARGEST + 1, 2 * LARGEST, 2 * LARGEST + 1, 10 * LARGEST]
)
def test_bodies_are_split_to_fit(server: Server, vhost: str, size: int) -> None:
    """R-FRM-9, R-FRM-10, R-TEST-8: body = frame_max-8, -7, xn."""
    body = bytes(i % 251 for i in range(size))
    with server.raw(vhost, frame_max=FRAME_MAX) as raw:
        raw.open(1)
        name = raw.declare(1, "", exclusive=True)
        raw.send(1, publish(1, "", name, body, frame_max=FRAME_MAX))
        _, pieces = delivered(raw, name)
    assert b"".join(pieces) == body
    wanted = [LARGEST] * (size // LARGEST) + ([size % LARGEST] if size % LARGEST else [])
    assert [len(piece) for piece in pieces] == wanted


def test_many_small_body_frames_are_one_message(server: Server, vhost: str) -> None:
    """R-FRM-6: the frames of a body may be of any size."""
    head = frame(2, 1, b"\0\x3c\0\0" + (50).to_bytes(8, "big") + b"\0\0")
    with server.raw(vhost) as raw:
        raw.open(1)
        name = raw.declare(1, "", exclusive=True)
        method = M.BasicPublish(0, "", name, False, False)
        raw.send(1, method, head, *(frame(3, 1, bytes([i])) for i in range(50)))
        assert b"".join(delivered(raw, name)[1]) == bytes(range(50))


@pytest.mark.parametrize(
    ("payload", "is_taken"),
    [(FRAME_MAX - 8, True), (FRAME_MAX, True), (FRAME_MAX + 1, False)],
)
def test_frames_may_be_eight_octets_too_large(
    server: Server, vhost: str, payload: int, is_taken: bool
) -> None:
    """R-FRM-2, R-ERR-26."""
    head = b"\0\x3c\0\0" + payload.to_bytes(8, "big") + b"\0\0"
    with server.raw(vhost, frame_max=FRAME_MAX) as raw:
        raw.open(1)
        raw.send(1, M.BasicPublish(0, "amq.direct", "k", False, False), frame(2, 1, head))
        raw.send(1, frame(3, 1, bytes(payload)), SENTINEL)
        text = f"FRAME_ERROR - type 3, all octets = <<>>: {{frame_too_large,{payload},{LARGEST}}}"
        assert closed_by(raw) == (ACCEPTED if is_taken else Closed("connection", 501, text))


def test_contents_of_two_channels_may_interleave(server: Server, vhost: str) -> None:
    """R-FRM-6: per channel, not per connection."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        name = raw.declare(1, "", exclusive=True)
        first = publish(1, "", name, b"first")
        second = publish(2, "", name, b"second")
        cut_1, cut_2 = first.index(b"\xce") + 1, second.index(b"\xce") + 1
        raw.send(0, first[:cut_1], second[:cut_2], first[cut_1:], second[cut_2:])
        raw.send(1, M.BasicQos(0, 1, False))
        raw.expect(M.BasicQosOk)
        raw.send(2, M.BasicQos(0, 1, False))
        raw.expect(M.BasicQosOk)
        assert sorted(delivered(raw, name)[1] + delivered(raw, name)[1]) == [b"first", b"second"]


def table(*fields: bytes) -> bytes:
    """Return a table of raw fields."""
    body = b"".join(fields)
    return len(body).to_bytes(4, "big") + body


def text(value: bytes) -> bytes:
    """Return a longstr."""
    return len(value).to_bytes(4, "big") + value


#: R-FRM-11, letter and octets.
FIELDS: dict[str, bytes] = {
    "S": b"S" + text(b"text"),
    "S empty": b"S" + text(b""),
    "S not UTF-8": b"S" + text(b"\xff\xfe"),
    "s": b"s\xff\xfe",
    "u": b"u\xff\xfe",
    "b": b"b\x80",
    "B": b"B\xff",
    "I": b"I\x80\0\0\1",
    "i": b"i\xff\xff\xff\xfe",
    "l": b"l\x80\0\0\0\0\0\0\1",
    "L": b"L\xff\xff\xff\xff\xff\xff\xff\xfe",
    "f": b"f" + struct.pack(">f", 1.5),
    "d": b"d" + struct.pack(">d", 1.1),
    "D": b"D\2\0\0\1\x3a",
    "t": b"t\1",
    "T": b"T\0\0\0\0\x5f\x5e\x10\0",
    "F": b"F" + table(b"\1kS" + text(b"v")),
    "F empty": b"F" + table(),
    "A": b"A" + text(b"I\0\0\0\1" + b"S" + text(b"v") + b"t\0"),
    "A empty": b"A" + text(b""),
    "x": b"x" + text(b"\0\1\2"),
    "V": b"V",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_headers_of_every_type_come_back(server: Server, vhost: str, kind: str) -> None:
    """R-FRM-11, R-PUB-11."""
    sent = b"\x20\0" + table(b"\1b" + FIELDS[kind], b"\1aI\0\0\0\1")
    with server.raw(vhost) as raw:
        raw.open(1)
        name = raw.declare(1, "", exclusive=True)
        raw.send(1, publish(1, "", name, b"x", sent))
        assert delivered(raw, name)[0] == sent


@pytest.mark.parametrize("kind", FIELDS)
def test_arguments_of_every_type_are_read(server: Server, vhost: str, kind: str) -> None:
    """R-FRM-11, R-Q-4: in a declare; arguments that nobody knows are ignored."""
    with server.raw(vhost) as raw:
        raw.open(1)
        body = b"\0\x32\0\x0a\0\0\1q\4" + table(b"\3any" + FIELDS[kind])
        raw.send(1, frame(1, 1, body))
        assert raw.expect(M.QueueDeclareOk).queue == "q"


def test_every_property_comes_back(server: Server, vhost: str) -> None:
    """R-PUB-11, R-PUB-12: all fourteen, cluster-id too."""
    properties = (
        b"\xff\xfc"
        + b"\4type" + b"\4gzip" + table(b"\1hI\0\0\0\1") + b"\2" + b"\7" + b"\2id" + b"\5reply"
        + b"\x0560000" + b"\3mid" + b"\0\0\0\0\x5f\x5e\x10\0" + b"\1t" + b"\5guest" + b"\3app"
        + b"\7cluster"
    )  # fmt: skip
    with server.raw(vhost) as raw:
        raw.open(1)
        name = raw.declare(1, "", exclusive=True)
        raw.send(1, publish(1, "", name, b"x", properties))
        assert delivered(raw, name)[0] == properties


# ---- channels -----------------------------------------------------------------------------------


def test_the_count_of_channels_is_limited_and_not_the_number(server: Server, vhost: str) -> None:
    """R-CH-2, R-ERR-24."""
    with server.raw(vhost, channel_max=2) as raw:
        raw.open(500)
        raw.open(65_535)
        raw.send(7, M.ChannelOpen())
        said = "number of channels opened (2) has reached the negotiated channel_max (2)"
        assert closed_by(raw) == Closed("connection", 530, f"NOT_ALLOWED - {said}")


def test_a_closed_channel_makes_room_for_another(server: Server, vhost: str) -> None:
    """R-CH-2, R-CH-4."""
    with server.raw(vhost, channel_max=2) as raw:
        raw.open(1)
        raw.open(2)
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)
        raw.open(3)
        raw.send(3, M.BasicGet(0, "nope"))
        assert closed_by(raw).code == 404
        raw.send(3, M.ChannelCloseOk())
        raw.open(3)


def test_closing_a_channel_requeues_and_cancels(server: Server, vhost: str) -> None:
    """R-CH-5: no basic.cancel, no dead letter; the consumer's queue lives on."""
    with server.raw(vhost, capabilities={"consumer_cancel_notify": True}) as raw:
        raw.open(1)
        raw.open(2)
        name = raw.declare(1, "", exclusive=True)
        raw.send(1, publish(1, "", name, b"again"), M.BasicConsume(0, name, "c"))
        raw.expect(M.BasicConsumeOk)
        deliver, _, body = raw.content(M.BasicDeliver)
        assert (deliver.redelivered, body) == (False, b"again")
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)
        raw.send(2, M.BasicConsume(0, name, "d"))
        raw.expect(M.BasicConsumeOk)
        deliver, _, body = raw.content(M.BasicDeliver)
        assert (deliver.redelivered, deliver.consumer_tag, body) == (True, "d", b"again")


def test_long_reply_texts_are_cut_to_255_bytes(server: Server, vhost: str) -> None:
    """R-CON-15."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.BasicGet(0, "q" * 255))
        closed = closed_by(raw)
        assert (closed.code, len(closed.text)) == (404, 255)
        assert closed.text == ("NOT_FOUND - no queue '" + "q" * 255)[:252] + "..."


def test_each_channel_has_a_last_queue_of_its_own(server: Server, vhost: str) -> None:
    """R-CH-10."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        first = raw.declare(1, "", exclusive=True)
        second = raw.declare(2, "", exclusive=True)
        raw.send(1, publish(1, "", first, b"x"), M.QueuePurge(0, ""))
        assert raw.expect(M.QueuePurgeOk).message_count == 1
        raw.send(2, M.QueueBind(0, "", "amq.direct", ""), publish(2, "amq.direct", second, b"y"))
        raw.expect(M.QueueBindOk)
        # RabbitMQ's queue may answer a count before it takes what was published earlier.
        eventually(lambda: raw.count(2, second) == 1, "the message is in the queue")
        raw.send(2, M.QueueUnbind(0, "", "amq.direct", ""), publish(2, "amq.direct", second, b"y"))
        raw.expect(M.QueueUnbindOk)
        assert raw.count(2, second) == 1
        raw.send(2, M.QueueDelete(0, ""))
        assert raw.expect(M.QueueDeleteOk).message_count == 1


def test_a_passive_declare_sets_the_last_queue(server: Server, vhost: str) -> None:
    """R-CH-10, R-Q-3."""
    with server.raw(vhost) as raw:
        raw.open(1)
        name = raw.declare(1, "", exclusive=True)
        raw.declare(1, "other", exclusive=True)
        raw.count(1, name)
        raw.send(1, M.QueueDelete(0, ""))
        raw.expect(M.QueueDeleteOk)
        raw.send(1, M.QueueDeclare(0, name, passive=True))
        assert closed_by(raw).code == 404


def test_flow_is_answered(server: Server, vhost: str) -> None:
    """R-CH-6."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.ChannelFlow(True))
        assert raw.expect(M.ChannelFlowOk).active is True


def test_access_request_gives_ticket_1(server: Server, vhost: str) -> None:
    """R-CH-7: and tickets mean nothing."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.AccessRequest("/nobody", True, False, False, False, False))
        assert raw.expect(M.AccessRequestOk).ticket == 1
        raw.send(1, M.QueueDeclare(777, "", exclusive=True))
        raw.expect(M.QueueDeclareOk)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (M.ConfirmSelect(False), M.ConfirmSelectOk),
        (M.TxSelect(), M.TxSelectOk),
        (M.BasicRecover(True), M.BasicRecoverOk),
        (M.BasicQos(0, 10, False), M.BasicQosOk),
        (M.BasicQos(0, 10, True), M.BasicQosOk),
        (M.BasicCancel("nobody", False), M.BasicCancelOk),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else "",
)
def test_methods_may_be_repeated(server: Server, vhost: str, method: Any, answer: Any) -> None:
    """R-CH-8, R-CS-3: the same select again is fine."""
    with server.raw(vhost) as raw:
        raw.open(1)
        for _ in range(2):
            raw.send(1, method)
            raw.expect(answer)


# ---- heartbeats ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def heartbeats() -> Callable[[Server], dict[str, float]]:
    """Watch three connections of each server for four seconds; return what happened to them."""
    seen: dict[str, dict[str, float]] = {}

    def watch(server: Server) -> dict[str, float]:
        if server.name not in seen:
            seen[server.name] = watched(server)
            for _ in range(3):
                # A machine that stood still has silenced the client that talks: look again.
                if seen[server.name]["longest pause"] > 1.0:
                    seen[server.name] = watched(server)
        return seen[server.name]

    return watch


def watched(server: Server) -> dict[str, float]:
    """One client is mute, one sends octets, one has switched heartbeats off."""
    clients = {
        "mute": RawClient(server.port, heartbeat=1),
        "talking": RawClient(server.port, heartbeat=1),
        "without": RawClient(server.port, heartbeat=0),
    }
    start = time.monotonic()
    seen: dict[str, float] = {"longest pause": 0.0}
    spoken = start
    received = dict.fromkeys(clients, b"")
    sockets = {client.socket: name for name, client in clients.items()}
    while (now := time.monotonic() - start) < 60.0 and ("mute end" not in seen or now < 4.5):
        if "talking end" not in seen:
            paused, spoken = time.monotonic() - spoken, time.monotonic()
            seen["longest pause"] = max(seen["longest pause"], paused)
            with contextlib.suppress(ConnectionError):
                clients["talking"].socket.sendall(frame(8, 0, b""))
        ready, _, _ = select.select(list(sockets), [], [], 0.25)
        for sock in ready:
            name = sockets[sock]
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = sock.recv(1 << 16)
            received[name] += data
            if not data:
                seen[f"{name} end"] = time.monotonic() - start
                del sockets[sock]
    for name, octets in received.items():
        assert octets == frame(8, 0, b"") * (len(octets) // 8), (name, octets)
        seen[f"{name} beats"] = len(octets) // 8
    for client in clients.values():
        client.close()
    return seen


def test_a_mute_client_is_dropped_without_a_word(
    server: Server, heartbeats: Callable[[Server], dict[str, float]]
) -> None:
    """R-HB-1: between 2T and 3T after the last byte; R-OPEN-4 allows one period."""
    assert heartbeats(server)["mute end"] > 1.5


def test_the_server_sends_heartbeats_as_the_client_asked(
    server: Server, heartbeats: Callable[[Server], dict[str, float]]
) -> None:
    """R-CON-10, R-HB-1: its own proposal of 60 s does not count, 0 turns both directions off."""
    seen = heartbeats(server)
    assert seen["talking beats"] >= 3
    assert seen["mute beats"] >= 1
    assert seen["without beats"] == 0


def test_any_octet_keeps_a_connection(
    server: Server, heartbeats: Callable[[Server], dict[str, float]]
) -> None:
    """R-HB-2, R-CON-10."""
    seen = heartbeats(server)
    assert "talking end" not in seen
    assert "without end" not in seen
