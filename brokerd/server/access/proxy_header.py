"""The header with which a proxy says who its client is: PROXY protocol, versions 1 and 2.

Bytes in, an address out; reads no socket.  For proxied_listener.py.  As HAProxy's
doc/proxy-protocol.txt has it: nothing else stands before it, and what comes behind it is the
client's.  Extensions of version 2 (TLVs) are passed over.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]

#: Of version 2.
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
#: Signature, version and command, family, length.
_FIXED_BYTES = 16
#: Behind those: two IPv6 addresses are 36, TLVs of clouds some hundred.
V2_BYTES_MAX = 4096
#: The longest line of version 1, its end included.
V1_BYTES_MAX = 107
#: Of a client that the proxy does not name, or that is on the proxy's own machine: a loopback there
#: is none here, and must not count as one (auth.loopback_users).
UNKNOWN = "0.0.0.0"

_VERSION_2 = 2
_LOCAL, _PROXY = 0, 1
#: Family and transport to the bytes of an address: TCP over IPv4 and IPv6.
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}
_V1_WORDS = 6
_PORT_MAX = 65_535


class ProxyHeaderError(Exception):
    """What came is no header; the text says what it is."""


def missing_bytes(data: bytes) -> int:
    """Return how many bytes are needed at least before the header can be read; 0: it is whole.

    Never more than belong to it.  ProxyHeaderError where it cannot become one.
    """
    if len(data) < len(SIGNATURE):
        return len(SIGNATURE) - len(data)
    if data.startswith(SIGNATURE):
        if len(data) < _FIXED_BYTES:
            return _FIXED_BYTES - len(data)
        length = int.from_bytes(data[14:16], "big")
        if length > V2_BYTES_MAX:
            raise ProxyHeaderError(f"a header of {length} bytes, {V2_BYTES_MAX} are allowed")
        return _FIXED_BYTES + length - len(data)
    if not data.startswith(b"PROXY "):
        raise ProxyHeaderError(f"no PROXY header, but {data[:8]!r}")
    if data.endswith(b"\r\n"):
        return 0
    if len(data) >= V1_BYTES_MAX:
        raise ProxyHeaderError(f"a line of more than {V1_BYTES_MAX} bytes")
    return 1


def address_of(data: bytes) -> Address | None:
    """Return the client's address from a whole header; None: the proxy speaks for itself."""
    return _version_2(data) if data.startswith(SIGNATURE) else _version_1(data)


async def read(receive: Callable[[int], Awaitable[bytes]]) -> Address | None:
    """Read a header and not one byte more; see address_of.

    receive: returns up to so many bytes, none at the end of the stream.
    """
    data = b""
    while missing := missing_bytes(data):
        more = await receive(missing)
        if not more:
            raise ProxyHeaderError(f"the connection ended after {len(data)} bytes of it")
        data += more
    return address_of(data)


def _version_2(data: bytes) -> Address | None:
    version, command = data[12] >> 4, data[12] & 15
    if version != _VERSION_2 or command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError(f"version and command {data[12]:#04x} are not known")
    if command == _LOCAL:
        return None
    size = _ADDRESS_BYTES.get(data[13])
    if size is None:
        return UNKNOWN, 0
    addresses = data[_FIXED_BYTES:]
    if len(addresses) < 2 * size + 4:
        raise ProxyHeaderError(f"{len(addresses)} bytes hold no two addresses")
    port = int.from_bytes(addresses[2 * size : 2 * size + 2], "big")
    return _named(ipaddress.ip_address(addresses[:size]), port)


def _version_1(data: bytes) -> Address | None:
    words = data[:-2].split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return UNKNOWN, 0
    if len(words) != _V1_WORDS or words[1] not in (b"TCP4", b"TCP6"):
        raise ProxyHeaderError(f"the line {data[:V1_BYTES_MAX]!r} is not of version 1")
    try:
        address = ipaddress.ip_address(words[2].decode("ascii"))
        port = int(words[4])
    except ValueError as error:
        raise ProxyHeaderError(f"the line {data[:V1_BYTES_MAX]!r} names no client") from error
    if address.version != int(words[1][3:]) or not 0 <= port <= _PORT_MAX:
        raise ProxyHeaderError(f"the line {data[:V1_BYTES_MAX]!r} names no client")
    return _named(address, port)


def _named(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    found = mapped or address
    return (UNKNOWN if found.is_loopback else str(found)), port
