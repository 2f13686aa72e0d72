"""The load program against a scripted broker: what is wrong is said, nothing hangs or crashes.

What it does with real brokers shows in every run of the bench.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import load_programs

Script = Callable[[socket.socket], None]
BROKER, TIMEOUT, USAGE = 2, 3, 64


def frame(payload: bytes, channel: int = 0, kind: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 0) -> bytes:
    return frame(struct.pack(">HH", class_id, method_id) + arguments, channel)


START = method(10, 10, b"\x00\x09" + bytes(4) + b"\0\0\0\x05PLAIN" + b"\0\0\0\x05en_US")
TUNE = method(10, 30, struct.pack(">HIH", 2047, 131072, 60))
OPENED = method(10, 41, b"\0") + method(20, 11, bytes(4), channel=1)
DECLARED = method(50, 11, b"\x01q" + bytes(8), channel=1)
CONFIRMING = method(85, 11, channel=1)
CLOSED = method(10, 51)
REFUSED = method(10, 50, struct.pack(">HB", 403, 4) + b"nope" + bytes(4))
CLOSE = struct.pack(">HH", 10, 50)
PUBLISH = struct.pack(">HH", 60, 40)


@contextlib.contextmanager
def broker(script: Script) -> Iterator[int]:
    """A listener whose one connection is handled by the script, after the protocol header."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        connection, _ = listener.accept()
        connection.settimeout(10)
        with connection, contextlib.suppress(OSError):  # the client may be gone already
            connection.recv(8)
            script(connection)
            while connection.recv(65536):
                pass  # until the client has gone

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(timeout=60)
        listener.close()
    assert not thread.is_alive()


def load(port: int, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(load_programs.amqpload()), *args, "--port", str(port), "--timeout", "2"]
    return subprocess.run(command, text=True, capture_output=True, timeout=60)


def read_methods(connection: socket.socket, head: bytes, count: int) -> int:
    """Read until a method has come so many times, and return how many there are by then."""
    seen = b""
    while seen.count(head) < count:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError
        seen += data
    return seen.count(head)


def receive_until(connection: socket.socket, heads: tuple[bytes, ...]) -> bytes:
    """Read until one of these methods has come, and return all of it."""
    seen = b""
    while not any(head in seen for head in heads):
        data = connection.recv(65536)
        if not data:
            raise ConnectionError
        seen += data
    return seen


def sends(*data: bytes) -> Script:
    def script(connection: socket.socket) -> None:
        connection.sendall(b"".join(data))

    return script


def test_publishes_are_confirmed_by_one_multiple_ack() -> None:
    ack = method(60, 80, struct.pack(">QB", 50, 1), channel=1)

    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + DECLARED + CONFIRMING)
        read_methods(connection, PUBLISH, 50)
        connection.sendall(ack)
        read_methods(connection, CLOSE, 1)
        connection.sendall(CLOSED)

    with broker(script) as port:
        done = load(port, "publish", "--count", "50", "--size", "100")
    assert done.returncode == 0, done.stderr
    assert '"messages": 50' in done.stdout
    assert '"nacked": 0' in done.stdout


GET = struct.pack(">HH", 60, 70)


def got(tag: int, size: int, sent: int) -> bytes:
    """Return a get-ok whose header says `size` and whose body frame has `sent` bytes."""
    arguments = struct.pack(">QBBBI", tag, 0, 0, 0, 0)
    header = frame(struct.pack(">HHQH", 60, 0, size, 0), 1, 2)
    return method(60, 71, arguments, channel=1) + header + frame(b"x" * sent, 1, 3)


def test_gets_wait_for_their_message() -> None:
    together: list[int] = []

    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + DECLARED)
        for tag in range(1, 6):
            together.append(read_methods(connection, GET, 1))
            connection.sendall(got(tag, 100, 60) + frame(b"x" * 40, 1, 3))
        read_methods(connection, CLOSE, 1)
        connection.sendall(CLOSED)

    with broker(script) as port:
        done = load(port, "get", "--count", "5", "--ack", "auto")
    assert (done.returncode, together) == (0, [1] * 5), done.stderr
    assert '"messages": 5' in done.stdout


