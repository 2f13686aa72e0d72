"""Bad input and its answer, on both servers: code, level, class and method, text.

The inputs are in bad_inputs.py, the answers in answers.txt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.amqp import methods as M
from brokerd.amqp import spec
from brokerd.amqp.channel import decode_method, method_class
from tests.compat import bad_inputs
from tests.compat.bad_inputs import BAD_INPUTS, VHOST
from tests.compat.servers import Closed, Differs, Server, closed_by, expect, expected
from tests.integration.raw_client import RawClient, frame, publish

#: Follows each input; its error says that nothing before it was wrong.
SENTINEL = M.BasicQos(99, 0, False).encode(1)
ACCEPTED = Closed("connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (99)", (60, 10))
DROPPED = Closed("socket")
MIB = 1024 * 1024


def answer(text: str) -> Closed:
    """Read one answer of the file."""
    if text in ("accepted", "dropped"):
        return ACCEPTED if text == "accepted" else DROPPED
    found = re.fullmatch(r"(channel|connection) (\d+) (\d+),(\d+) ?(.*)", text)
    assert found, text
    level: Any = found[1]
    code = int(found[2])
    said = spec.REPLY_NAMES[code] + (f" - {found[5]}" if found[5] else "")
    return Closed(level, code, said, (int(found[3]), int(found[4])))


def answers() -> dict[str, Closed | Differs[Closed]]:
    """Read the file of answers."""
    rows: dict[str, Closed | Differs[Closed]] = {}
    text = Path(__file__).with_name("answers.txt").read_text()
    for block in re.split(r"\n(?=\S)", text.partition("\n\n")[2].strip()):
        name, *lines = [line.strip() for line in block.splitlines()]
        if len(lines) == 1:
            rows[name] = answer(lines[0])
        else:
            parts = dict(line.split(": ", 1) for line in lines)
            rows[name] = Differs(
                answer(parts["rabbitmq"]), answer(parts["brokerd"]), parts["difference"]
            )
    return rows


ANSWERS = answers()


def test_every_input_has_its_answer() -> None:
    assert list(ANSWERS) == list(BAD_INPUTS)


def test_no_input_meets_what_another_one_has_declared() -> None:
    """They come in any order."""
    made: list[str] = []
    for name, sent in BAD_INPUTS.items():
        answer = ANSWERS[name]
        outcomes = (answer.rabbitmq, answer.brokerd) if isinstance(answer, Differs) else (answer,)
        size = int.from_bytes(sent[3:7], "big")
        payload = sent[7 : 7 + size]
        if ACCEPTED in outcomes and payload[:4] == bytes((0, 50, 0, 10)):
            method = decode_method(method_class(payload), payload)
            assert isinstance(method, M.QueueDeclare)
            made.append(method.queue)
    assert len(made) > 10
    assert sorted(made) == sorted(set(made))


@pytest.fixture(scope="session")
def stocked() -> Iterator[Callable[[Server], str]]:
    """Make the vhost that all bad inputs share, once on each server."""
    holders: dict[str, RawClient] = {}

    def stock(server: Server) -> str:
        if server.name not in holders:
            server.admin.add_vhost(VHOST)
            holders[server.name] = RawClient(server.port, vhost=VHOST)
            bad_inputs.stock(holders[server.name])
        return VHOST

    yield stock
    for holder in holders.values():
        holder.close()


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(server: Server, stocked: Callable[[Server], str], name: str) -> None:
    """R-TEST-2, R-ERR-1 to R-ERR-44 but the handshake's, and their kin of chapters 1, 4 and 5."""
    with server.raw(stocked(server)) as raw:
        raw.open(1)
        wanted = expected(server, ANSWERS[name])
        # RabbitMQ's channels are processes of their own: the sentinel's error on this one could
        # overtake what the input did to another one.
        is_elsewhere = wanted.code == 504
        raw.send(1, BAD_INPUTS[name], *(() if is_elsewhere else (SENTINEL,)))
        assert like(closed_by(raw), wanted)


def like(got: Closed, wanted: Closed) -> bool:
    """Compare; up to the first variable part of the text where the answer ends in an ellipsis."""
    start, ellipsis, _ = wanted.text.partition("…")
    text = got.text.startswith(start) if ellipsis else got.text == wanted.text
    same = (got.level, got.code, got.failed) == (wanted.level, wanted.code, wanted.failed)
    assert text, (got, wanted)
    assert same, (got, wanted)
    return True


