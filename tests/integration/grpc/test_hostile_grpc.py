"""Strangers at the gRPC port on raw sockets: they get a few kilobytes and a few seconds (SEC-34).

And ordinary users with bodies that they never finish.  Each attack is watched by the memory that
it takes, and somebody with a password must be served meanwhile.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import hpack
import psutil
import pytest

from brokerd.http2 import framing
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.members import Member, cluster, eventually, select_nothing
from tests.integration.messages_client import Client, batch, metadata, numbers, publication

pytestmark = pytest.mark.timeout(240)

MIB = 1024 * 1024
#: What an attack may add to a member, allocator's slack included; seen before: 700 MiB and more.
GROWTH_MAX = 48 * MIB
#: What users' unfinished requests may hold at the member of these tests.
REQUEST_BYTES = 32 * MIB
LOGIN_MS = 3000
HALF_OPEN = 300
STRANGERS_PER_ADDRESS = 100
ANSWER_S = 60.0
BASE = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "here"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
START = framing.PREFACE + framing.settings_frame([])


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {
        "BROKERD_LIMITS_HANDSHAKE_TIMEOUT_MS": str(LOGIN_MS),
        "BROKERD_LIMITS_UNAUTHENTICATED_PER_ADDRESS": str(STRANGERS_PER_ADDRESS),
        "BROKERD_LIMITS_GRPC_REQUEST_BYTES": str(REQUEST_BYTES),
    }
    with cluster(tmp_path_factory.mktemp("hostile"), 1, is_warm=False, **settings) as [member]:
        get_info(member)
        yield member


def get_info(member: Member) -> Any:
    """Call as a client does that has just started."""
    with grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}") as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        return stub.GetInfo(
            admin_pb2.GetInfoRequest(),
            metadata=metadata(),
            timeout=ANSWER_S,
            wait_for_ready=True,
        )


def rss(member: Member) -> int:
    assert member.process is not None
    return int(psutil.Process(member.process.pid).memory_info().rss)


@contextlib.contextmanager
def watched(member: Member) -> Iterator[None]:
    """Watch a member's memory during an attack; somebody is served in the middle and after it."""
    before, most, is_over = rss(member), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            most[0] = max(most[0], rss(member))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
        assert get_info(member).node == member.name
    finally:
        is_over.set()
        watcher.join()
    grown = max(most[0], rss(member)) - before
    assert grown < GROWTH_MAX, f"grew by {grown / MIB:.0f} MiB"
    assert get_info(member).node == member.name


def dial(member: Member) -> socket.socket:
    return socket.create_connection(("127.0.0.1", member.grpc_port), timeout=ANSWER_S)


def is_closed(sock: socket.socket) -> bool:
    """Read what is there; tell whether that was the end."""
    sock.settimeout(0.0)
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def push(sock: socket.socket, pieces: Iterator[bytes], seconds: float = 20.0) -> int:
    """Send until the member closes, the pieces end, or nothing is taken any more; how much went."""
    sent, deadline = 0, time.monotonic() + seconds
    sock.settimeout(1.0)
    with contextlib.suppress(OSError):
        for piece in pieces:
            if time.monotonic() > deadline:
                break
            sock.sendall(piece)
            sent += len(piece)
    return sent


def request(
    stream: int, *more: tuple[str, str], path: str = "/brokerd.v1.Admin/SetSettings"
) -> bytes:
    # Pseudo headers come first.
    ordered = sorted([*BASE, (":path", path), *more], key=lambda header: header[0][0] != ":")
    block = hpack.Encoder().encode(ordered)
    return framing.frame(framing.HEADERS, framing.END_HEADERS, stream, block)


def zeros(
    stream: int, size: int, frame_bytes: int = framing.FRAME_BYTES_DEFAULT
) -> Iterator[bytes]:
    for begin in range(0, size, frame_bytes):
        yield framing.frame(framing.DATA, 0, stream, bytes(min(frame_bytes, size - begin)))


