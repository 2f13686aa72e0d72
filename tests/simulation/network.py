"""A network that loses, repeats, delays and reorders messages, and can be cut in any direction."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from brokerd.raft.messages import NodeId


@dataclass(slots=True)
class NetworkFaults:
    """How bad the network is; probabilities per message."""

    loss: float = 0.0
    duplication: float = 0.0
    #: Chance of a delay of up to half a second, overtaken by later messages.
    straggling: float = 0.0
    delay_ms_max: int = 8
    #: Messages of a pair arrive in order, as on one stream.
    is_ordered: bool = False


class FakeNetwork:
    """Decides when copies of a message arrive; `blocked` pairs are directed."""

    def __init__(self, rng: random.Random, faults: NetworkFaults) -> None:
        self._rng = rng
        self.faults = faults
        self.blocked: set[tuple[NodeId, NodeId]] = set()
        self._newest: dict[tuple[NodeId, NodeId], int] = {}

    def is_blocked(self, sender: NodeId, to: NodeId) -> bool:
        """Whether nothing passes in this direction."""
        return (sender, to) in self.blocked

    def arrivals(self, sender: NodeId, to: NodeId, now_ms: int) -> list[int]:
        """Return the times at which copies of a message arrive; none if it is lost."""
        rng = self._rng
        faults = self.faults
        if (sender, to) in self.blocked or (faults.loss and rng.random() < faults.loss):
            return []
        times = [now_ms + 1 + rng.randrange(faults.delay_ms_max)]
        if faults.duplication and rng.random() < faults.duplication:
            times.append(now_ms + 1 + rng.randrange(200))
        if faults.straggling and rng.random() < faults.straggling:
            times[0] += rng.randrange(500)
        if faults.is_ordered:
            times[0] = max(times[0], self._newest.get((sender, to), 0))
            self._newest[sender, to] = times[0]
            del times[1:]
        return times

    def heal(self) -> None:
        """Let everything pass."""
        self.blocked.clear()
        self.faults = NetworkFaults()

    def partition(self, nodes: list[NodeId], kind: str) -> None:
        """Cut the network in one of the ways of PARTITIONS."""
        self.blocked.clear()
        shuffled = list(nodes)
        self._rng.shuffle(shuffled)
        PARTITIONS[kind](self, shuffled)

    def _cut(self, left: list[NodeId], right: list[NodeId], *, both: bool = True) -> None:
        for a in left:
            for b in right:
                self.blocked.add((a, b))
                if both:
                    self.blocked.add((b, a))

    def _cut_ring(self, nodes: list[NodeId]) -> None:
        count = len(nodes)
        for i, a in enumerate(nodes):
            for j, b in enumerate(nodes):
                if (i - j) % count not in (0, 1, count - 1) or (count == 3 and {i, j} == {0, 2}):
                    self.blocked.add((a, b))


PARTITIONS: dict[str, Callable[[FakeNetwork, list[NodeId]], None]] = {
    "one-node": lambda net, nodes: net._cut(nodes[:1], nodes[1:]),
    "halves": lambda net, nodes: net._cut(nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]),
    "one-way": lambda net, nodes: net._cut(nodes[:1], nodes[1:], both=False),
    "deaf": lambda net, nodes: net._cut(nodes[1:], nodes[:1], both=False),
    "pair": lambda net, nodes: net._cut(nodes[:1], nodes[1:2], both=False),
    "ring": lambda net, nodes: net._cut_ring(nodes),
}
