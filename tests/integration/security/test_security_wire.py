"""Hostile bytes and floods before and after the login, on raw sockets against a real member.

Every test ends with a client that is served: the member goes on. Slow readers and alarms are in
test_amqp_limits.py.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brokerd.amqp import methods
from brokerd.amqp.values import Table, encode_table
from tests.integration.amqp.test_amqp_starts import certificate
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import (
    ANSWER_SECONDS,
    HEADER,
    PLAIN,
    RawClient,
    client,
    frame,
    publish,
)
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)

M = methods
MIB = 1024 * 1024
HANDSHAKE_MS = 4_000
LOGIN = M.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US").encode(0)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    folder = tmp_path_factory.mktemp("wire")
    cert_file, key_file = certificate(folder)
    [amqps] = free_ports(1)
    small = {
        "BROKERD_LIMITS_HANDSHAKE_TIMEOUT_MS": str(HANDSHAKE_MS),
        "BROKERD_LIMITS_UNAUTHENTICATED_PER_ADDRESS": "8",
        "BROKERD_LIMITS_CONNECTIONS": "40",
        "BROKERD_LIMITS_CONSUMERS_PER_CHANNEL": "3",
        "BROKERD_TLS_CERT_FILE": str(cert_file),
        "BROKERD_TLS_KEY_FILE": str(key_file),
        "BROKERD_LISTENERS_AMQPS": str(amqps),
    }
    with cluster(folder, 1, is_warm=False, **small) as [member]:
        member.ports["AMQPS"] = amqps
        yield member


@pytest.fixture(autouse=True)
def serves_on(member: Member) -> Iterator[None]:
    """The member answers an ordinary client after each attack."""
    yield
    assert member.process is not None
    assert member.process.poll() is None
    assert "Traceback" not in member.log()
    with client(member.amqp_port) as raw:
        raw.open(1)
        assert raw.declare(1, "", exclusive=True)


def dial(member: Member, listener: str = "AMQP") -> socket.socket:
    """Return a socket that has said nothing yet."""
    return socket.create_connection(("127.0.0.1", member.ports[listener]), timeout=ANSWER_SECONDS)


def ended_within(sock: socket.socket, seconds: float) -> bool:
    """Read until the server ends the socket; tell whether it did in time."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        while time.monotonic() < deadline:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            if not sock.recv(65_536):
                return True
        return False
    return time.monotonic() < deadline


def rss(member: Member) -> int:
    """Return the resident bytes of the member."""
    assert member.process is not None
    return int(psutil.Process(member.process.pid).memory_info().rss)


# ---- before the login ----------------------------------------------------------------------------


def test_a_client_that_says_nothing_is_dropped(member: Member) -> None:
    """SEC-32, R-CON-4: ten seconds from the accept, not a whole period late (R-OPEN-4)."""
    with dial(member) as silent:
        assert ended_within(silent, 60)


def test_one_byte_at_a_time_does_not_stretch_the_handshake(member: Member) -> None:
    """SEC-32, R-CON-4: from the first byte to open-ok, however busy the client looks."""
    with dial(member) as slow:
        slow.settimeout(0.2)
        deadline = time.monotonic() + 60
        data, sent, closed = HEADER + LOGIN, 0, False
        while not closed and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                try:
                    slow.sendall(data[sent : sent + 1])
                    sent += 1
                    closed = slow.recv(65_536) == b""
                except (ConnectionResetError, BrokenPipeError):
                    closed = True
        assert closed
        assert sent < len(data)


def test_a_client_that_stops_after_tune_is_dropped(member: Member) -> None:
    """SEC-32: logged in is not yet open."""
    with dial(member) as half:
        half.sendall(HEADER + LOGIN)
        assert ended_within(half, 60)


def test_half_a_tls_handshake_is_dropped(member: Member) -> None:
    """SEC-33: five seconds for TLS, also when nothing comes at all."""
    with dial(member, "AMQPS") as silent, dial(member, "AMQPS") as started:
        # The first bytes of a ClientHello that never ends.
        started.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert ended_within(silent, 60)
        assert ended_within(started, 60)


