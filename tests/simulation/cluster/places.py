"""Where the members of a simulated cluster run, and whether what fails together is apart.

Counted here by hand, since brokerd's own counting is what is tested.  For world.py, member.py and
examination.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence

from brokerd.cluster.groups.failure_domains import Domain, Domains
from brokerd.raft.messages import NodeId


class Places:
    """State: each node's host and zone; none where nobody says where members run."""

    def __init__(
        self, nodes: Sequence[NodeId], rng: random.Random, *, hosts: int, zones: int
    ) -> None:
        #: As many nodes on each host, and hosts in each zone, as can be.
        shuffled = rng.sample(nodes, len(nodes)) if hosts else []
        self._hosts = {node: number % hosts for number, node in enumerate(shuffled)}
        self._zones = {node: host % zones for node, host in self._hosts.items()}

    def of(self, node: NodeId) -> dict[str, str]:
        """Return what a member's configuration says."""
        if node not in self._hosts:
            return {}
        return {"host": f"host{self._hosts[node]}", "zone": f"zone{self._zones[node]}"}

    @property
    def domains(self) -> Domains:
        """Return the same as people see it."""
        return Domains({node: Domain(**self.of(node)) for node in self._hosts})

    def zones(self) -> list[list[NodeId]]:
        """Return the members of each zone."""
        found: dict[int, list[NodeId]] = {}
        for node in sorted(self._zones):
            found.setdefault(self._zones[node], []).append(node)
        return [found[zone] for zone in sorted(found)]

    def fault(self, nodes: Collection[str]) -> str | None:
        """Return what of these would fail together: two on one host, or a majority in one zone."""
        hosts, zones = self._counts(nodes)
        if max(hosts.values(), default=0) > 1:
            return f"{sorted(nodes)} share a host: {hosts}"
        if 2 * max(zones.values(), default=0) > len(nodes):
            return f"{sorted(nodes)} have a majority in a zone: {zones}"
        return None

    def unevenness(self, nodes: Collection[str]) -> tuple[int, int]:
        """Return how many more of these the fullest zone has than the emptiest, and how many share
        a host with another one."""
        hosts, zones = self._counts(nodes)
        counts = [zones[zone] for zone in set(self._zones.values())]
        return max(counts) - min(counts), len(nodes) - len(hosts)

    def _counts(self, nodes: Collection[str]) -> tuple[Counter[int], Counter[int]]:
        known = [NodeId(node) for node in nodes]
        return (
            Counter(self._hosts[node] for node in known),
            Counter(self._zones[node] for node in known),
        )
