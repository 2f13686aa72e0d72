"""Many idle AMQP connections from one process: opened, held, closed.

The bytes of the handshake are prepared once; a connection costs this process a socket and nothing
else.  For bench.curves.
"""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import BenchError

TIMEOUT_S = 30.0
FRAME_END = b"\xce"


def _method(class_id: int, method_id: int, arguments: bytes) -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + FRAME_END


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


HEADER = b"AMQP\x00\x00\x09\x01"
START_OK = _method(
    10, 11, _long(b"") + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
)
#: No heartbeats: these connections are to be idle.
TUNE_OK = _method(10, 31, struct.pack(">HIH", 2047, 131072, 0))
OPEN = _method(10, 40, _short(b"/") + _short(b"") + b"\0")
OPEN_OK = (10, 41)


class _Opening:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next_method(self) -> tuple[int, int]:
        while True:
            if len(self._buffer) >= 7:
                size = struct.unpack_from(">I", self._buffer, 3)[0] + 8
                if len(self._buffer) >= size:
                    frame, self._buffer = self._buffer[:size], self._buffer[size:]
                    class_id, method_id = struct.unpack_from(">HH", frame, 7)
                    return int(class_id), int(method_id)
            data = self.socket.recv(65536)
            if not data:
                raise BenchError("the broker closed a connection that was being opened")
            self._buffer += data


def _open(port: int) -> socket.socket:
    opening = _Opening(port)
    opening.send(HEADER)
    opening.next_method()
    opening.send(START_OK)
    opening.next_method()
    opening.send(TUNE_OK + OPEN)
    if opening.next_method() != OPEN_OK:
        raise BenchError("the broker refused a connection")
    return opening.socket


@contextmanager
def idle_connections(ports: list[int], count: int) -> Iterator[None]:
    """Hold `count` open connections, spread over the members' ports."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    try:
        for number in range(count):
            held.append(_open(ports[number % len(ports)]))
        yield
    finally:
        for one in held:
            one.close()
