"""Listening behind proxies that speak the PROXY protocol: who is trusted to say who a client is.

From a trusted address each connection begins with the header (proxy_header.py), before TLS; without
it the connection is refused.  From any other address a connection is a client's own.  Used by the
AMQP and the management listeners, which listen with asyncio alone while nobody is trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from brokerd.server.access import proxy_header
from brokerd.server.access.proxy_header import Address, ProxyHeaderError

log = logging.getLogger(__name__)

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The header follows the connection at once; as long as a TLS handshake may take (SEC-33).
HEADER_S = 5.0
HANDSHAKE_S = 5.0
#: Connections of which a header or a handshake is awaited.  The next ones are refused.
OPENING_MAX = 4096
#: Pause when no socket can be accepted (no file descriptors), as asyncio makes it.
ACCEPT_PAUSE_S = 1.0
#: Seconds between two lines about connections that were refused.
COMPLAINT_S = 1.0


def networks(text: str) -> tuple[Network, ...]:
    """Return the networks that a setting names, separated by commas or spaces; ValueError says
    which is none.
    """
    return tuple(
        ipaddress.ip_network(word, strict=False) for word in text.replace(",", " ").split()
    )


class ProxiedServer:
    """Owns listening sockets, and the connections that are not yet a client's."""

    def __init__(
        self,
        make: Callable[[Address | None], asyncio.BaseProtocol],
        trusted: tuple[Network, ...],
        context: ssl.SSLContext | None,
        what: str,
    ) -> None:
        """make(address): a protocol for a client; None: its socket's peer is the client.
        what: of lines in the log.
        """
        self._make = make
        self._trusted = trusted
        self._context = context
        self._what = what
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._complained_at = -COMPLAINT_S
        self._left_out = 0

    async def start(self, host: str | None, port: int, backlog: int) -> None:
        """Listen, on all addresses without a host; OSError if that is impossible."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.ExitStack() as opened:
            sockets = []
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    made = socket.socket(family, kind, protocol)
                except OSError:
                    # A machine without IPv6.
                    continue
                opened.callback(made.close)
                made.setblocking(False)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind(address)
                made.listen(backlog)
                sockets.append(made)
            opened.pop_all()
        self._accepting += [asyncio.create_task(self._accept(each)) for each in sockets]

    def close(self) -> None:
        """Accept nothing more, and drop what is not yet a client's."""
        for task in (*self._accepting, *self._opening):
            task.cancel()
        self._accepting.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, peer = await loop.sock_accept(listening)
                except OSError as error:
                    log.error("%s: cannot accept a connection: %s", self._what, error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                if len(self._opening) >= OPENING_MAX:
                    accepted.close()
                    self._complain(peer, f"{OPENING_MAX} others have not sent their header yet")
                    continue
                task = asyncio.create_task(self._open(accepted, peer))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
        finally:
            listening.close()

    async def _open(self, accepted: socket.socket, peer: Any) -> None:
        with contextlib.ExitStack() as opened:
            opened.callback(accepted.close)
            client = None
            if self._trusts(peer):
                try:
                    client = await self._header(accepted)
                except (ProxyHeaderError, OSError) as error:
                    self._complain(peer, str(error))
                    return
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._make(client),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_S if self._context is not None else None,
                )
            except OSError as error:
                # A handshake that failed, as asyncio's own servers say it.
                log.debug("%s: no TLS with %s: %s", self._what, peer[0], error)
                return
            opened.pop_all()

    async def _header(self, accepted: socket.socket) -> Address | None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HEADER_S):
                return await proxy_header.read(lambda size: loop.sock_recv(accepted, size))
        except TimeoutError as error:
            raise ProxyHeaderError(f"no whole PROXY header within {HEADER_S:g} s") from error

    def _trusts(self, peer: Any) -> bool:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        return any(address in network for network in self._trusted)

    def _complain(self, peer: Any, why: str) -> None:
        """Log why a connection was refused, not with each of them."""
        now = time.monotonic()
        if now - self._complained_at < COMPLAINT_S:
            self._left_out += 1
            return
        more = f" ({self._left_out} more since the last line)" if self._left_out else ""
        self._complained_at, self._left_out = now, 0
        log.warning(
            "%s: refused a connection from %s, which proxy_protocol.trusted names: %s; "
            "switch the PROXY protocol on there, or take it out of the setting%s",
            self._what,
            peer[0],
            why,
            more,
        )
