"""Listening sockets for peers and for gRPC, and what to do where there can be none.

Used by peer_service.py, and by the listeners of the server.
"""

from __future__ import annotations

import errno
import os
import socket

_BACKLOG = 128

#: A family or an address that this machine does not have.
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})

_ADVICE = {
    errno.EADDRINUSE: "another broker may be running (see --port-offset)",
    errno.EADDRNOTAVAIL: "--bind (node.bind) must name an address of this machine",
    errno.EACCES: "ports below 1024 are the system's (see --port-offset)",
}


def in_words(error: OSError) -> str:
    """Return why a port cannot be listened on, and what to do about it."""
    if isinstance(error, socket.gaierror):
        return (
            f"{error.strerror}; --bind (node.bind) must be an address of this machine, or a name "
            "that resolves to one"
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{reason}; {advice}" if advice else reason


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
