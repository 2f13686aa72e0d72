"""Listening sockets for peers.  Used by peer_service.py, which accepts on them."""

from __future__ import annotations

import errno
import socket

_BACKLOG = 128

#: A family or an address that this machine does not have.
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def listen(address: str) -> list[socket.socket]:
    """Return listening sockets for all addresses of "host:port", on one port; port 0 for any.

    "[::]", or no host, takes IPv4 too, and means that alone where there is no IPv6.  OSError: it
    cannot be done.
    """
    host, _, port_text = address.rpartition(":")
    host = host.strip("[]") or "::"
    if not port_text.isdecimal():
        raise OSError(f"not an address: {address!r}")
    try:
        return _listen(host, int(port_text))
    except OSError as error:
        if host != "::" or error.errno not in _ABSENT:
            raise
        return _listen("0.0.0.0", int(port_text))


def _listen(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            at = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(_open(family, (address[0], at, *address[2:])))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    if not listeners:
        raise absent or OSError(f"no address: {host!r}")
    return listeners


def _open(family: int, address: tuple[str | int, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
