"""Rights that a token carries: scopes as rabbitmq_auth_backend_oauth2 has them.

A scope is `PERMISSION:VHOST/NAME` or `PERMISSION:VHOST/NAME/ROUTING_KEY`, its three places patterns
in which `*` stands for any run of characters and `%2F` for a slash.  Others are ignored.  Matching
is RabbitMQ's (its wildcard.erl), quirks included, so that a token means here what it means there:
what stands behind a `*` is looked for once, from the left.

Pure.  `permissions.ScopedAccess` asks; claims.py reads scopes out of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_plus

from brokerd.core.catalog.permissions import PERMISSIONS

#: Of one token, as RabbitMQ 4 has it.
SCOPES_MAX = 2048
#: A percent sign that begins no octet: such a pattern matches nothing.
_BROKEN = re.compile("%(?![0-9A-Fa-f]{2})")


@dataclass(slots=True, frozen=True)
class Wildcard:
    """A pattern: what stands between its asterisks, decoded."""

    parts: tuple[str, ...]

    def matches(self, subject: str) -> bool:
        """Tell whether a name is meant; takes time in proportion to both at most."""
        first, *rest = self.parts
        if not subject.startswith(first):
            return False
        at = len(first)
        for number, part in enumerate(rest, 1):
            if not part and number == len(rest):
                return True
            if at == len(subject):
                return False
            found = subject.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return at == len(subject)


def wildcard(text: str) -> Wildcard | None:
    """Return a pattern, None for one that cannot be decoded."""
    if _BROKEN.search(text):
        return None
    parts = (unquote_plus(part, errors="surrogateescape") for part in text.split("*"))
    return Wildcard(tuple(parts))


@dataclass(slots=True, frozen=True)
class Scope:
    """One right: a permission on names in vhosts, and on routing keys if it has a third place."""

    permission: str
    vhost: Wildcard
    name: Wildcard
    routing_key: Wildcard | None


def parse(text: str) -> Scope | None:
    """Return a scope, None where the text is none (a tag, or somebody else's)."""
    permission, colon, places = text.partition(":")
    if not colon or permission not in PERMISSIONS:
        return None
    patterns = [wildcard(place) for place in places.split("/")]
    if len(patterns) not in (2, 3):
        return None
    vhost, name, *keys = patterns
    if vhost is None or name is None:
        return None
    return Scope(permission, vhost, name, keys[0] if keys else None)


@dataclass(slots=True, frozen=True)
class Scopes:
    """All rights of one token."""

    all: tuple[Scope, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Scopes:
        """Return those that are scopes."""
        return cls(tuple(scope for scope in map(parse, texts) if scope is not None))

    def within(self, vhost: str) -> dict[str, tuple[Scope, ...]]:
        """Return the scopes that count in a vhost, by permission; empty: no way in."""
        found: dict[str, list[Scope]] = {}
        for scope in self.all:
            if scope.vhost.matches(vhost):
                found.setdefault(scope.permission, []).append(scope)
        return {permission: tuple(scopes) for permission, scopes in found.items()}
