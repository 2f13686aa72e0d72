"""Routing: an exchange and keys to queues, over alternate exchanges and exchange bindings.

One worklist for all hops (R-RT-1), so cycles of any kind end (R-RT-4) and a queue gets one copy
(R-RT-2).  Results are cached per (exchange, key) until the vhost's topology changes; messages with
CC or BCC and those that pass a headers exchange are routed anew each time.

Pure; reads `CatalogState`, is asked by sessions, the dead-letter worker and federation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from brokerd.core.catalog import delayed_type, federation_type, names, policy, spread
from brokerd.core.catalog.bindings import Destination, ExchangeIndex
from brokerd.core.catalog.catalog_objects import Exchange, Queue
from brokerd.core.catalog.catalog_state import CatalogState, VhostTopology
from brokerd.core.catalog.down_homes import DownHomes
from brokerd.core.catalog.spread import Asked, PropertyOf

#: Per vhost and generation; two generations, so what is asked often stays when random keys come.
CACHED_ROUTES_MAX = 16_384


class RouteResult:
    """Where a message goes.  Shared between messages: never change one."""

    __slots__ = (
        "ae_cycle",
        "ae_missing",
        "alternates",
        "checks_hops",
        "delays",
        "exchange",
        "needs_headers",
        "queues",
    )

    def __init__(self, exchange: Exchange | None) -> None:
        #: The exchange that was named; None: there is none (404, R-ERR-1).
        self.exchange = exchange
        #: Queues that exist, each once, in order of discovery.
        self.queues: tuple[Queue, ...] = ()
        #: (exchange, its alternate) for every hop over an alternate exchange, in order.
        self.alternates: tuple[tuple[str, str], ...] = ()
        #: (exchange, its alternate) where the alternate does not exist (R-AE-4).
        self.ae_missing: tuple[str, str] | None = None
        #: True: an alternate had been visited already, which ended the chain (R-AE-3).
        self.ae_cycle = False
        #: True: the message's headers decide, and none were given: decode them (no table: {}) and
        #: ask again.  `queues` then says nothing.
        self.needs_headers = False
        #: True: where the message has been decides, too (R-FX-12); `queues` is for one without
        #: x-received-from.
        self.checks_hops = False
        #: True: a queue of the route keeps the message for as long as its headers say.
        self.delays = False

    def with_queues(self, queues: Iterable[Queue]) -> RouteResult:
        """Return a route of the same way to these queues only."""
        found = RouteResult(self.exchange)
        found.queues = tuple(queues)
        found.alternates = self.alternates
        found.ae_missing = self.ae_missing
        found.ae_cycle = self.ae_cycle
        found.needs_headers = self.needs_headers
        found.checks_hops = self.checks_hops
        found.delays = self.delays
        return found

    @property
    def used_alternate(self) -> int:
        """Return the number of hops over alternate exchanges."""
        return len(self.alternates)

    def is_refused_by_all(self, down: DownHomes) -> bool:
        """Tell whether no queue of the route takes messages, since their home members are down."""
        refusing = down.refusing
        return bool(refusing) and all(queue.uid in refusing for queue in self.queues)

    @property
    def unroutable(self) -> bool:
        """Say whether there is no queue for it (basic.return if mandatory; R-AE-10, R-PC-4)."""
        return not self.queues


class _Cache:
    """Routes of one vhost at one revision of its topology."""

    __slots__ = ("new", "old", "revision", "topology")

    def __init__(self, topology: VhostTopology) -> None:
        self.topology = topology
        self.revision = topology.revision
        self.new: dict[tuple[str, str], RouteResult] = {}
        self.old: dict[tuple[str, str], RouteResult] = {}

    def put(self, route: tuple[str, str], result: RouteResult) -> None:
        if len(self.new) >= CACHED_ROUTES_MAX:
            self.old = self.new
            self.new = {}
        self.new[route] = result


class Router:
    """Routes over a node's view of the catalog.  Owns nothing but the cache."""

    __slots__ = ("_caches", "_property_of", "_state", "leads")

    def __init__(self, state: CatalogState, property_of: PropertyOf | None = None) -> None:
        """property_of: reads a property of messages; None: hash exchanges see none."""
        self._state = state
        self._property_of = property_of
        #: Tells of a queue's uid whether its leader is here, for x-local-random.
        self.leads: Callable[[int], bool] = _leads_none
        self._caches: dict[str, _Cache] = {}

    def route(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any] | None = None,
        extra_keys: Sequence[str] = (),
        header: bytes = b"",
    ) -> RouteResult:
        """Return where a message goes.

        headers: None means "not looked at": if they matter, the result says `needs_headers`.
        extra_keys: CC, then BCC (R-RT-C2).
        header: the message's properties, encoded, for the exchange type x-consistent-hash.
        """
        cache = self._caches.get(vhost)
        # A vhost that is deleted, or replaced by a snapshot's, had its revision raised.
        if cache is None or cache.revision != cache.topology.revision:
            topology = self._state.vhosts.get(vhost)
            if topology is None:
                self._caches.pop(vhost, None)
                return RouteResult(None)
            cache = self._caches[vhost] = _Cache(topology)
        if extra_keys:
            keys = (routing_key, *extra_keys)
            asked = Asked(keys, headers, header, self._property_of)
            return self._find(cache.topology, exchange, asked)
        route = (exchange, routing_key)
        result = cache.new.get(route)
        if result is None:
            result = cache.old.get(route)
            if result is None:
                result = self._find(cache.topology, exchange, Asked((routing_key,)))
            cache.put(route, result)
        if headers is not None and (
            result.needs_headers
            or (result.checks_hops and federation_type.RECEIVED_FROM in headers)
        ):
            asked = Asked((routing_key,), headers, header, self._property_of)
            return self._find(cache.topology, exchange, asked)
        return result

    def _find(self, topology: VhostTopology, start: str, asked: Asked) -> RouteResult:
        keys, headers = asked.keys, asked.headers
        exchanges = topology.exchanges
        first = exchanges.get(start)
        result = RouteResult(first)
        if first is None:
            return result
        if start == names.DEFAULT_EXCHANGE:
            # R-RT-0, R-RT-C5
            named: dict[Destination, None] = {
                (True, key): None for key in keys if not names.is_delayed_queue(key)
            }
            result.queues = _queues(topology, (name for _, name in self._present(topology, named)))
            return result
        seen = {start}
        work = [first]
        targets: dict[str, None] = {}
        alternates: list[tuple[str, str]] = []
        while work:
            exchange = work.pop()
            if exchange.type == delayed_type.TYPE:
                if headers is None:
                    result.needs_headers = True
                    return result
                if delayed_type.goes_to_queue(headers):
                    # Its bindings and its alternate are asked when the time has come.
                    targets[names.delayed_queue(exchange.name)] = None
                    result.delays = True
                    continue
            found: dict[Destination, None] = {}
            index = _index(topology, exchange, headers, result)
            if index is not None:
                if index.needs_headers and headers is None:
                    result.needs_headers = True
                    return result
                if exchange.routing_type == spread.LOCAL_RANDOM:
                    asked.is_local = functools.partial(self._is_local, topology)
                index.match(asked, found)
                found = self._present(topology, found)
            if found:
                for is_queue, name in found:
                    if is_queue:
                        targets[name] = None
                    elif name not in seen:
                        seen.add(name)
                        target = exchanges.get(name)
                        if target is not None:
                            work.append(target)
                continue
            # R-RT-1: only the exchange's own match counts, not what lies behind (R-RT-E1).
            alternate = policy.effective_exchange(self._state, exchange).alternate_exchange
            if alternate is None:
                continue
            target = exchanges.get(alternate)
            if target is None:
                result.ae_missing = (exchange.name, alternate)
            elif alternate in seen:
                result.ae_cycle = True
            else:
                seen.add(alternate)
                alternates.append((exchange.name, alternate))
                work.append(target)
        result.alternates = tuple(alternates)
        # R-RT-3: names that lead nowhere are dropped, and do not trigger an alternate.
        result.queues = _queues(topology, targets)
        return result

    def _is_local(self, topology: VhostTopology, name: str) -> bool:
        queue = topology.queues.get(name)
        return queue is not None and self.leads(queue.uid)

    def _present(
        self, topology: VhostTopology, found: dict[Destination, None]
    ) -> dict[Destination, None]:
        """Return destinations without the queues that went down with their home members."""
        if not self._state.down_homes.absent:
            return found
        present: dict[Destination, None] = {}
        for destination in found:
            is_queue, name = destination
            if not is_queue or self._state.usable_queue(topology.name, name) is not None:
                present[destination] = None
        return present


def _leads_none(uid: int) -> bool:
    return False


def _queues(topology: VhostTopology, found: Iterable[str]) -> tuple[Queue, ...]:
    queues = topology.queues
    return tuple(queues[name] for name in found if name in queues)


def _index(
    topology: VhostTopology,
    exchange: Exchange,
    headers: Mapping[str, Any] | None,
    result: RouteResult,
) -> ExchangeIndex | None:
    """Return the bindings of an exchange, None where the message goes by none of them."""
    if exchange.type == federation_type.TYPE:
        result.checks_hops = True
        if not federation_type.takes(exchange.arguments, headers):
            return None
    return topology.bindings.index(exchange.name)
