"""Bindings of one vhost, indexed for routing and for removal.

Pure.  `catalog_state.py` adds and removes; `router.py` asks.  Every operation costs by what it
touches, never by how many bindings there are (design/hot-path.md, Scale).
"""

from __future__ import annotations

from brokerd.core.catalog import federation_type, spread
from brokerd.core.catalog.catalog_objects import Binding, Exchange
from brokerd.core.catalog.exchange_types import HeadersMatch
from brokerd.core.catalog.spread import Asked, SpreadIndex
from brokerd.core.catalog.topic_trie import TopicTrie

#: (is a queue, name)
Destination = tuple[bool, str]
#: Ordered set: a destination is there once, in order of discovery.
Found = dict[Destination, None]


class DirectIndex:
    """Routing key to destinations, byte for byte (R-RT-D1)."""

    __slots__ = ("_by_key",)
    needs_headers = False

    def __init__(self) -> None:
        #: Counts: bindings that differ in arguments only.
        self._by_key: dict[str, dict[Destination, int]] = {}

    def add(self, binding: Binding, destination: Destination) -> None:
        """Add a binding."""
        counts = self._by_key.setdefault(binding.routing_key, {})
        counts[destination] = counts.get(destination, 0) + 1

    def remove(self, binding: Binding, destination: Destination) -> None:
        """Take it back."""
        counts = self._by_key[binding.routing_key]
        _count_down(counts, destination)
        if not counts:
            del self._by_key[binding.routing_key]

    def match(self, asked: Asked, found: Found) -> None:
        """Add destinations of all keys."""
        for key in asked.keys:
            counts = self._by_key.get(key)
            if counts is not None:
                found.update(dict.fromkeys(counts))


class FanoutIndex:
    """All destinations (R-RT-F1)."""

    __slots__ = ("_counts",)
    needs_headers = False

    def __init__(self) -> None:
        self._counts: dict[Destination, int] = {}

    def add(self, binding: Binding, destination: Destination) -> None:
        """Add a binding."""
        self._counts[destination] = self._counts.get(destination, 0) + 1

    def remove(self, binding: Binding, destination: Destination) -> None:
        """Take it back."""
        _count_down(self._counts, destination)

    def match(self, asked: Asked, found: Found) -> None:
        """Add them all."""
        found.update(dict.fromkeys(self._counts))


class TopicIndex:
    """Patterns in a trie (R-RT-T1)."""

    __slots__ = ("trie",)
    needs_headers = False

    def __init__(self) -> None:
        self.trie: TopicTrie[Destination] = TopicTrie()

    def add(self, binding: Binding, destination: Destination) -> None:
        """Add a binding."""
        self.trie.add(binding.routing_key, destination)

    def remove(self, binding: Binding, destination: Destination) -> None:
        """Take it back."""
        self.trie.remove(binding.routing_key, destination)

    def match(self, asked: Asked, found: Found) -> None:
        """Add destinations of all patterns that match any key."""
        for key in asked.keys:
            self.trie.match(key, found)


class HeadersIndex:
    """Criteria of every binding, tried one after the other (R-RT-H)."""

    __slots__ = ("_loose", "_matches")
    needs_headers = True

    def __init__(self, loose: bool) -> None:
        self._matches: dict[str, tuple[HeadersMatch, Destination]] = {}
        self._loose = loose

    def add(self, binding: Binding, destination: Destination) -> None:
        """Add a binding; its name is its identity."""
        self._matches[binding.name] = (HeadersMatch(binding.arguments), destination)

    def remove(self, binding: Binding, destination: Destination) -> None:
        """Take it back."""
        del self._matches[binding.name]

    def match(self, asked: Asked, found: Found) -> None:
        """Add destinations whose criteria hold; no headers table is an empty one (R-RT-H6)."""
        headers = asked.headers or {}
        for criteria, destination in self._matches.values():
            if destination not in found and criteria.matches(headers, self._loose):
                found[destination] = None


ExchangeIndex = DirectIndex | FanoutIndex | TopicIndex | HeadersIndex | SpreadIndex


def _count_down(counts: dict[Destination, int], destination: Destination) -> None:
    count = counts[destination]
    if count > 1:
        counts[destination] = count - 1
    else:
        del counts[destination]


def new_index(exchange: Exchange, loose: bool) -> ExchangeIndex:
    """Return an empty index for an exchange."""
    exchange_type = exchange.routing_type
    if exchange_type == "direct":
        return DirectIndex()
    if exchange_type in ("fanout", federation_type.TYPE):
        return FanoutIndex()
    if exchange_type == "topic":
        return TopicIndex()
    if exchange_type in spread.TYPES:
        return SpreadIndex(exchange_type, exchange.arguments)
    assert exchange_type == "headers", exchange_type
    return HeadersIndex(loose)


class Bindings:
    """All bindings of a vhost.

    Invariants: each binding is in `by_name`, in its source's index and list, and in its
    destination's list, or in none of them.
    """

    __slots__ = ("_from", "_indexes", "_loose", "_to", "by_name")

    def __init__(self, loose: bool = False) -> None:
        self.by_name: dict[str, Binding] = {}
        self._indexes: dict[str, ExchangeIndex] = {}
        self._from: dict[str, dict[str, Binding]] = {}
        self._to: dict[Destination, dict[str, Binding]] = {}
        self._loose = loose

    def add(self, binding: Binding, source: Exchange) -> None:
        """Add a binding that is not there yet; source: its exchange."""
        destination = (binding.destination_kind == "queue", binding.destination)
        index = self._indexes.get(binding.source)
        if index is None:
            index = self._indexes[binding.source] = new_index(source, self._loose)
        index.add(binding, destination)
        self.by_name[binding.name] = binding
        self._from.setdefault(binding.source, {})[binding.name] = binding
        self._to.setdefault(destination, {})[binding.name] = binding

    def remove(self, binding: Binding) -> None:
        """Remove a binding that is there."""
        destination = (binding.destination_kind == "queue", binding.destination)
        del self.by_name[binding.name]
        self._indexes[binding.source].remove(binding, destination)
        of_source = self._from[binding.source]
        del of_source[binding.name]
        if not of_source:
            del self._from[binding.source]
            del self._indexes[binding.source]
        of_destination = self._to[destination]
        del of_destination[binding.name]
        if not of_destination:
            del self._to[destination]

    def index(self, source: str) -> ExchangeIndex | None:
        """Return the index of an exchange that has bindings."""
        return self._indexes.get(source)

    def from_source(self, source: str) -> list[Binding]:
        """Return the bindings of an exchange as source."""
        return list(self._from.get(source, {}).values())

    def has_source(self, source: str) -> bool:
        """Say whether any binding has this exchange as source."""
        return source in self._from

    def degree(self, exchange: str) -> tuple[int, int]:
        """Return how many bindings lead from an exchange, and how many lead to it."""
        return len(self._from.get(exchange, ())), len(self._to.get((False, exchange), ()))

    def to_destination(self, destination_kind: str, name: str) -> list[Binding]:
        """Return the bindings that lead to a queue or exchange."""
        return list(self._to.get((destination_kind == "queue", name), {}).values())

    def check_invariants(self) -> None:
        """Assert that the indexes hold what `by_name` holds."""
        assert sum(map(len, self._from.values())) == len(self.by_name)
        assert sum(map(len, self._to.values())) == len(self.by_name)
        assert self._from.keys() == self._indexes.keys()
        assert all(self._from.values())
        assert all(self._to.values())
        for index in self._indexes.values():
            if isinstance(index, TopicIndex):
                index.trie.check_invariants()