def test_sockets_that_have_not_logged_in_are_counted(member: Member) -> None:
    """SEC-34: for the ninth of one address the first is closed, clients that are in stay in."""
    with client(member.amqp_port) as inside, contextlib.ExitStack() as stack:
        inside.open(1)
        waiting = [stack.enter_context(dial(member)) for _ in range(8)]
        refused = member.log().count("too many connections")
        waiting.append(stack.enter_context(dial(member)))
        assert ended_within(waiting[0], 60)
        # At the door, and not for its silence.
        line = "too many connections"
        eventually(lambda: member.log().count(line) == refused + 1, "it is logged")
        assert inside.declare(1, "", exclusive=True)
        for sock in waiting:
            assert ended_within(sock, 60)

    def let_in() -> bool:
        with contextlib.suppress(AssertionError, OSError), client(member.amqp_port):
            return True
        return False

    eventually(let_in, "room again")


#: What a stranger sends behind the protocol header in place of start-ok.
STRANGE = {
    "above 8 KiB": frame(1, 0, b"\0" * 8_192),
    "4 GiB announced": struct.pack(">BHI", 1, 0, 0xFFFFFFFF) + b"\0" * 100,
    "channel 1": M.ChannelOpen().encode(1),
    "publish": publish(1, "", "q", b"m"),
    "body on channel 0": frame(3, 0, b"body"),
    "unknown type": frame(0x77, 0, b""),
    "heartbeats": frame(8, 0, b"") * 1000,
}


def test_nothing_but_the_handshake_is_heard_before_the_login(member: Member) -> None:
    """SEC-31, SEC-35, R-CON-4, R-CON-8: no answer, no memory, the socket ends."""
    before = rss(member)
    with contextlib.ExitStack() as stack:
        strangers = {name: stack.enter_context(dial(member)) for name in STRANGE}
        for name, sock in strangers.items():
            sock.sendall(HEADER)
            assert sock.recv(4096).startswith(b"\x01\0\0"), name
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                sock.sendall(STRANGE[name])
        answers = {name: rest_of(sock) for name, sock in strangers.items()}
    assert answers == dict.fromkeys(STRANGE, b"")
    assert rss(member) - before < 16 * MIB


