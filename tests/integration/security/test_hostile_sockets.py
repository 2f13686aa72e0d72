"""Half-open, crawling and flooding clients on raw sockets: limits end them, the member goes on."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from tests.integration.members import Member, cluster, eventually, select_nothing
from tests.integration.raw_client import (
    ANSWER_SECONDS,
    HEADER,
    RawClient,
    client,
    frame,
    publish,
)

pytestmark = pytest.mark.timeout(240)

MIB = 1024 * 1024
HANDSHAKE_MS = 2000
STRANGERS = 20
CHANNELS = 50


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    strict = {
        "BROKERD_LIMITS_HANDSHAKE_TIMEOUT_MS": str(HANDSHAKE_MS),
        "BROKERD_LIMITS_UNAUTHENTICATED_PER_ADDRESS": str(STRANGERS),
        "BROKERD_LIMITS_CHANNELS": str(CHANNELS),
    }
    with cluster(tmp_path_factory.mktemp("hostile"), 1, is_warm=False, **strict) as [member]:
        yield member


@pytest.fixture(autouse=True)
def others_are_served(member: Member) -> Iterator[None]:
    """Whatever happens to the hostile one, another client's messages come through meanwhile."""
    with client(member.amqp_port) as other:
        other.open(1)
        other.declare(1, "others", durable=True)
        yield
        other.send(1, publish(1, "", "others", b"m"), methods.BasicGet(0, "others", no_ack=True))
        found = other.next_method()
        while found is not None and isinstance(found[1], methods.BasicGetEmpty):
            other.send(1, methods.BasicGet(0, "others", no_ack=True))
            found = other.next_method()
        assert found is not None
        assert isinstance(found[1], methods.BasicGetOk)


def dial(member: Member) -> socket.socket:
    return socket.create_connection(("127.0.0.1", member.amqp_port), timeout=ANSWER_SECONDS)


def read_to_end(sock: socket.socket) -> bytes:
    """Read until the member closes; waits for it."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65_536):
            found += piece
    return found


def rss(member: Member) -> int:
    assert member.process is not None
    return int(psutil.Process(member.process.pid).memory_info().rss)


def test_who_says_nothing_is_dropped(member: Member) -> None:
    """SEC-32, R-CON-4: silence costs the socket, without a word."""
    with dial(member) as sock:
        assert read_to_end(sock) == b""


def test_who_never_ends_its_handshake_is_dropped(member: Member) -> None:
    """SEC-32, R-CON-4: one byte after the other; what counts is the end of the handshake."""
    login = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US").encode(0)
    with dial(member) as sock:
        sock.sendall(HEADER)
        sent = 0
        with contextlib.suppress(ConnectionError):
            for byte in login[:-1] * 3:
                sock.sendall(bytes([byte]))
                sent += 1
                select_nothing(0.1)
                if sent == len(login) - 1:
                    break
        assert sent < len(login) - 1, "the member has read to the end"


def test_who_stops_in_the_middle_of_a_frame_is_dropped_by_heartbeats(member: Member) -> None:
    """R-HB-1, R-HB-2: bytes keep a connection alive, however few; their end ends it."""
    with client(member.amqp_port, heartbeat=1) as raw:
        raw.open(1)
        for byte in publish(1, "", "nowhere", bytes(1000))[:20]:
            raw.send(1, bytes([byte]))
            select_nothing(0.2)
        assert raw.at_end()


def test_strangers_from_one_address_are_limited(member: Member) -> None:
    """SEC-34: for one more the oldest is closed at once; who knows the password comes in."""
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(dial(member)) for _ in range(STRANGERS)]
        for sock in waiting:
            sock.sendall(HEADER)
            assert sock.recv(1) == b"\x01"
        assert _can_connect(member)
        assert b"\xce" in read_to_end(waiting[0])
        assert "takes its place" in member.log()


def _can_connect(member: Member) -> bool:
    try:
        RawClient(member.amqp_port).close()
    except (AssertionError, OSError):
        return False
    return True


def test_connections_are_limited_and_the_next_one_is_told_so(tmp_path: Path) -> None:
    """R-CON-12, SEC-44."""
    with cluster(tmp_path, 1, BROKERD_LIMITS_CONNECTIONS="2") as [small]:
        with client(small.amqp_port), client(small.amqp_port), dial(small) as sock:
            raw = RawClient.at_the_door(sock)
            raw.expect(methods.ConnectionStart)
            login = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
            raw.send(0, login)
            raw.expect(methods.ConnectionTune)
            raw.send(0, methods.ConnectionTuneOk(10, 131_072, 0), methods.ConnectionOpen("/"))
            closed = raw.expect(methods.ConnectionClose)
            assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 10, 40)
            assert closed.reply_text == (
                "NOT_ALLOWED - connection refused: node connection limit (2) is reached"
            )
        eventually(lambda: _can_connect(small), "a place is free")


@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 65, 255])
def test_unknown_frame_types_end_the_connection(member: Member, kind: int) -> None:
    """SEC-38, SEC-60, R-FRM-3."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, frame(kind, 1, b"whatever") * 1000)
        assert raw.expect(methods.ConnectionClose).reply_code == 501


