"""Headers of the PROXY protocol: who the client is, and not one byte of what is the client's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.server.access import proxied_listener, proxy_header
from brokerd.server.access.proxy_header import SIGNATURE, UNKNOWN, ProxyHeaderError

TCP4, TCP6, UNIX, UNSPECIFIED = 0x11, 0x21, 0x31, 0x00
REST = b"AMQP\x00\x00\x09\x01"


def version_2(
    family: int, address: str, port: int = 40_000, command: int = 0x21, more: bytes = b""
) -> bytes:
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(kind, address) if address else b""
    ports = struct.pack(">HH", port, 5672) if address else b""
    body = packed * 2 + ports + more
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


def taken(data: bytes, step: int = 1 << 16) -> tuple[proxy_header.Address | None, bytes]:
    """Read a header from a stream that gives `step` bytes at most; return what is left, too."""
    left = bytearray(data)

    async def receive(size: int) -> bytes:
        part = bytes(left[: min(size, step)])
        del left[: len(part)]
        return part

    return asyncio.run(proxy_header.read(receive)), bytes(left)


@pytest.mark.parametrize("step", [1, 5, 1 << 16])
@pytest.mark.parametrize(
    ("header", "address"),
    [
        (version_2(TCP4, "203.0.113.7"), ("203.0.113.7", 40_000)),
        (version_2(TCP6, "2001:db8::7", 65_535), ("2001:db8::7", 65_535)),
        (version_2(TCP6, "::ffff:203.0.113.7"), ("203.0.113.7", 40_000)),
        (version_2(TCP4, "203.0.113.7", more=b"\x04\x00\x01x" * 100), ("203.0.113.7", 40_000)),
        # The proxy itself, as for its health checks.
        (version_2(TCP4, "203.0.113.7", command=0x20), None),
        (version_2(UNSPECIFIED, "", command=0x20), None),
        (version_2(UNSPECIFIED, ""), (UNKNOWN, 0)),
        (version_2(UNIX, "", more=bytes(216)), (UNKNOWN, 0)),
        # Of the proxy's machine, which is another one.
        (version_2(TCP4, "127.0.0.1"), (UNKNOWN, 40_000)),
        (version_2(TCP6, "::1"), (UNKNOWN, 40_000)),
        (b"PROXY TCP4 203.0.113.7 192.0.2.1 40000 5672\r\n", ("203.0.113.7", 40_000)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 5672\r\n", ("2001:db8::7", 1)),
        (b"PROXY TCP4 127.0.0.9 192.0.2.1 40000 5672\r\n", (UNKNOWN, 40_000)),
        (b"PROXY UNKNOWN\r\n", (UNKNOWN, 0)),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", (UNKNOWN, 0)),
    ],
)
def test_a_header_names_the_client_and_nothing_behind_it_is_taken(
    header: bytes, address: tuple[str, int] | None, step: int
) -> None:
    assert taken(header + REST, step) == (address, REST)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (REST + b"\x00" * 8, "no PROXY header, but b'AMQP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00", "no PROXY header"),
        (b"GET / HTTP/1.1\r\n", "no PROXY header"),
        (b"PROXY TCP4 " + b"1" * 200, "more than 107 bytes"),
        (b"PROXY TCP4 nobody 192.0.2.1 1 2\r\n", "names no client"),
        (b"PROXY TCP4 2001:db8::7 192.0.2.1 1 2\r\n", "names no client"),
        (b"PROXY TCP4 203.0.113.7 192.0.2.1 65536 2\r\n", "names no client"),
        (b"PROXY TCP4 203.0.113.7 192.0.2.1 x 2\r\n", "names no client"),
        (b"PROXY TCP4 203.0.113.7\r\n", "not of version 1"),
        (b"PROXY UDP4 203.0.113.7 192.0.2.1 1 2\r\n", "not of version 1"),
        (version_2(TCP4, "203.0.113.7", command=0x11), "version and command 0x11"),
        (version_2(TCP4, "203.0.113.7", command=0x22), "version and command 0x22"),
        (SIGNATURE + b"\x21\x11\xff\xff", "65535 bytes, 4096 are allowed"),
        (SIGNATURE + b"\x21\x11\x00\x02ab", "2 bytes hold no two addresses"),
        (b"", "ended after 0 bytes"),
        (version_2(TCP4, "203.0.113.7")[:20], "ended after 20 bytes"),
    ],
)
def test_what_is_no_header_is_told(data: bytes, says: str) -> None:
    with pytest.raises(ProxyHeaderError) as wrong:
        taken(data)
    assert says in str(wrong.value)


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=80).map(SIGNATURE.__add__)))
def test_any_bytes_are_a_header_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ProxyHeaderError):
        _, left = taken(data)
        assert data.endswith(left)


def test_networks_are_separated_by_commas_or_spaces() -> None:
    found = proxied_listener.networks("10.0.0.0/8, 192.0.2.7 2001:db8::/32,10.1.2.3/16")
    assert list(map(str, found)) == [
        *("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "10.1.0.0/16")
    ]
    assert proxied_listener.networks("") == ()
