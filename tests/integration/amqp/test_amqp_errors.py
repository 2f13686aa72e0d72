"""The error table (docs/reference/rules.md §13) against a real member, and hostile bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from tests.integration.members import Member, cluster
from tests.integration.raw_client import ANSWER_SECONDS, HEADER, RawClient, client, frame, publish

pytestmark = pytest.mark.timeout(240)

QUORUM = {"x-queue-type": "quorum"}
M = methods


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("errors"), 1) as [member]:
        with client(member.amqp_port) as raw:
            raw.open(1)
            raw.declare(1, "there", durable=True, arguments={"x-max-length": 5})
            raw.declare(1, "calm", durable=True)
            raw.declare(1, "quorum", durable=True, arguments=QUORUM)
            raw.declare(1, "locked-sac", durable=True, arguments=QUORUM | SAC)
            raw.send(1, M.ExchangeDeclare(0, "inside", "direct", internal=True, durable=True))
            raw.expect(M.ExchangeDeclareOk)
            raw.send(1, M.ExchangeDeclare(0, "by-headers", "headers", durable=True))
            raw.expect(M.ExchangeDeclareOk)
        yield member


SAC = {"x-single-active-consumer": True}


def declare(name: str, durable: bool = True, **settings: object) -> bytes:
    """Return queue.declare on channel 1."""
    table = settings.pop("arguments", {})
    return M.QueueDeclare(
        0, name, durable=durable, arguments=table, **settings  # type: ignore[arg-type]
    ).encode(1)  # fmt: skip


def message(**properties: object) -> bytes:
    """Return a publish with these properties."""
    return publish(1, "amq.direct", "k", b"x", BasicProperties(**properties).encode())  # type: ignore[arg-type]


#: Rule, what is sent on channel 1, code, part of the text.
CHANNEL_ERRORS: list[tuple[str, bytes, int, str]] = [
    ("R-ERR-1", publish(1, "nope", "k", b""), 404, "no exchange 'nope' in vhost '/'"),
    ("R-ERR-2", M.BasicConsume(0, "nope").encode(1), 404, "no queue 'nope' in vhost '/'"),
    ("R-ERR-2", M.QueuePurge(0, "nope").encode(1), 404, "no queue 'nope' in vhost '/'"),
    ("R-ERR-3", declare("nope", passive=True), 404, "no queue 'nope' in vhost '/'"),
    (
        "R-ERR-4",
        declare("there", durable=False, arguments={"x-max-length": 5}),
        406,
        "inequivalent arg 'durable' for queue 'there' in vhost '/': received 'false' but current "
        "is 'true'",
    ),
    (
        "R-ERR-5",
        declare("there", arguments={"x-max-length": 6}),
        406,
        "inequivalent arg 'x-max-length' for queue 'there' in vhost '/'",
    ),
    (
        "R-ERR-6",
        declare("there", arguments=QUORUM | {"x-max-length": 5}),
        406,
        "inequivalent arg 'x-queue-type' for queue 'there'",
    ),
    (
        "R-ERR-7",
        M.ExchangeDeclare(0, "amq.topic", "fanout", durable=True).encode(1),
        406,
        "inequivalent arg 'type' for exchange 'amq.topic'",
    ),
    ("R-ERR-8", M.ExchangeDeclare(0, "z", "zz").encode(1), 406, "unknown exchange type 'zz'"),
    ("R-ERR-9", declare("amq.foo"), 403, "reserved prefix 'amq.*'"),
    ("R-ERR-10", M.QueueBind(0, "there", "", "k").encode(1), 403, "default exchange"),
    ("R-ERR-14", M.BasicAck(3, False).encode(1), 406, "unknown delivery tag 3"),
    ("R-ERR-14", M.BasicAck(0, False).encode(1), 406, "unknown delivery tag 0"),
    ("R-ACK-3", M.BasicAck(3, True).encode(1), 406, "unknown delivery tag 3"),
    ("R-ERR-31", message(expiration="10s"), 406, "invalid expiration '10s': {leftover_string"),
    ("R-ERR-31", message(expiration="-1"), 406, "invalid expiration '-1': {value_negative,-1}"),
    ("R-ERR-31", message(expiration="9" * 40), 406, "value_too_large"),
    ("R-ERR-32", message(headers={"CC": "k"}), 406, "unacceptable_type_in_header"),
    ("R-ERR-33", message(user_id="bob"), 406, "user_id property set to 'bob'"),
    (
        "R-ERR-35",
        publish(1, "", "there", b"x") + M.QueueDelete(0, "there", if_empty=True).encode(1),
        406,
        "queue 'there' in vhost '/' not empty",
    ),
    ("R-ERR-36", declare("e", arguments={"x-message-ttl": -1}), 406, "{value_negative,-1}"),
    ("R-ERR-36", declare("e", arguments={"x-expires": 0}), 406, "{value_zero,0}"),
    ("R-ERR-36", declare("e", arguments={"x-message-ttl": "s"}), 406, "expected integer"),
    (
        "R-ERR-37",
        declare("e", arguments={"x-dead-letter-routing-key": "k"}),
        406,
        "routing_key_but_no_dlx_defined",
    ),
    ("R-ERR-38", declare("e", arguments={"x-dead-letter-exchange": 5}), 406, "invalid type"),
    (
        "R-ERR-38",
        M.ExchangeDeclare(0, "e", "direct", arguments={"alternate-exchange": 5}).encode(1),
        406,
        "invalid type",
    ),
    ("R-ERR-39", declare("e", durable=False, arguments=QUORUM), 406, "non-durable"),
    ("R-ERR-39", declare("", arguments=QUORUM), 406, "server-named queue"),
    ("R-ERR-39", declare("e", exclusive=True, arguments=QUORUM), 406, "exclusive"),
    ("R-ERR-40", declare("e", arguments={"x-delivery-limit": 3}), 406, "x-delivery-limit"),
    ("R-ERR-40", declare("e", arguments=QUORUM | {"x-max-priority": 3}), 406, "x-max-priority"),
    ("R-ERR-41", publish(1, "inside", "k", b""), 403, "internal"),
    (
        "R-ERR-43",
        M.QueueBind(0, "there", "by-headers", "", arguments={"x-match": "some"}).encode(1),
        406,
        "x-match",
    ),
    ("R-ERR-44", M.BasicGet(0, "locked-sac").encode(1), 405, "single active consumer"),
    ("R-DRT-2", message(reply_to="amq.rabbitmq.reply-to"), 406, "fast reply consumer"),
]


@pytest.mark.parametrize(
    ("rule", "sent", "code", "text"),
    CHANNEL_ERRORS,
    ids=[f"{row[0]}-{i}" for i, row in enumerate(CHANNEL_ERRORS)],
)
def test_channel_errors(member: Member, rule: str, sent: bytes, code: int, text: str) -> None:
    """R-ERR-46: the other channel goes on, and the number is free after close-ok."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.open(2)
        raw.send(1, sent)
        closed = raw.expect(M.ChannelClose)
        assert (closed.reply_code, text in closed.reply_text) == (code, True), closed
        raw.send(1, M.ChannelCloseOk())
        assert raw.declare(2, "", exclusive=True)
        raw.open(1)


