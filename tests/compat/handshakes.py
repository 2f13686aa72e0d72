"""Connections that are not open yet, as exact bytes: what a client sends and what it gets.

`Dialogue` reads everything a server says until the socket ends. For tests/compat.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass, field

from brokerd.amqp import methods as M
from brokerd.amqp.channel import decode_method, method_class
from brokerd.amqp.methods import Method
from brokerd.amqp.values import Table, encode_table
from tests.compat.servers import Closed
from tests.integration.raw_client import HEADER

#: A server that says nothing closes after three seconds, one that hears nothing after ten.
READ_SECONDS = 40.0
CLOSE_CAPABILITY: Table = {"capabilities": {"authentication_failure_close": True}}


def plain(user: str = "guest", password: str = "") -> bytes:
    """Return the response of mechanism PLAIN."""
    return f"\0{user}\0{password or user}".encode()


def amqplain(user: str = "guest", password: str = "guest") -> bytes:
    """Return the response of mechanism AMQPLAIN: a table without its length."""
    return encode_table({"LOGIN": user, "PASSWORD": password})[4:]


def start_ok(
    mechanism: str = "PLAIN", response: bytes | None = None, properties: Table | None = None
) -> bytes:
    """Return connection.start-ok as guest."""
    answer = plain() if response is None else response
    return M.ConnectionStartOk(properties or {}, mechanism, answer, "en_US").encode(0)


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    """Return connection.tune-ok."""
    return M.ConnectionTuneOk(channel_max, frame_max, heartbeat).encode(0)


_LAST_WORDS = (M.ConnectionClose, M.ConnectionCloseOk)
LOGIN = HEADER + start_ok()
TUNED = LOGIN + tune_ok()


@dataclass(slots=True)
class Heard:
    """Everything a server said until the socket ended."""

    methods: list[Method] = field(default_factory=list)
    #: What is no frame: an answer to a wrong protocol header.
    octets: bytes = b""
    is_ended: bool = False

    @property
    def last(self) -> Closed | str:
        """How it ended: a close, or the name of the last method before the socket did."""
        if not self.methods:
            return "nothing"
        # Behind a connection.close may come the answer to the client's own.
        closes = (m for m in self.methods if isinstance(m, M.ConnectionClose))
        method = next(closes, self.methods[-1])
        if isinstance(method, M.ConnectionClose):
            failed = (method.class_id, method.method_id)
            return Closed("connection", method.reply_code, method.reply_text, failed)
        return type(method).__name__


class Dialogue:
    """One socket on which everything is said at once."""

    def __init__(self, port: int, *sent: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=READ_SECONDS)
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(b"".join(sent))

    def hear(self) -> Heard:
        """Read to the end of the stream, to connection.close or to its answer."""
        heard, buffer = Heard(), b""
        # RabbitMQ keeps the socket for half a minute after either; a client does not wait for it.
        while not (heard.methods and isinstance(heard.methods[-1], _LAST_WORDS)):
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = self.socket.recv(1 << 16)
            if not data:
                heard.is_ended = True
                break
            buffer = self._take(heard, buffer + data)
        heard.octets = buffer
        return heard

    def _take(self, heard: Heard, buffer: bytes) -> bytes:
        """Move whole frames out of the buffer."""
        while len(buffer) >= 7 and not buffer.startswith(b"AMQP"):
            kind, _, size = struct.unpack_from(">BHI", buffer)
            if len(buffer) < size + 8:
                break
            payload, buffer = buffer[7 : 7 + size], buffer[8 + size :]
            if kind == 1:
                heard.methods.append(decode_method(method_class(payload), payload))
        return buffer

    def close(self) -> None:
        """Drop the socket."""
        self.socket.close()