def test_garbage_before_the_login_costs_the_socket_and_nothing_else(member: Member) -> None:
    """SEC-31, R-CON-4: frames over the first limit, and sizes that are lies."""
    before = rss(member)
    lies = (
        struct.pack(">BHI", 1, 0, 0xFFFF_FFFF),
        struct.pack(">BHI", 1, 0, 100_000) + bytes(100_000),
        struct.pack(">BHI", 3, 7, 10) + bytes(10) + b"\xce",
        b"GET / HTTP/1.1\r\n\r\n",
    )
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(dial(member)) for _ in lies]
        for sock, lie in zip(socks, lies, strict=True):
            sock.sendall(HEADER + lie)
        for sock in socks:
            assert b"\xce" in read_to_end(sock), "connection.start and then the end"
    assert rss(member) - before < 32 * MIB


def test_channels_are_limited_for_the_member(member: Member) -> None:
    """R-CH-3, SEC-44, SEC-37: all connections together; closed ones count no more."""
    with client(member.amqp_port) as raw, client(member.amqp_port) as other:
        for channel in range(1, 31):
            raw.open(channel)
        other.send(0, *[methods.ChannelOpen().encode(channel) for channel in range(1, 101)])
        while not isinstance(
            (found := other.next_method() or (0, None))[1], methods.ConnectionClose
        ):
            assert isinstance(found[1], methods.ChannelOpenOk)
        closed = found[1]
        assert isinstance(closed, methods.ConnectionClose)
        assert closed.reply_code == 530
        assert closed.reply_text == (
            "NOT_ALLOWED - number of channels opened on node 'n0' has reached "
            f"the maximum allowed limit of ({CHANNELS})"
        )
        other.send(0, methods.ConnectionCloseOk())
        # Its channels are given back by then.
        assert other.at_end()
        for channel in range(31, 41):
            raw.open(channel)


def test_opening_and_closing_channels_for_ever_costs_no_memory(member: Member) -> None:
    """SEC-37, SEC-44: 10,000 channels, one after the other, in large writes."""
    pair = methods.ChannelOpen().encode(1) + methods.ChannelClose(200, "", 0, 0).encode(1)
    with client(member.amqp_port) as raw:
        for i in range(11):
            raw.send(0, pair * 1000)
            for _ in range(1000):
                raw.expect(methods.ChannelOpenOk)
                raw.expect(methods.ChannelCloseOk)
            if not i:
                before = rss(member)
    assert rss(member) - before < 16 * MIB


def test_what_comes_for_a_failed_channel_is_swallowed(member: Member) -> None:
    """R-CH-4, R-ERR-47: 10,000 messages behind an error; the next channel works."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, methods.BasicAck(99, False), *[publish(1, "", "others", b"m")] * 10_000)
        assert raw.expect(methods.ChannelClose).reply_code == 406
        raw.send(1, methods.ChannelCloseOk(), methods.ChannelOpen())
        raw.expect(methods.ChannelOpenOk)
        assert raw.count(1, "others") == 0


def test_a_body_that_never_ends_is_held_within_the_message_limit(member: Member) -> None:
    """SEC-40, SEC-43, SEC-58, R-FRM-8: nothing is reserved for what a header promises."""
    before = rss(member)
    with contextlib.ExitStack() as stack:
        for size in (16 * MIB, 16 * MIB + 1, 2**29 + 1, 2**63):
            raw = stack.enter_context(client(member.amqp_port))
            raw.open(1)
            header = struct.pack(">HHQ", 60, 0, size) + b"\x00\x00"
            raw.send(1, methods.BasicPublish(0, "", "q"), frame(2, 1, header))
            if size > 2**29:
                assert raw.expect(methods.ConnectionClose).reply_code == 501
            elif size > 16 * MIB:
                assert raw.expect(methods.ChannelClose).reply_code == 406
        assert rss(member) - before < 16 * MIB


def test_replies_to_a_client_that_does_not_read_are_dropped(member: Member) -> None:
    """SEC-45, R-DRT-3: at most once; they cost two write buffers, and mandatory ones come back."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    deaf.settimeout(ANSWER_SECONDS)
    deaf.connect(("127.0.0.1", member.amqp_port))
    requester = RawClient(member.amqp_port, sock=deaf)
    requester.open(1)
    requester.send(1, methods.BasicConsume(0, "amq.rabbitmq.reply-to", "r", no_ack=True))
    requester.expect(methods.BasicConsumeOk)
    with client(member.amqp_port) as replier:
        replier.open(1)
        replier.declare(1, "asked", durable=True)
        question = BasicProperties(reply_to="amq.rabbitmq.reply-to").encode()
        requester.send(1, publish(1, "", "asked", b"?", question))
        eventually(lambda: replier.count(1, "asked") == 1, "the question has come")
        replier.send(1, methods.BasicGet(0, "asked", no_ack=True))
        name = BasicProperties.decode(replier.content(methods.BasicGetOk)[1]).reply_to
        assert name is not None
        before = rss(member)
        replier.send(1, methods.ConfirmSelect(nowait=True))
        returned = confirmed = 0
        while not returned:
            replier.send(1, publish(1, "", name, bytes(MIB), mandatory=True))
            found = replier.next_method()
            assert found is not None
            if isinstance(found[1], methods.BasicReturn):
                returned += 1
            else:
                assert isinstance(found[1], methods.BasicAck)
                confirmed += 1
                assert confirmed < 64, "a client that reads nothing takes everything"
        assert rss(member) - before < 64 * MIB
    requester.close()