def rest_of(sock: socket.socket) -> bytes:
    """Return what still comes until the server ends the socket."""
    rest = b""
    sock.settimeout(ANSWER_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(4096):
            rest += piece
    return rest


def test_frames_of_eight_kibibytes_are_the_limit_until_tune_ok(member: Member) -> None:
    """SEC-31, R-CON-8: between login and tune-ok as well; afterwards frame_max holds."""
    with dial(member) as stranger:
        stranger.sendall(HEADER + LOGIN)
        stranger.sendall(frame(1, 0, struct.pack(">HH", 10, 31) + b"\0" * 9_000))
        # connection.close with 501, as the client is known by now.
        answer = b""
        while struct.pack(">HHH", 10, 50, 501) not in answer:
            piece = stranger.recv(4096)
            assert piece, answer
            answer += piece
        assert b"frame_too_large" in answer
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            stranger.sendall(M.ConnectionCloseOk().encode(0))


def test_passwords_are_refused_without_tls_where_it_is_demanded(tmp_path: Path) -> None:
    """SEC-7, SEC-6, R-CON-5: both mechanisms, with the right password too; over TLS it is taken."""
    cert_file, key_file = certificate(tmp_path)
    [amqps] = free_ports(1)
    strict = {
        "BROKERD_AUTH_PASSWORDS_WITHOUT_TLS": "deny",
        "BROKERD_TLS_CERT_FILE": str(cert_file),
        "BROKERD_TLS_KEY_FILE": str(key_file),
        "BROKERD_LISTENERS_AMQPS": str(amqps),
    }
    table = encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    with cluster(tmp_path, 1, **strict) as [member]:
        for mechanism, response in (("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", table)):
            with dial(member) as plain:
                able: Table = {"capabilities": {"authentication_failure_close": True}}
                start_ok = M.ConnectionStartOk(able, mechanism, response, "en_US")
                plain.sendall(HEADER + start_ok.encode(0))
                answer = rest_of(plain)
            assert struct.pack(">HHH", 10, 50, 403) in answer
            assert f"authentication mechanism {mechanism}".encode() in answer
        assert "auth.passwords_without_tls" in member.log()
        context = ssl.create_default_context(cafile=str(cert_file))
        context.check_hostname = False
        sock = context.wrap_socket(
            socket.create_connection(("127.0.0.1", amqps), timeout=ANSWER_SECONDS)
        )
        with contextlib.closing(RawClient(amqps, sock=sock)) as raw:
            raw.open(1)
            assert raw.declare(1, "", exclusive=True)


# ---- frames --------------------------------------------------------------------------------------


def test_a_body_frame_above_frame_max_ends_the_connection(member: Member) -> None:
    """SEC-36, SEC-57, R-FRM-2: bodies are no exception; 8 bytes of slack, not 9."""
    with client(member.amqp_port, frame_max=8_192) as raw:
        raw.open(1)
        raw.declare(1, "q", exclusive=True)
        method = M.BasicPublish(0, "", "q").encode(1)
        head = frame(2, 1, struct.pack(">HHQ", 60, 0, 8_192) + PLAIN)
        raw.send(1, method, head, frame(3, 1, bytes(8_192)))
        eventually(lambda: raw.count(1, "q") == 1, "with the slack it is taken")
        head = frame(2, 1, struct.pack(">HHQ", 60, 0, 8_193) + PLAIN)
        raw.send(1, method, head, frame(3, 1, bytes(8_193)))
        closed = raw.expect(M.ConnectionClose)
        assert (closed.reply_code, "frame_too_large" in closed.reply_text) == (501, True)


def test_announced_bodies_cost_nothing_until_they_come(member: Member) -> None:
    """SEC-40, SEC-58, SEC-43: 2,000 channels that announce 16 MiB each."""
    with client(member.amqp_port) as raw:
        raw.send(0, *[M.ChannelOpen().encode(number) for number in range(1, 2_001)])
        for _ in range(2_000):
            raw.expect(M.ChannelOpenOk)
        before = rss(member)
        head = struct.pack(">HHQ", 60, 0, 16 * MIB) + PLAIN
        for number in range(1, 2_001):
            raw.send(number, M.BasicPublish(0, "", "q"), frame(2, number, head))
            raw.send(number, frame(3, number, b"x"))
        raw.send(1, frame(8, 0, b""))
        with client(member.amqp_port) as other:
            other.open(1)
            other.declare(1, "", exclusive=True)
        assert rss(member) - before < 64 * MIB


def test_high_channel_numbers_cost_no_more_than_low_ones(member: Member) -> None:
    """SEC-37, SEC-60, R-CH-2: channels are counted; nothing is as large as the number."""
    with client(member.amqp_port, channel_max=3) as raw:
        before = rss(member)
        for number in (1, 40_000, 65_535):
            raw.open(number)
        assert rss(member) - before < 8 * MIB
        raw.send(2, M.ChannelOpen())
        closed = raw.expect(M.ConnectionClose)
        assert closed.reply_code == 530
        assert "number of channels opened (3) has reached the negotiated channel_max (3)" in (
            closed.reply_text
        )


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 255])
def test_frames_of_unknown_type_end_the_connection(member: Member, kind: int) -> None:
    """SEC-38, SEC-60, R-FRM-3: 501, none is skipped."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, frame(kind, 1, b"hello"))
        assert raw.expect(M.ConnectionClose).reply_code == 501


def test_a_body_is_as_long_as_its_header_says(member: Member) -> None:
    """SEC-41, R-FRM-6, R-FRM-7: more is 501; less waits, and the next method is 505."""
    for rest, code in ((frame(3, 1, b"four!"), 501), (publish(1, "", "q", b""), 505)):
        with client(member.amqp_port) as raw:
            raw.open(1)
            head = frame(2, 1, struct.pack(">HHQ", 60, 0, 4) + PLAIN)
            raw.send(1, M.BasicPublish(0, "", "q"), head, rest)
            assert raw.expect(M.ConnectionClose).reply_code == code


@pytest.mark.parametrize("frame_max", [1, 4_095, 8_191])
def test_a_frame_max_too_small_to_work_with_is_refused(member: Member, frame_max: int) -> None:
    """SEC-39, SEC-59, R-CON-9: 530 with the reason."""
    text = f"negotiated frame_max = {frame_max} is lower than the minimum allowed value"
    with pytest.raises(AssertionError, match=text):
        RawClient(member.amqp_port, frame_max=frame_max)


@pytest.mark.parametrize("depth", [17, 4_000])
def test_tables_in_tables_have_a_depth(member: Member, depth: int) -> None:
    """SEC-42: 502, not the end of the stack."""
    table = b""
    for _ in range(depth):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    fields = struct.pack(">HH", 40, 10) + b"\0\0\x01e\x06direct\0"
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, frame(1, 1, fields + struct.pack(">I", len(table)) + table))
        assert raw.expect(M.ConnectionClose).reply_code == 502


# ---- resources -----------------------------------------------------------------------------------


def test_consumers_of_a_channel_are_limited(member: Member) -> None:
    """SEC-44, R-CS-1: 530 above consumers_per_channel."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, "q", exclusive=True)
        for _ in range(3):
            raw.send(1, M.BasicConsume(0, "q"))
            raw.expect(M.BasicConsumeOk)
        raw.send(1, M.BasicConsume(0, "q"))
        closed = raw.expect(M.ConnectionClose)
        assert closed.reply_code == 530
        assert closed.reply_text == "NOT_ALLOWED - reached maximum (3) of consumers per channel"