def test_a_body_that_is_larger_than_its_header_says_is_named() -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + DECLARED)
        read_methods(connection, GET, 1)
        connection.sendall(got(1, 10, 11))

    with broker(script) as port:
        done = load(port, "get", "--count", "5")
    assert done.returncode == BROKER
    assert "get: unexpected frame" in done.stderr


def test_window_is_never_exceeded() -> None:
    """Each publish is answered before the next may come: one at a time is all that is ever read."""
    together: list[int] = []

    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + DECLARED + CONFIRMING)
        for tag in range(1, 31):
            together.append(read_methods(connection, PUBLISH, 1))
            connection.sendall(method(60, 80, struct.pack(">QB", tag, 0), channel=1))
        read_methods(connection, CLOSE, 1)
        connection.sendall(CLOSED)

    with broker(script) as port:
        done = load(port, "publish", "--count", "30", "--in-flight", "1", "--size", "10")
    assert done.returncode == 0, done.stderr
    assert together == [1] * 30


CONSUMING = method(60, 11, channel=1) + method(60, 21, b"\x04load", channel=1)


def test_each_of_many_publishers_awaits_its_confirm() -> None:
    together: list[int] = []

    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + CONFIRMING)
        # The last publish and the close may come in one read.
        while CLOSE not in (data := receive_until(connection, (PUBLISH, CLOSE))):
            together.append(data.count(PUBLISH))
            ack = struct.pack(">QB", len(together), 0)
            connection.sendall(method(60, 80, ack, channel=1))
        connection.sendall(CLOSED)

    with broker(script) as port:
        options = ("--no-declare", "--warm-up", "0", "--count", "29", "--size", "10")
        done = load(port, "publishers", *options)
    assert done.returncode == 0, done.stderr
    assert set(together) == {1}
    assert '"messages": 29,' in done.stdout


def test_a_confirm_of_many_publishers_that_cannot_be_is_named() -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + CONFIRMING)
        read_methods(connection, PUBLISH, 1)
        connection.sendall(method(60, 80, struct.pack(">QB", 9, 0), channel=1))

    with broker(script) as port:
        done = load(port, "publishers", "--no-declare", "--warm-up", "0")
    assert done.returncode == BROKER
    assert "confirm of tag 9, never sent" in done.stderr


def test_what_lies_in_a_queue_is_taken_until_it_is_dry() -> None:
    """A delivery, its ack, the next: a consumer with a prefetch of 1."""
    acks: list[int] = []

    def delivery(tag: int) -> bytes:
        arguments = b"\x04load" + struct.pack(">QB", tag, 0) + b"\0\x01q"
        header = frame(struct.pack(">HHQH", 60, 0, 10, 0), 1, 2)
        return method(60, 60, arguments, channel=1) + header + frame(b"x" * 10, 1, 3)

    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + CONSUMING)
        for tag in range(1, 20):
            connection.sendall(delivery(tag))
            acks.append(read_methods(connection, struct.pack(">HHQ", 60, 80, tag), 1))
        connection.sendall(delivery(20))
        read_methods(connection, CLOSE, 1)
        connection.sendall(CLOSED)

    with broker(script) as port:
        options = ("--no-declare", "--warm-up", "0", "--count", "20", "--prefetch", "1")
        done = load(port, "consumers", *options)
    assert (done.returncode, acks) == (0, [1] * 19), done.stderr


def http2_frame(kind: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, stream) + payload


def test_a_call_that_the_broker_ends_is_named() -> None:
    payload = struct.pack(">II", 0, 11) + b"go elsewhere"
    goaway = http2_frame(7, 0, payload)

    with broker(sends(goaway)) as port:
        done = load(port, "grpc", "--count", "1")
    assert done.returncode == BROKER
    assert "the broker ended the connection: go elsewhere" in done.stderr


