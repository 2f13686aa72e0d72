"""Who the members are before the catalog can tell: the peer list of the configuration.

Only parsing and name resolution; the broker's composition root decides what to do with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading

from brokerd.cluster.errors import AddressError
from brokerd.raft.messages import NodeId

#: A cluster has a handful of members; a longer list is a mistake.
PEERS_MAX = 64
PORT_DEFAULT = 5690
#: A name server that answers at all does so sooner; what was found before stands in meanwhile.
LOOKUP_WAIT_S = 0.5

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,254}")


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> tuple[str, int]:
    """Split "host", "host:port", "[v6]" or "[v6]:port"."""
    host, port_text = text.strip(), ""
    if host.startswith("["):
        host, closed, rest = host[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise AddressError(f"not an address: {text!r}")
        port_text = rest[1:]
    elif host.count(":") == 1:
        host, _, port_text = host.partition(":")
    elif ":" in host:
        raise AddressError(f"an IPv6 address needs brackets: {text!r}")
    if not host:
        raise AddressError(f"no host in {text!r}")
    if not port_text:
        return host, port_default
    if not (port_text.isascii() and port_text.isdigit()) or not 0 < int(port_text) < 65536:
        raise AddressError(f"not a port in {text!r}")
    return host, int(port_text)


def is_name(text: str) -> bool:
    """Tell whether a text can be a member's name."""
    return _NAME.fullmatch(text) is not None


def format_address(host: str, port: int) -> str:
    """Join host and port the way gRPC and `parse_address` read them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_peers(text: str, port_default: int = PORT_DEFAULT) -> dict[NodeId, str]:
    """Parse "name=host:port,name=host,…"; a bare "host:port" is its own name.

    White space and empty items are ignored; a name given twice is an error.
    """
    peers: dict[NodeId, str] = {}
    for item in text.split(","):
        item = item.strip()
        if not item:
            continue
        name, equals, address = item.partition("=")
        name = name.strip()
        host, port = parse_address(address if equals else item, port_default)
        node = NodeId(name if equals else host)
        if not is_name(node):
            raise AddressError(f"not a member name: {node!r}")
        if node in peers:
            raise AddressError(f"member {node!r} is listed twice")
        if len(peers) >= PEERS_MAX:
            raise AddressError(f"more than {PEERS_MAX} members")
        peers[node] = format_address(host, port)
    return peers


async def resolve(address: str, timeout_s: float = 2.0) -> list[str]:
    """Return the IP addresses of "host:port"; empty if the name does not (yet) resolve.

    In Kubernetes a pod's name resolves some time after the pod has started, so this is no error.
    """
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in found))


async def resolves(address: str, timeout_s: float = 2.0) -> bool:
    """Tell whether the host of "host:port" has an address."""
    return bool(await resolve(address, timeout_s))


class Lookup:
    """The addresses of one member, looked up in a thread of its own, one lookup at a time.

    The loop's own lookups share two threads, and one that the name server does not answer holds its
    thread for up to a minute, cancelled or not: behind a cut no member could be dialled for as
    long after it had ended.  While a lookup is under way, and where the name server cannot be
    reached, what the last one found stands in; who answers there has to be the right member anyway.
    """

    def __init__(self, address: str) -> None:
        """address: host:port, or host."""
        self._address = address
        self._found: list[str] = []
        self._running: asyncio.Future[tuple[list[str], OSError | None]] | None = None

    async def addresses(self) -> list[str]:
        """Return at least one; OSError if there is none."""
        host, _ = parse_address(self._address)
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        running = self._running
        if running is None:
            running = self._running = self._start(host)
        await asyncio.wait((running,), timeout=LOOKUP_WAIT_S if self._found else None)
        if not running.done():
            return self._found
        found, error = running.result()
        if error is None:
            self._found = found
        elif not self._found or getattr(error, "errno", None) != socket.EAI_AGAIN:
            raise error
        return self._found

    def _start(self, host: str) -> asyncio.Future[tuple[list[str], OSError | None]]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[list[str], OSError | None]] = loop.create_future()

        def end(found: list[str], error: OSError | None) -> None:
            self._running = None
            if not ended.done():
                ended.set_result((found, error))

        def look() -> None:
            found, error = _looked_up(host)
            # No caller waits any more where the loop is closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end, found, error)

        try:
            # A daemon: the end of the process waits for no name server.
            threading.Thread(target=look, name=f"lookup {host}", daemon=True).start()
        except RuntimeError as error:
            # No thread is to be had (pids.max of a container); the caller dials again.
            raise OSError(f"{host} cannot be looked up: {error}") from error
        return ended


def _looked_up(host: str) -> tuple[list[str], OSError | None]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return [], error
    except UnicodeError as wrong:
        return [], OSError(f"no name of a host: {host!r}: {wrong}")
    return list(dict.fromkeys(str(info[4][0]) for info in found)), None