def test_connections_of_a_member_are_limited(member: Member) -> None:
    """SEC-44, R-CON-12: the next socket is closed, and let in when one has gone."""
    with contextlib.ExitStack() as stack:
        made: list[RawClient] = []
        with contextlib.suppress(AssertionError, OSError):
            while len(made) < 60:
                made.append(RawClient(member.amqp_port))
                stack.callback(made[-1].close)
        assert len(made) == 40
        made[0].close()

        def let_in() -> bool:
            with contextlib.suppress(AssertionError, OSError):
                stack.callback(RawClient(member.amqp_port).close)
                return True
            return False

        eventually(let_in, "one may come in")


def test_a_blocked_publisher_is_not_read(tmp_path: Path) -> None:
    """SEC-46, R-ALM-2: at the watermark its bytes stay in the socket, not in memory."""
    with cluster(tmp_path, 1, BROKERD_MEMORY_HIGH_WATERMARK="0") as [full]:
        eventually(lambda: "memory resource limit alarm set" in full.log(), "the alarm")
        with client(full.amqp_port, capabilities={"connection.blocked": True}) as raw:
            raw.open(1)
            raw.declare(1, "q", durable=True)
            before = rss(full)
            raw.send(1, publish(1, "", "q", b"first"))
            assert raw.expect(M.ConnectionBlocked).reason == "low on memory"
            raw.socket.settimeout(2)
            flood = publish(1, "", "q", bytes(100_000)) * 10
            with pytest.raises(TimeoutError):
                raw.socket.sendall(flood * 200)
            assert rss(full) - before < 32 * MIB
        with client(full.amqp_port) as other:
            other.open(1)
            assert other.count(1, "q") == 0


def test_a_flood_of_channels_opened_and_closed_leaves_nothing_behind(member: Member) -> None:
    """SEC-44: 20,000 channels, one after the other, on one connection."""
    pair = M.ChannelOpen().encode(1) + M.ChannelClose(200, "").encode(1)
    with client(member.amqp_port) as raw:
        raw.open(2)

        def thousands(count: int) -> None:
            for _ in range(count):
                raw.send(1, pair * 1_000)
                for _ in range(1_000):
                    raw.expect(M.ChannelOpenOk)
                    raw.expect(M.ChannelCloseOk)

        thousands(2)
        before = rss(member)
        thousands(18)
        assert rss(member) - before < 32 * MIB
        assert raw.declare(2, "", exclusive=True)