def test_a_channel_error_leaves_other_channels_alone(server: Server, vhost: str) -> None:
    """R-ERR-46, R-CH-4: the number is free again after close-ok."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        name = raw.declare(2, "", exclusive=True)
        raw.send(1, M.BasicGet(0, "nope"))
        assert closed_by(raw).code == 404
        raw.send(2, publish(2, "", name, b"still here"), M.BasicGet(0, name, True))
        assert raw.content(M.BasicGetOk)[2] == b"still here"
        raw.send(1, M.ChannelCloseOk())
        raw.open(1)
        assert raw.count(1, name) == 0


def test_a_connection_error_ends_all_channels(server: Server, vhost: str) -> None:
    """R-ERR-46, R-CON-14: close-ok, then the socket ends."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.send(1, M.BasicQos(1, 0, False))
        assert closed_by(raw).code == 540
        raw.send(2, M.QueueDeclare(0, "late", exclusive=True))
        raw.send(0, M.ConnectionCloseOk())
        assert raw.at_end()


def test_a_connection_close_during_closing_is_answered(server: Server, vhost: str) -> None:
    """R-CON-14."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.BasicQos(1, 0, False))
        assert closed_by(raw).code == 540
        raw.send(0, M.ConnectionClose(200, "", 0, 0))
        raw.expect(M.ConnectionCloseOk)


def test_the_content_of_a_rejected_publish_is_swallowed(server: Server, vhost: str) -> None:
    """R-ERR-47, R-CH-4: what follows on the closed channel is dropped, whatever it is."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.send(1, publish(1, "nope", "k", bytes(300_000)), publish(1, "nope", "k", b"y"))
        raw.send(1, M.QueueDeclare(0, "never", durable=True), M.BasicAck(77, False))
        assert closed_by(raw).failed == (60, 40)
        raw.send(2, M.QueueDeclare(0, "never", passive=True))
        assert closed_by(raw).code == 404


def test_a_channel_close_during_closing_is_answered(server: Server, vhost: str) -> None:
    """R-CH-4."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.BasicGet(0, "nope"))
        assert closed_by(raw).code == 404
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)


def test_a_method_on_a_closed_channel_number(server: Server, vhost: str) -> None:
    """R-ERR-25: after the client has closed it."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)
        raw.send(1, M.BasicQos(0, 1, False))
        text = "CHANNEL_ERROR - expected 'channel.open'"
        assert closed_by(raw) == Closed("connection", 504, text, (60, 10))


def send_body(raw: RawClient, size: int) -> None:
    """Publish so many octets to the exchange amq.direct, in frames."""
    head = b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0"
    method = M.BasicPublish(0, "amq.direct", "k", False, False).encode(1)
    raw.send(1, method, frame(2, 1, head))
    step = 131_064
    piece = frame(3, 1, bytes(step))
    for _ in range(size // step):
        raw.socket.sendall(piece)
    if size % step:
        raw.socket.sendall(frame(3, 1, bytes(size % step)))


@pytest.mark.parametrize("size", [16 * MIB, 16 * MIB + 1])
def test_messages_of_16_mib_are_taken(server: Server, vhost: str, size: int) -> None:
    """R-TEST-8, R-FRM-8: the limit of 3.10 is 128 MiB."""
    with server.raw(vhost) as raw:
        raw.open(1)
        send_body(raw, size)
        raw.send(1, SENTINEL)
        assert closed_by(raw) == ACCEPTED


def test_a_message_above_the_largest_size(server: Server, vhost: str) -> None:
    """R-ERR-34, R-FRM-8."""
    with server.raw(vhost) as raw:
        raw.open(1)
        send_body(raw, 128 * MIB + 1)
        closed = closed_by(raw)
        assert (closed.level, closed.code, closed.failed) == ("channel", 406, (60, 40))
        wanted = "PRECONDITION_FAILED - message size 134217729 is larger than configured max size"
        assert closed.text.startswith(wanted)


def test_a_transient_queue_is_declared(server: Server, channel: Any) -> None:
    """R-ERR-45, R-Q-8: refused by 4.3 only."""
    assert channel.queue_declare("transient").method.queue == "transient"


def test_a_header_that_announces_more_than_512_mib(server: Server, vhost: str) -> None:
    """R-FRM-7, O-12: 3.10 waits for the body."""
    with server.raw(vhost) as raw:
        raw.open(1)
        head = b"\0\x3c\0\0" + (512 * MIB + 1).to_bytes(8, "big") + b"\0\0"
        raw.send(1, M.BasicPublish(0, "amq.direct", "k", False, False).encode(1))
        raw.send(1, frame(2, 1, head), SENTINEL)
        text = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"
        waits = Closed("connection", 505, text, (60, 40))
        text = "FRAME_ERROR - content body size 536870913 exceeds maximum allowed size 536870912"
        refuses = Closed("connection", 501, text, (60, 40))
        wanted = expect(server, rabbitmq=waits, brokerd=refuses, difference="D-12")
        assert closed_by(raw) == wanted
