"""Zones and hosts of members, and how evenly a queue's replicas are spread over them.  PURE.

For placement.py, which chooses, and for the Admin service, which shows.  What fails together should
not hold a majority of a queue: first come zones, then hosts, then whatever the caller prefers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from brokerd.raft.messages import NodeId

#: What list_queues says of a queue.
SPREAD, SAME_HOST, ONE_ZONE, UNKNOWN = "spread", "same host", "one zone", "unknown"

#: What fails together: ("zone", name), ("host", name), or ("member", name) where neither is known.
Key: TypeAlias = tuple[str, str]


@dataclass(slots=True, frozen=True)
class Domain:
    """Where a member runs, as it says itself; "" is unknown."""

    host: str = ""
    zone: str = ""


class Domains:
    """State: each member's host and zone.

    Invariant: a host lies in one zone.  If its members disagree (one of them has not said so yet),
    the first zone by name that one of them says is that of all.  A member whose host is unknown has
    one of its own, and so has a host whose zone is unknown a zone.
    """

    def __init__(self, said: Mapping[NodeId, Domain]) -> None:
        self._said = said
        self._zones: dict[str, str] = {}
        for domain in said.values():
            if domain.host and domain.zone:
                known = self._zones.get(domain.host, domain.zone)
                self._zones[domain.host] = min(known, domain.zone)

    def host(self, node: NodeId) -> Key:
        """Return the host of a member."""
        host = self._domain(node).host
        return ("host", host) if host else ("member", node)

    def zone(self, node: NodeId) -> Key:
        """Return the zone of a member."""
        domain = self._domain(node)
        zone = self._zones.get(domain.host, "") if domain.host else domain.zone
        return ("zone", zone) if zone else self.host(node)

    def _domain(self, node: NodeId) -> Domain:
        return self._said.get(node, Domain())

    # ---- choosing -----------------------------------------------------------------------------

    def cost(self, nodes: Iterable[NodeId]) -> tuple[int, int]:
        """Return how uneven replicas are spread over zones, then hosts: sums of squares, which are
        least where the numbers differ least.
        """
        nodes = list(nodes)
        zones = Counter(map(self.zone, nodes))
        hosts = Counter(map(self.host, nodes))
        return sum(n * n for n in zones.values()), sum(n * n for n in hosts.values())

    def extended(
        self, chosen: Sequence[NodeId], candidates: Iterable[NodeId], wanted: int
    ) -> list[NodeId]:
        """Return `chosen` and behind it as many of the others as make `wanted`.

        Where it makes no difference to the spread, who comes first in `candidates` is taken.  No
        other choice has a smaller cost: hosts lie within zones, so that taking the best one each
        time is the best in all.
        """
        found = list(chosen)
        left = [node for node in candidates if node not in found]
        zones = Counter(map(self.zone, found))
        hosts = Counter(map(self.host, found))
        while left and len(found) < wanted:
            node = min(left, key=lambda node: (zones[self.zone(node)], hosts[self.host(node)]))
            left.remove(node)
            found.append(node)
            zones[self.zone(node)] += 1
            hosts[self.host(node)] += 1
        return found

    def better(
        self, nodes: Sequence[NodeId], candidates: Iterable[NodeId]
    ) -> tuple[NodeId, NodeId] | None:
        """Return who had best leave and who come instead, None if no exchange of two members makes
        the spread more even; then nothing does.
        """
        least, found = self.cost(nodes), None
        for comer in sorted(set(candidates) - set(nodes)):
            for leaver in reversed(nodes):
                cost = self.cost([comer, *(node for node in nodes if node != leaver)])
                if cost < least:
                    least, found = cost, (leaver, comer)
        return found

    # ---- showing ------------------------------------------------------------------------------

    def standing(self, nodes: Sequence[NodeId]) -> str:
        """Return how a queue's replicas lie: SPREAD, SAME_HOST, ONE_ZONE (the others are no
        majority), UNKNOWN; "" where there is but one.
        """
        if len(nodes) < 2:
            return ""
        if self._on_one_host(nodes):
            return SAME_HOST
        if self._in_one_zone(nodes):
            return ONE_ZONE
        if any(self.zone(node)[0] == "member" for node in nodes):
            return UNKNOWN
        return SPREAD

    def fault(self, nodes: Sequence[NodeId]) -> str:
        """Return in words which replicas fail together, "" if no two on a host do and the queue
        outlives each zone.
        """
        if len(nodes) < 2:
            return ""
        if found := self._on_one_host(nodes):
            return f"replicas on one host, '{self.host(found[0])[1]}': {', '.join(found)}"
        if found := self._in_one_zone(nodes):
            share = "a majority" if 2 * len(found) > len(nodes) else "half"
            zone = self.zone(found[0])[1]
            return f"{share} of the replicas in one zone, '{zone}': {', '.join(found)}"
        return ""

    def _on_one_host(self, nodes: Sequence[NodeId]) -> list[NodeId]:
        """Return the replicas on the host that has the most of them, if it has more than one."""
        (most, count), *_ = Counter(map(self.host, nodes)).most_common(1)
        return [node for node in nodes if self.host(node) == most] if count > 1 else []

    def _in_one_zone(self, nodes: Sequence[NodeId]) -> list[NodeId]:
        """Return the replicas in the zone without which the others are no majority, if there is
        one.  Two replicas have no majority without the other one wherever they are.
        """
        (most, count), *_ = Counter(map(self.zone, nodes)).most_common(1)
        is_needed = 2 * count >= len(nodes) and count > 1
        return [node for node in nodes if self.zone(node) == most] if is_needed else []