def broken_table(value: bytes) -> bytes:
    """Return exchange.declare whose arguments are these octets."""
    fields = b"\0\0" + b"\x01e" + b"\x06direct" + b"\0"
    return frame(1, 1, struct.pack(">HH", 40, 10) + fields + struct.pack(">I", len(value)) + value)


def header(properties: bytes, class_id: int = 60, weight: int = 0, size: int = 0) -> bytes:
    """Return a content header frame on channel 1."""
    return frame(2, 1, struct.pack(">HHQ", class_id, weight, size) + properties)


PUBLISH = M.BasicPublish(0, "", "there").encode(1)

CONNECTION_ERRORS: list[tuple[str, bytes, int, str]] = [
    (
        "R-ERR-13",
        M.BasicConsume(0, "calm", "t", nowait=True).encode(1) * 2,
        530,
        "attempt to reuse consumer tag 't'",
    ),
    (
        "R-ERR-15",
        M.BasicPublish(0, "", "there", immediate=True).encode(1) + header(b"\0\0"),
        540,
        "immediate=true",
    ),
    ("R-ERR-16", M.BasicQos(prefetch_size=9).encode(1), 540, "prefetch_size!=0 (9)"),
    ("R-ERR-17", M.BasicRecover(False).encode(1), 540, "requeue=false"),
    ("R-ERR-25", M.BasicAck(1, False).encode(9), 504, "expected 'channel.open'"),
    ("R-CH-1", M.ChannelOpen().encode(1), 504, "second 'channel.open' seen"),
    ("R-ERR-26", b"\x01\0\x01\0\0\0\x04\0\x0a\0\x0b\xcd", 501, ""),
    ("R-ERR-26", frame(5, 1, b"x"), 501, ""),
    ("R-ERR-26", struct.pack(">BHI", 3, 1, 1 << 30), 501, "frame_too_large"),
    ("R-ERR-27", frame(3, 1, b"x"), 505, ""),
    ("R-ERR-27", PUBLISH + frame(3, 1, b"x"), 505, ""),
    ("R-ERR-27", PUBLISH + header(b"\0\0", class_id=50), 505, ""),
    ("R-FRM-6", PUBLISH + header(b"\0\0", weight=1), 505, ""),
    ("R-FRM-7", PUBLISH + header(b"\0\0", size=1) + frame(3, 1, b"xx"), 501, ""),
    ("R-FRM-7", PUBLISH + header(b"\0\0", size=1 << 62), 501, ""),
    ("R-ERR-28", frame(1, 1, struct.pack(">HH", 50, 10) + b"\0"), 501, ""),
    ("R-ERR-29", broken_table(b"\x01kZx"), 502, ""),
    ("SEC-42", broken_table(b"\x01kF\0\0\0\x50"), 502, ""),
    ("R-ERR-30", frame(1, 1, struct.pack(">HH", 60, 999)), 503, ""),
    ("R-ERR-30", frame(1, 1, struct.pack(">HH", 999, 1)), 503, ""),
    ("R-ERR-42", M.ChannelFlow(False).encode(1), 540, "active=false"),
    ("properties", PUBLISH + header(b"\x80\0\xff"), 502, "malformed"),
    ("headers", PUBLISH + header(b"\x20\0\0\0\0\x04\x01kZx"), 502, ""),
]


