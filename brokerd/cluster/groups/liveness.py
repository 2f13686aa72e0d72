"""Which nodes are up: one record per node, fed by signs of life and their absence.  PURE.

replication.md §2.1: liveness is a matter of nodes, not of groups.  The host asks `check` once per
tick and passes changes on.  Times are milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.raft.messages import Configuration, NodeId

#: Silence of a node that is no member: longer than any setting (24 days).
FOR_EVER_MS = 2**31


@dataclass(slots=True)
class _Node:
    heard_ms: int
    #: None: neither heard nor missed yet.
    is_up: bool | None = None
    #: Since when it refuses connections; None: it does not, or was never asked.
    refused_ms: int | None = None
    incarnation: int = 0


class Liveness:
    """Heard, silent and refusing nodes.

    A node is suspected after `suspicion_ms` of silence, or after `refused_ms` of refused
    connections (its process is gone, whatever its last words were).
    """

    def __init__(self, suspicion_ms: int, refused_ms: int) -> None:
        self._suspicion_ms = suspicion_ms
        self._refused_ms = refused_ms
        self._nodes: dict[NodeId, _Node] = {}
        #: Whose disk does not answer, as they say themselves (ADR 68); this node may be among them.
        self._stalled: set[NodeId] = set()
        self._checked_ms: int | None = None

    def set_nodes(self, nodes: Iterable[NodeId], now_ms: int) -> list[tuple[NodeId, int]]:
        """Take the others' names; new ones have the time of a suspicion to be heard.  Return the
        ones that were up and are no members any more, with their incarnations.
        """
        wanted = dict.fromkeys(nodes)
        gone = [
            (node, state.incarnation)
            for node, state in self._nodes.items()
            if node not in wanted and state.is_up
        ]
        for node in [node for node in self._nodes if node not in wanted]:
            del self._nodes[node]
            self._stalled.discard(node)
        for node in wanted:
            self._nodes.setdefault(node, _Node(now_ms))
        return gone

    def nodes(self) -> set[NodeId]:
        """Return the nodes that were set."""
        return set(self._nodes)

    def knows(self, node: NodeId) -> bool:
        """Tell whether the node is one of those that were set."""
        return node in self._nodes

    def heard(self, node: NodeId, now_ms: int) -> bool:
        """A frame came.  True: the node was not known to be up."""
        state = self._nodes.get(node)
        if state is None:
            return False
        state.heard_ms = now_ms
        state.refused_ms = None
        if state.is_up:
            return False
        state.is_up = True
        return True

    def set_incarnation(self, node: NodeId, incarnation: int) -> None:
        """The node introduced itself."""
        if node in self._nodes:
            self._nodes[node].incarnation = incarnation

    def incarnation(self, node: NodeId) -> int:
        """Return the last known incarnation; 0 if none."""
        state = self._nodes.get(node)
        return state.incarnation if state else 0

    def refused(self, node: NodeId, now_ms: int) -> None:
        """The node's port refused a connection."""
        state = self._nodes.get(node)
        if state is not None and state.refused_ms is None:
            state.refused_ms = now_ms

    def refuses(self, node: NodeId) -> bool:
        """Tell whether the node's port refuses connections: its process has ended."""
        state = self._nodes.get(node)
        return state is not None and state.refused_ms is not None

    def connected(self, node: NodeId) -> None:
        """A connection to the node stands."""
        state = self._nodes.get(node)
        if state is not None:
            state.refused_ms = None

    def silent_ms(self, node: NodeId, now_ms: int) -> int:
        """Return for how long a suspected node has not been heard; 0 for one that is up.

        One that was never set counts as silent for ever.
        """
        state = self._nodes.get(node)
        if state is None:
            return FOR_EVER_MS
        return now_ms - state.heard_ms if state.is_up is False else 0

    def heard_since(self, node: NodeId, since_ms: int) -> bool:
        """Tell whether a frame came at or after a moment."""
        state = self._nodes.get(node)
        return state is not None and bool(state.is_up) and state.heard_ms >= since_ms

    def check(self, now_ms: int, interval_ms: int) -> list[NodeId]:
        """Return the nodes that are suspected from now on.

        A check that comes late says that this process did not run, not that the others were silent:
        the lost time is not held against them.
        """
        if self._checked_ms is not None:
            late_ms = now_ms - self._checked_ms - interval_ms
            if late_ms > self._suspicion_ms // 4:
                for state in self._nodes.values():
                    state.heard_ms = min(now_ms, state.heard_ms + late_ms)
                    if state.refused_ms is not None:
                        state.refused_ms = min(now_ms, state.refused_ms + late_ms)
        self._checked_ms = now_ms
        suspected = []
        for node, state in self._nodes.items():
            if state.is_up is False:
                continue
            is_refusing = (
                state.refused_ms is not None
                and state.is_up is not None
                and now_ms - state.refused_ms >= self._refused_ms
            )
            if is_refusing or now_ms - state.heard_ms >= self._suspicion_ms:
                state.is_up = False
                # It says so again when it is heard again.
                self._stalled.discard(node)
                suspected.append(node)
        return suspected

    def suspected(self) -> set[NodeId]:
        """Return the nodes that are not known to be up."""
        return {node for node, state in self._nodes.items() if not state.is_up}

    def set_stalled(self, node: NodeId, is_stalled: bool) -> None:
        """A node says whether its disk answers."""
        if is_stalled:
            self._stalled.add(node)
        else:
            self._stalled.discard(node)

    def is_stalled(self, node: NodeId) -> bool:
        """Tell whether a node is up and its disk does not answer."""
        return node in self._stalled

    def hears_most(self, configuration: Configuration) -> bool:
        """Tell whether a majority of a group's voters is up; this node is one of them."""
        nodes, voters = self._nodes, configuration.voters
        others = [nodes[voter] for voter in voters if voter in nodes]
        return len(voters) < 2 * (1 + sum(1 for node in others if node.is_up))

    def up(self) -> set[NodeId]:
        """Return the nodes that are up."""
        return {node for node, state in self._nodes.items() if state.is_up}
