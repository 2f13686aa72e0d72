"""Connections without a login: how many may wait, and who of them makes room (SEC-34).

Pure: connections are opaque keys.  Strangers that only stand there keep none out: where an
address has its share, or all places are taken, the one that has stood there longest goes, of the
address that takes most places.  So a flood displaces itself, and a newcomer of another address
always comes in.  All ports decide here; the listener closes.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


#: A client with an IPv6 address has the whole of its network (RFC 6177): that much is one peer.
_IPV6_NETWORK_BITS = 64


def source_of(address: str) -> str:
    """Return what counts as one peer where shares are limited: an IPv4 address, an IPv6 network."""
    parsed = parsed_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(parsed), _IPV6_NETWORK_BITS), strict=False))
    return address if parsed is None else str(parsed)


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address as a socket names it, an IPv4 address in IPv6's clothes as itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed


@dataclass(slots=True)
class _Address(Generic[T]):
    """The strangers of one address, those that came first in front."""

    unknown: dict[T, None] = field(default_factory=dict)
    #: Logged in, on the way to the end of the handshake.
    logged_in: dict[T, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.unknown) + len(self.logged_in)


class Unauthenticated(Generic[T]):
    """Invariant: at most `places` strangers, at most `places_per_address` of one address."""

    def __init__(self, places: int, places_per_address: int) -> None:
        self._places = places
        self._places_per_address = places_per_address
        self._address_of: dict[T, str] = {}
        self._addresses: dict[str, _Address[T]] = {}

    def admit(
        self, stranger: T, address: str, *, is_full: bool = False, is_share_taken: bool = False
    ) -> T | None:
        """Return what must go for it, if anything: perhaps the newcomer itself, which is refused.

        An IPv6 network counts as one address.  A port that limits all its connections says that no
        more may come, at all (`is_full`) or of this address (`is_share_taken`): a stranger makes
        room then, and established connections stay.
        """
        source = source_of(address)
        mine: _Address[T] = self._addresses.get(source, _Address())
        goes: T | None = None
        if is_share_taken or len(mine) >= self._places_per_address:
            goes = next(iter(mine.unknown), stranger)
        elif is_full or len(self._address_of) >= self._places:
            largest = max(self._addresses.values(), key=len, default=mine)
            if len(largest) > len(mine):
                goes = next(iter(largest.unknown or largest.logged_in))
            else:
                goes = next(iter(mine.unknown), stranger)
        if goes is stranger:
            return stranger
        if goes is not None:
            self.gone(goes)
        self._enter(stranger, source)
        return goes

    def logged_in(self, stranger: T) -> None:
        """It has shown who it is; it gives way last."""
        address = self._addresses.get(self._address_of.get(stranger, ""))
        if address is not None and stranger in address.unknown:
            del address.unknown[stranger]
            address.logged_in[stranger] = None

    def renew(self, stranger: T) -> None:
        """It has done what was asked of it: all others of its kind make room before it does."""
        name = self._address_of.get(stranger, "")
        address = self._addresses.get(name)
        if address is not None and stranger in address.unknown:
            # The address comes last, too, of those with equally many.
            self.gone(stranger)
            self._enter(stranger, name)

    def gone(self, stranger: T) -> None:
        """It is no stranger any more, or not there any more."""
        name = self._address_of.pop(stranger, None)
        if name is None:
            return
        address = self._addresses[name]
        address.unknown.pop(stranger, None)
        address.logged_in.pop(stranger, None)
        if not len(address):
            del self._addresses[name]

    def __len__(self) -> int:
        return len(self._address_of)

    def all(self) -> list[T]:
        """Return them."""
        return list(self._address_of)

    def _enter(self, stranger: T, name: str) -> None:
        self._address_of[stranger] = name
        self._addresses.setdefault(name, _Address()).unknown[stranger] = None