def test_more_grpc_confirms_than_messages_are_named() -> None:
    """A response with one range, 1 to 9, of one message sent."""
    response = b"\x0a\x04\x08\x01\x10\x09"
    payload = struct.pack(">BI", 0, len(response)) + response
    data = http2_frame(0, 1, payload)

    def script(connection: socket.socket) -> None:
        # Nothing is published before the call's headers are answered.
        connection.sendall(http2_frame(1, 1, b""))
        read_methods(connection, b"amqpload", 1)  # the routing key of the first message
        connection.sendall(data)

    with broker(script) as port:
        done = load(port, "grpc", "--count", "1")
    assert done.returncode == BROKER
    assert "confirm of 1 to 9, of 1 sent" in done.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"AMQP\x00\x01\x00\x00", "another protocol version (0-1-0-0)"),
        (struct.pack(">BHI", 1, 0, 0xFFFFFFFF), "frame of 4294967295 bytes, more than frame-max"),
        (START[:-1] + b"\x00", "frame without its end mark"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "more than frame-max"),
        (REFUSED, "closed the connection: 403 nope"),
        (method(10, 50, b"\x01\x93\xff"), "close method of 7 bytes"),
        (START + method(10, 30, b"\0"), "tune of 5 bytes"),
        (START + method(10, 30, struct.pack(">HIH", 1, 64, 0)), "frame-max 64, below 4096"),
        (START + TUNE + method(60, 60), "expected method 10.41"),
    ],
)
def test_nonsense_from_the_broker_is_named(data: bytes, said: str) -> None:
    with broker(sends(data)) as port:
        done = load(port, "publish", "--count", "1")
    assert done.returncode == BROKER
    assert said in done.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (method(60, 80, struct.pack(">QB", 99, 0), channel=1), "confirm of tag 99, never sent"),
        (method(60, 80, struct.pack(">QB", 1, 0), channel=1) * 2, "tag 1 confirmed twice"),
        (method(60, 80, b"\0", channel=1), "confirm of 5 bytes"),
    ],
)
def test_confirm_that_cannot_be_is_named(data: bytes, said: str) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(START + TUNE + OPENED + DECLARED + CONFIRMING)
        read_methods(connection, PUBLISH, 1)
        connection.sendall(data)

    with broker(script) as port:
        done = load(port, "publish", "--count", "2")
    assert done.returncode == BROKER
    assert said in done.stderr


def test_body_frame_out_of_place_is_named() -> None:
    handshake = START + TUNE + OPENED + DECLARED
    consuming = method(60, 11, channel=1) + method(60, 21, b"\x04load", channel=1)
    with broker(sends(handshake, consuming, frame(b"body", channel=1, kind=3))) as port:
        done = load(port, "consume", "--count", "1")
    assert done.returncode == BROKER
    assert "unexpected body frame" in done.stderr


def test_silent_broker_ends_in_a_timeout() -> None:
    with broker(sends(START)) as port:
        done = load(port, "publish", "--count", "1")
    assert done.returncode == TIMEOUT
    assert "no answer" in done.stderr


def test_no_broker_is_named_with_host_and_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = load(port, "publish")
    assert done.returncode == BROKER
    assert f"cannot connect to 127.0.0.1 port {port}: Connection refused" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("explode",), "usage: amqpload"),
        (("publish", "--count", "-1"), "--count takes a number"),
        (("publish", "--count", "99999999999999999999"), "--count takes a number"),
        (("publish", "--in-flight", "0"), "at least 1"),
        (("consume", "--ack", "sometimes"), "--ack takes each, auto, none or multiple:K"),
        (("consume", "--ack", "none"), "--ack none is for get"),
        (("consume", "--ack", "multiple:500", "--prefetch", "100"), "would wait for ever"),
        (("publish", "--nonsense"), "the options are listed"),
        (("paced", "--no-declare", "--rate", "0"), "--rate is messages per second"),
        (("publishers", "--connections", "0"), "connections, queues, servers and seconds"),
        (("publishers", "--connections", "20001"), "a number from 0 to 20000"),
    ],
)
def test_wrong_usage_is_refused(args: tuple[str, ...], said: str) -> None:
    done = load(1, *args)
    assert done.returncode == USAGE
    assert said in done.stderr


def test_program_is_compiled_once(tmp_path: Path) -> None:
    first = load_programs.amqpload()
    before = first.stat().st_mtime_ns
    assert load_programs.amqpload() == first
    assert first.stat().st_mtime_ns == before