def flood_of_headers(kind: str) -> Iterator[bytes]:
    """64 MiB of a block of headers that never ends."""
    name_and_length = b"\x00" + b"\x7f\x80\xff\xff\x3f"
    yield START + framing.frame(
        framing.HEADERS, 0, 1, name_and_length if kind == "one name" else b""
    )
    literal = b"\x00\x03abc\x7f\x81\x07" + bytes(1024)
    piece = {"one name": b"a" * 16_384, "many headers": literal * 15, "empty": b""}[kind]
    for _ in range(64 * MIB // max(len(piece), 1024)):
        yield framing.frame(framing.CONTINUATION, 0, 1, piece)


@pytest.mark.parametrize("kind", ["one name", "many headers", "empty"])
def test_headers_without_an_end_cost_a_few_kilobytes(member: Member, kind: str) -> None:
    """Two sockets took 700 MiB in 12 s: CONTINUATION after CONTINUATION (CVE-2024-27316)."""
    with watched(member), dial(member) as one, dial(member) as other:
        sent = [push(sock, flood_of_headers(kind)) for sock in (one, other)]
        eventually(lambda: is_closed(one) and is_closed(other), "both are closed")
        # What the kernel's buffers took may be more than the member read.
        assert max(sent) < 16 * MIB


def test_headers_that_unfold_are_refused(member: Member) -> None:
    """A block of 8 KiB that means 30 MiB: a long header, then references to it."""
    encoder = hpack.Encoder()
    bomb = encoder.encode([("x", "y" * 4000)], huffman=False) + b"\xbe" * 4000
    with watched(member), contextlib.ExitStack() as stack:
        socks = [stack.enter_context(dial(member)) for _ in range(20)]
        for sock in socks:
            push(
                sock,
                iter([START + framing.frame(framing.HEADERS, framing.END_HEADERS, 1, bomb)]),
            )
        eventually(lambda: all(map(is_closed, socks)), "all are closed")


def test_bodies_without_credentials_are_not_read(member: Member) -> None:
    """60 calls of 16 MiB each were read whole before anybody asked who they were."""
    refused: list[grpc.StatusCode] = []

    def call() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}", options) as channel:
            method: Any = channel.unary_unary("/brokerd.v1.Admin/SetSettings")
            try:
                method(bytes(16 * MIB), timeout=ANSWER_S)
            except grpc.RpcError as error:
                refused.append(error.code())

    with watched(member):
        threads = [threading.Thread(target=call) for _ in range(30)]
        for thread in threads:
            thread.start()
        with contextlib.ExitStack() as stack:
            # And some who do not care for windows.
            for _ in range(30):
                sock = stack.enter_context(dial(member))
                sent = push(sock, iter([START + request(1), *zeros(1, MIB)]), seconds=2.0)
                assert sent
            assert get_info(member).node == member.name
        for thread in threads:
            thread.join()
    assert set(refused) == {grpc.StatusCode.UNAUTHENTICATED}


def test_a_wrong_password_is_told_before_the_body_ends(member: Member) -> None:
    """The answer comes though the body does not: nobody reads it first."""
    token = base64.b64encode(b"guest:wrong").decode()
    with dial(member) as sock:
        sock.sendall(START + request(1, ("authorization", f"Basic {token}")))
        sock.sendall(framing.frame(framing.DATA, 0, 1, struct.pack(">BI", 0, 16 * MIB)))
        decoder, buffer = hpack.Decoder(), b""
        while True:
            buffer += sock.recv(65_536)
            found = dict(headers_in(buffer, decoder))
            if found:
                break
    assert found["grpc-status"] == "16"


def headers_in(data: bytes, decoder: hpack.Decoder) -> list[tuple[str, str]]:
    """Return the headers of the first whole HEADERS frame."""
    at = 0
    while len(data) - at >= 9:
        size, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        payload = data[at + 9 : at + 9 + size]
        if kind == framing.HEADERS and len(payload) == size:
            return [(str(name), str(value)) for name, value in decoder.decode(payload)]
        at += 9 + size
    return []


def test_half_open_connections_keep_nobody_out_and_are_ended(member: Member) -> None:
    """Of hundreds from one address the oldest go for new ones; the rest when their time is over."""
    said = [b"", framing.PREFACE[:10], START, START + request(1)[:20]]
    with watched(member), contextlib.ExitStack() as stack:
        socks = [stack.enter_context(dial(member)) for _ in range(HALF_OPEN)]
        for index, sock in enumerate(socks):
            with contextlib.suppress(OSError):
                sock.sendall(said[index % len(said)])
        get_info(member)
        eventually(
            lambda: sum(map(is_closed, socks)) >= HALF_OPEN - STRANGERS_PER_ADDRESS,
            "no more than may be there are",
        )
        eventually(lambda: all(map(is_closed, socks)), "all are closed in time")


def test_idle_connections_of_known_users_stay(member: Member) -> None:
    """The time is for strangers."""
    with grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}") as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        states: list[grpc.ChannelConnectivity] = []
        stub.GetInfo(admin_pb2.GetInfoRequest(), metadata=metadata(), timeout=ANSWER_S)
        channel.subscribe(states.append)
        with dial(member) as stranger:
            eventually(lambda: is_closed(stranger), "a stranger who came later is closed")
        stub.GetInfo(admin_pb2.GetInfoRequest(), metadata=metadata(), timeout=ANSWER_S)
        assert set(states) == {grpc.ChannelConnectivity.READY}


def unfinished(stream: int, size: int, token: str) -> Iterator[bytes]:
    """A Publish call whose first message lacks its last byte."""
    yield request(stream, ("authorization", token), path="/brokerd.v1.Messages/Publish")
    yield framing.frame(framing.DATA, 0, stream, struct.pack(">BI", 0, size))


