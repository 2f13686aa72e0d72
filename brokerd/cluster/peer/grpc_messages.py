"""gRPC over HTTP/2: messages in a stream's data, headers of a call, status in its trailers.

By "gRPC over HTTP/2" (PROTOCOL-HTTP2.md of grpc).  No sockets.  For peer streams; the server room
reads and frames the messages of clients with it as well (ADR 18).
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from urllib.parse import quote, unquote_to_bytes

import hpack

from brokerd.cluster.errors import CallRefused
from brokerd.http2.framing import Header

METHOD = "/brokerd.v1.Peer/Exchange"

_PREFIX = struct.Struct(">BI")
PREFIX_BYTES = _PREFIX.size
#: A part of a message that is so large stays where it was read until the message is whole, so it is
#: copied once.  Small ones would keep alive more than they are; a stranger's hello is smaller.
VIEW_BYTES_MIN = 32 * 1024
#: Of a status text, in either direction.
_TEXT_CHARS_MAX = 500


class Status(IntEnum):
    """The codes of gRPC that are used here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


def prefix(size: int) -> bytes:
    """Return what stands before a message of `size` bytes; compression is off (SEC-48)."""
    return _PREFIX.pack(0, size)


class MessageReader:
    """Finds messages in a stream's data, however it is cut.

    `bytes_max` bounds a message (SEC-47); nothing is allocated before its bytes have come.
    """

    __slots__ = ("_left", "_parts", "_prefix", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._prefix = b""
        self._parts: list[bytes | memoryview] = []
        self._left = 0

    @property
    def missing(self) -> int:
        """Return how much is still to come of the message that has begun; 0: none has."""
        return self._left or (PREFIX_BYTES - len(self._prefix) if self._prefix else 0)

    def feed(self, data: memoryview) -> list[bytes]:
        """Return the messages that are whole now; CallRefused for what gRPC does not allow."""
        messages: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                at = self._take_prefix(data, at, messages)
                continue
            piece = data[at : at + self._left]
            size = len(piece)
            at += size
            self._left -= size
            if self._left or self._parts:
                # A view keeps all of the data in memory, which is not to be much more.
                is_copied = size < VIEW_BYTES_MIN or 2 * size < end
                self._parts.append(bytes(piece) if is_copied else piece)
            if not self._left:
                messages.append(b"".join(self._parts) if self._parts else bytes(piece))
                self._parts = []
        return messages

    def _take_prefix(self, data: memoryview, at: int, messages: list[bytes]) -> int:
        if self._prefix or len(data) - at < PREFIX_BYTES:
            missing = PREFIX_BYTES - len(self._prefix)
            self._prefix += data[at : at + missing]
            at = min(at + missing, len(data))
            if len(self._prefix) < PREFIX_BYTES:
                return at
            compressed, size = _PREFIX.unpack(self._prefix)
            self._prefix = b""
        else:
            compressed, size = _PREFIX.unpack_from(data, at)
            at += PREFIX_BYTES
        if compressed:
            raise CallRefused(Status.UNIMPLEMENTED, "compressed messages")
        if size > self.bytes_max:
            raise CallRefused(
                Status.RESOURCE_EXHAUSTED, f"message of {size} bytes, at most {self.bytes_max}"
            )
        if not size:
            messages.append(b"")
        self._left = size
        return at


# ---- headers ------------------------------------------------------------------------------------


def request_headers(
    scheme: str, authority: str, metadata: Iterable[tuple[str, bytes]]
) -> list[Header]:
    """Return the headers that open a peer stream."""
    headers: list[Header] = [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", METHOD.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"brokerd"),
    ]
    for name, value in metadata:
        text = base64.b64encode(value).rstrip(b"=")
        headers.append(hpack.NeverIndexedHeaderTuple(name.encode(), text))
    return headers


def response_headers() -> list[Header]:
    """Return the headers that answer a request that is taken."""
    return [(b":status", b"200"), (b"content-type", b"application/grpc")]


def status_headers(status: Status, text: str) -> list[Header]:
    """Return the trailers that end a call."""
    return [
        (b"grpc-status", b"%d" % status),
        (
            b"grpc-message",
            quote(text[:_TEXT_CHARS_MAX], safe=" !\"#$&'()*+,/:;<=>?@[]^`{|}").encode(),
        ),
    ]


def check_request(headers: Sequence[Header]) -> None:
    """CallRefused unless these headers ask for a peer stream."""
    found = dict(headers)
    if found.get(b":method") != b"POST" or not found.get(b"content-type", b"").startswith(
        b"application/grpc"
    ):
        raise CallRefused(Status.INTERNAL, "not a gRPC call")
    if found.get(b":path") != METHOD.encode():
        raise CallRefused(Status.UNIMPLEMENTED, "only Peer/Exchange is served here")
    if found.get(b"grpc-encoding", b"identity") != b"identity":
        raise CallRefused(Status.UNIMPLEMENTED, "compressed messages")


def binary_metadata(headers: Iterable[Header]) -> list[tuple[str, bytes]]:
    """Return the headers whose values are bytes; those that are not base64 are left out."""
    found = []
    for name, value in headers:
        if name.endswith(b"-bin"):
            try:
                decoded = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
            except binascii.Error:
                continue
            found.append((name.decode("latin-1"), decoded))
    return found


def describe_end(headers: Sequence[Header]) -> str:
    """Say how a call ended, from its headers or trailers; "" if they do not end it badly."""
    found = dict(headers)
    http_status = found.get(b":status", b"200")
    if http_status != b"200":
        return f"HTTP status {http_status[:8].decode('latin-1')}"
    code = found.get(b"grpc-status", b"0")
    if code == b"0":
        return ""
    text = unquote_to_bytes(found.get(b"grpc-message", b"")).decode("utf-8", "replace")
    try:
        name = Status(int(code)).name
    except ValueError:
        name = f"status {code[:8].decode('latin-1')}"
    return f"{name}: {text[:_TEXT_CHARS_MAX]}"