@pytest.mark.parametrize(
    ("rule", "sent", "code", "text"),
    CONNECTION_ERRORS,
    ids=[f"{row[0]}-{i}" for i, row in enumerate(CONNECTION_ERRORS)],
)
def test_connection_errors(member: Member, rule: str, sent: bytes, code: int, text: str) -> None:
    """R-ERR-46, R-CON-15: this connection ends; a bystander goes on."""
    with client(member.amqp_port) as bystander, client(member.amqp_port) as raw:
        bystander.open(1)
        raw.open(1)
        raw.send(1, sent)
        closed = raw.expect(M.ConnectionClose)
        assert (closed.reply_code, text in closed.reply_text) == (code, True), closed
        raw.send(0, M.ConnectionCloseOk())
        # Without frame borders close-ok cannot be read: the socket ends by time (R-CON-14).
        assert rule == "R-ERR-26" or raw.at_end()
        assert bystander.declare(1, "", exclusive=True)


def test_headers_exchange_and_headers_that_cannot_be_read(member: Member) -> None:
    """The headers are needed to route: 502 for what is no table."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, publish(1, "by-headers", "", b"x", b"\x20\0\0\0\0\x06\x03kS\0\0\xff"))
        assert raw.expect(M.ConnectionClose).reply_code == 502


def test_exclusive_things_are_refused_to_others(member: Member) -> None:
    """R-ERR-11, R-ERR-12, R-Q-9, R-CS-2."""
    with client(member.amqp_port) as owner, client(member.amqp_port) as other:
        owner.open(1)
        owner.declare(1, "mine", exclusive=True)
        owner.send(1, M.BasicConsume(0, "calm", "x", exclusive=True))
        owner.expect(M.BasicConsumeOk)
        sent: list[tuple[M.Method, int]] = [
            (M.QueueDeclare(0, "mine", exclusive=True), 405),
            (M.QueueDeclare(0, "mine", passive=True), 405),
            (M.QueueBind(0, "mine", "amq.direct", "k"), 405),
            (M.BasicConsume(0, "mine"), 405),
            (M.BasicGet(0, "mine"), 405),
            (M.QueuePurge(0, "mine"), 405),
            (M.QueueDelete(0, "mine"), 405),
            (M.BasicConsume(0, "calm"), 403),
        ]
        for method, code in sent:
            other.open(1)
            other.send(1, method)
            closed = other.expect(M.ChannelClose)
            assert closed.reply_code == code, (method, closed)
            other.send(1, M.ChannelCloseOk())
        # R-PUB-6: publishing into it is allowed.
        other.open(1)
        other.send(1, publish(1, "", "mine", b"hello"))
        other.send(1, M.ChannelClose(200, ""))
        other.expect(M.ChannelCloseOk)
        owner.send(1, M.BasicGet(0, "mine", True))
        assert owner.content(M.BasicGetOk)[2] == b"hello"
        owner.send(1, M.BasicCancel("x"))
        owner.expect(M.BasicCancelOk)


@pytest.mark.parametrize(
    ("channel_max", "frame_max"), [(2047, 4096), (2047, 0), (2047, 1 << 20), (0, 131_072)]
)
def test_wrong_tuning_is_refused(member: Member, channel_max: int, frame_max: int) -> None:
    """R-CON-9, R-ERR-23, SEC-39."""
    with pytest.raises(AssertionError, match="530"):
        RawClient(member.amqp_port, channel_max=channel_max, frame_max=frame_max)


def login(mechanism: str, response: bytes) -> bytes:
    """Return protocol header and start-ok."""
    return HEADER + M.ConnectionStartOk({}, mechanism, response, "en_US").encode(0)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60, id="tls"),
        pytest.param(b"\0" * 4096, id="zeroes"),
        pytest.param(b"AMQP\x00\x01\x00\x00", id="amqp-1.0"),
        pytest.param(HEADER + frame(1, 0, b"\0\x0a\0\x28\x01/\0\0"), id="open-first"),
        pytest.param(HEADER + frame(2, 0, b"\0" * 14), id="header-first"),
        pytest.param(login("EXTERNAL", b""), id="external"),
        pytest.param(login("PLAIN", b"\0" * 6000), id="nul"),
        pytest.param(
            login("PLAIN", b"\0guest\0guest")
            + frame(1, 0, b"\xff" * 100), id="bad-tune",
        ),
    ],
)  # fmt: skip
def test_hostile_handshakes_end_and_leave_no_trace(member: Member, attack: bytes) -> None:
    """R-CON-2, -4, -6, SEC-31, SEC-35: the socket is closed within the delay, others go on."""
    with socket.create_connection(("127.0.0.1", member.amqp_port), ANSWER_SECONDS) as attacker:
        attacker.sendall(attack)
        with client(member.amqp_port) as bystander:
            bystander.open(1)
            assert bystander.declare(1, "", exclusive=True)
        while data := attacker.recv(4096):
            if b"COMMAND_INVALID" in data:
                # After the login an error is answered, and close-ok has its time (R-CON-14).
                break
