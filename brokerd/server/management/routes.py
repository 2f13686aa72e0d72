"""The table of the management API: which path and method is whose, who may call it, in one place.

Routing, the 405's Allow, docs/http-api.md and /api/index.html are made from it.  Each module of
endpoints has its ROUTES; table.py puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote_to_bytes

from brokerd.server.management.call import Handler


class Right(Enum):
    """Who may call, in RabbitMQ's terms; the value is what the reference shows."""

    #: Without a login.
    ANYONE = "anyone"
    #: Any of the tags management, policymaker, monitoring, administrator; lists show the vhosts
    #: that the caller may enter, to monitoring all.
    MANAGEMENT = "management"
    #: As MANAGEMENT, and the caller may see the path's vhost.
    VHOST_VISIBLE = "management, sees the vhost"
    #: As MANAGEMENT, and the caller may enter the path's vhost.
    VHOST = "management, may enter the vhost"
    MONITORING = "monitoring"
    #: policymaker or administrator; may enter the path's vhost if there is one.
    POLICYMAKER = "policymaker"
    ADMINISTRATOR = "administrator"


@dataclass(slots=True, frozen=True)
class Route:
    """One endpoint.  path: "/api/queues/{vhost}/{name}"; doc: one sentence without a full stop."""

    method: str
    path: str
    right: Right
    handler: Handler
    doc: str


@dataclass(slots=True)
class Found:
    """What is at a path: routes by method, the path's parts as they are decoded."""

    methods: dict[str, Route]
    parts: dict[str, str]

    @property
    def allow(self) -> str:
        """Return the header of a 405 and of OPTIONS."""
        found = ["HEAD", "GET"] if "GET" in self.methods else []
        found += [method for method in ("POST", "PUT", "DELETE") if method in self.methods]
        return ", ".join([*found, "OPTIONS"])


@dataclass(slots=True)
class _Node:
    #: Fixed segments come before {parts}.
    fixed: dict[str, _Node] = field(default_factory=dict)
    part: _Node | None = None
    #: Method to route, and its parts' names.
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Table:
    """State: a tree of the routes' segments.

    Invariant: one route for a method and path; fixed segments win over parts, with one look back.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for segment in _segments(route.path):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.part = node.part or _Node()
                node = node.part
            else:
                node = node.fixed.setdefault(segment, _Node())
        assert route.method not in node.routes, f"two routes: {route.method} {route.path}"
        node.routes[route.method] = route, tuple(names)

    def find(self, raw_path: str) -> Found | None:
        """Return what is at a path as it came, percent-encoded; None: nothing."""
        segments = _segments(raw_path)
        found = _walk(self._root, segments, ())
        if found is None:
            return None
        node, values = found
        first = next(iter(node.routes.values()))
        parts = dict(zip(first[1], map(decode, values), strict=True))
        return Found({method: route for method, (route, _) in node.routes.items()}, parts)


def _segments(path: str) -> list[str]:
    """Return the segments; an empty last one (a slash at the end) does not count, as there."""
    segments = path.split("/")[1:]
    if len(segments) > 1 and not segments[-1]:
        segments.pop()
    return segments


def _walk(
    node: _Node, segments: list[str], values: tuple[str, ...]
) -> tuple[_Node, tuple[str, ...]] | None:
    """Depth is that of the longest route: deeper paths end at once."""
    if not segments:
        return (node, values) if node.routes else None
    first, rest = segments[0], segments[1:]
    if first in node.fixed:
        found = _walk(node.fixed[first], rest, values)
        if found is not None:
            return found
    return None if node.part is None else _walk(node.part, rest, (*values, first))


def decode(segment: str) -> str:
    """Return a segment's text; bytes that are no UTF-8 as AMQP names have them here."""
    return unquote_to_bytes(segment).decode("utf-8", "surrogateescape")
