"""An AMQP client that sends exactly what a test says: several methods in one write, broken frames.

Not for ordinary traffic (pika does that); used by the integration tests of the server.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

from brokerd.amqp import methods
from brokerd.amqp.channel import decode_method, method_class
from brokerd.amqp.methods import Method
from brokerd.amqp.values import Table

#: The properties of a message without any.
PLAIN = b"\x00\x00"
#: No answer within this time fails a test.
ANSWER_SECONDS = 60.0
HEADER = b"AMQP\x00\x00\x09\x01"

M = TypeVar("M", bound=Method)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return one frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def publish(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    properties: bytes = PLAIN,
    mandatory: bool = False,
    frame_max: int = 131_072,
) -> bytes:
    """Return the frames of one publish."""
    method = methods.BasicPublish(0, exchange, routing_key, mandatory, False)
    head = struct.pack(">HHQ", 60, 0, len(body)) + properties
    size = frame_max - 8
    parts = [frame(3, channel, body[i : i + size]) for i in range(0, len(body), size)]
    return method.encode(channel) + frame(2, channel, head) + b"".join(parts)


class RawClient:
    """One socket after connection.open-ok."""

    def __init__(
        self,
        port: int,
        *,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        heartbeat: int = 0,
        channel_max: int = 2047,
        frame_max: int = 131_072,
        capabilities: Table | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        self.socket = sock or socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._buffer = b""
        self.socket.sendall(HEADER)
        self.expect(methods.ConnectionStart)
        properties: Table = {"capabilities": capabilities if capabilities is not None else {}}
        response = f"\0{user}\0{password}".encode()
        self.send(0, methods.ConnectionStartOk(properties, "PLAIN", response, "en_US"))
        self.expect(methods.ConnectionTune)
        self.send(
            0,
            methods.ConnectionTuneOk(channel_max, frame_max, heartbeat),
            methods.ConnectionOpen(vhost),
        )
        self.expect(methods.ConnectionOpenOk)

    @classmethod
    def at_the_door(cls, sock: socket.socket) -> RawClient:
        """Return a client that has said nothing but the protocol header."""
        made = cls.__new__(cls)
        made.socket, made._buffer = sock, b""
        made.send(0, HEADER)
        return made

    def send(self, channel: int, *parts: Method | bytes) -> None:
        """Write methods and raw frames in one piece."""
        self.socket.sendall(
            b"".join(p if isinstance(p, bytes) else p.encode(channel) for p in parts)
        )

    def open(self, channel: int) -> None:
        """Open a channel and wait for it."""
        self.send(channel, methods.ChannelOpen())
        self.expect(methods.ChannelOpenOk)

    def next_frame(self) -> tuple[int, int, bytes] | None:
        """Return the next frame that is no heartbeat, None at the end of the stream."""
        while True:
            if len(self._buffer) >= 7:
                kind, channel, size = struct.unpack_from(">BHI", self._buffer)
                if len(self._buffer) >= size + 8:
                    payload = self._buffer[7 : 7 + size]
                    self._buffer = self._buffer[8 + size :]
                    if kind != 8:
                        return kind, channel, payload
                    continue
            data = self.socket.recv(1 << 20)
            if not data:
                return None
            self._buffer += data

    def next_method(self) -> tuple[int, Method] | None:
        """Return the next method as (channel, method), None at the end of the stream."""
        found = self.next_frame()
        if found is None:
            return None
        kind, channel, payload = found
        assert kind == 1, found
        return channel, decode_method(method_class(payload), payload)

    def expect(self, kind: type[M]) -> M:
        """Return the next method, which must be of this kind."""
        found = self.next_method()
        assert found is not None, f"the stream ended, not {kind.__name__}"
        assert isinstance(found[1], kind), (found[1], kind.__name__)
        return found[1]

    def content(self, kind: type[M]) -> tuple[M, bytes, bytes]:
        """Return (method, properties, body) of the next content."""
        method = self.expect(kind)
        found = self.next_frame()
        assert found is not None
        assert found[0] == 2
        (size,) = struct.unpack_from(">Q", found[2], 4)
        body = b""
        while len(body) < size:
            piece = self.next_frame()
            assert piece is not None
            assert piece[0] == 3
            body += piece[2]
        return method, found[2][12:], body

    def declare(self, channel: int, queue: str, **settings: Any) -> str:
        """Declare a queue and return its name."""
        self.send(channel, methods.QueueDeclare(0, queue, **settings))
        return self.expect(methods.QueueDeclareOk).queue

    def count(self, channel: int, queue: str) -> int:
        """Return the ready messages of a queue."""
        self.send(channel, methods.QueueDeclare(0, queue, passive=True))
        return self.expect(methods.QueueDeclareOk).message_count

    def at_end(self) -> bool:
        """Tell whether the server has closed the socket (waits for it)."""
        with contextlib.suppress(ConnectionResetError):
            return self.next_frame() is None
        return True

    def close(self) -> None:
        """Drop the socket."""
        self.socket.close()


@contextlib.contextmanager
def client(port: int, **settings: Any) -> Iterator[RawClient]:
    """Connect, and drop the socket at the end."""
    made = RawClient(port, **settings)
    try:
        yield made
    finally:
        made.close()