def test_unfinished_messages_of_a_user_are_bounded(member: Member) -> None:
    """40 messages of 15 MiB that lack a byte: what they may hold together is a setting."""
    token = metadata()[0][1]
    done = threading.Event()
    sent: list[int] = []

    def hoard(sock: socket.socket) -> None:
        """Send all that the windows let, but for the last byte of each message."""
        streams = dict.fromkeys(range(1, 21, 2), 15 * MIB - 1)
        windows = dict.fromkeys([0, *streams], framing.WINDOW_BYTES_DEFAULT)
        sock.settimeout(0.2)
        buffer = b""
        with contextlib.suppress(OSError):
            sock.sendall(START)
            for number in streams:
                sock.sendall(b"".join(unfinished(number, 15 * MIB, token)))
                windows[0] -= 5
                windows[number] -= 5
            while not done.is_set():
                for number, left in list(streams.items()):
                    size = min(left, windows[0], windows[number], 16_384)
                    if size > 0:
                        sock.sendall(framing.frame(framing.DATA, 0, number, bytes(size)))
                        streams[number] -= size
                        sent.append(size)
                        windows[0] -= size
                        windows[number] -= size
                sock.settimeout(0.001 if max(windows.values()) > 0 and windows[0] > 0 else 0.2)
                with contextlib.suppress(TimeoutError):
                    buffer += sock.recv(65_536)
                buffer = grant(buffer, windows)

    with watched(member), contextlib.ExitStack() as stack:
        threads = [
            threading.Thread(target=hoard, args=(stack.enter_context(dial(member)),))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        try:
            # One message has been promised its memory, and the rest waits for it.
            eventually(lambda: sum(sent) > 15 * MIB, "they hold what they get")
            eventually(lambda: is_stalled(sent), "they get no more")
            client = Client(member.grpc_port)
            with contextlib.closing(client.channel):
                call = client.publish()
                call.send(batch(*(publication(n, "nowhere", bytes(1000)) for n in range(1, 101))))
                assert numbers(call.rest(), "confirmed") == list(range(1, 101))
        finally:
            done.set()
            for thread in threads:
                thread.join()


def is_stalled(sent: list[int]) -> bool:
    """Tell whether nothing more is sent for a moment."""
    before = len(sent)
    select_nothing(0.5)
    return len(sent) == before


def grant(buffer: bytes, windows: dict[int, int]) -> bytes:
    """Take WINDOW_UPDATE frames; return what is left of the last one."""
    while len(buffer) >= 9:
        size, kind = int.from_bytes(buffer[:3], "big"), buffer[3]
        if len(buffer) < 9 + size:
            break
        number = int.from_bytes(buffer[5:9], "big")
        if kind == framing.WINDOW_UPDATE and number in windows:
            windows[number] += int.from_bytes(buffer[9:13], "big")
        buffer = buffer[9 + size :]
    return buffer


def test_large_messages_of_many_connections_all_come_in_turn(member: Member) -> None:
    """Six of 15 MiB at once where two have room: each is whole, one after the other."""
    confirmed: list[int] = []

    def publish(number: int) -> None:
        client = Client(member.grpc_port)
        with contextlib.closing(client.channel):
            call = client.publish()
            call.send(batch(publication(number, "nowhere", bytes(15 * MIB))))
            confirmed.extend(numbers(call.rest(), "confirmed"))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(confirmed) == [1, 2, 3, 4, 5, 6]


def floods() -> dict[str, Callable[[], Iterator[bytes]]]:
    token = metadata()[0][1]

    def repeated(piece: bytes, *begin: bytes) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            yield START + b"".join(begin)
            for _ in range(2000):
                yield piece * 20

        return pieces

    def resets() -> Iterator[bytes]:
        yield START
        for number in range(1, 40_001, 2):
            yield (
                request(number, ("authorization", token), path="/brokerd.v1.Messages/Publish")
                + framing.frame(framing.RST_STREAM, 0, number, bytes(4))
            )

    def unknown_methods() -> Iterator[bytes]:
        yield START
        for number in range(1, 40_001, 2):
            yield request(number, path="/nothing")

    return {
        "calls of nobody": unknown_methods,
        "pings": repeated(framing.frame(framing.PING, 0, 0, bytes(8))),
        "settings": repeated(framing.settings_frame([(4, 65_536)] * 1000)),
        "empty data": repeated(
            framing.frame(framing.DATA, 0, 1),
            request(1, ("authorization", token), path="/brokerd.v1.Messages/Publish"),
        ),
        "rapid resets": resets,
    }


@pytest.mark.parametrize("kind", list(floods()))
def test_frames_that_move_nothing_are_a_flood(member: Member, kind: str) -> None:
    """CVE-2019-9512, -9515, -9518, CVE-2023-44487."""
    with watched(member), dial(member) as sock:
        push(sock, floods()[kind]())
        eventually(lambda: is_closed(sock), "it is closed")
