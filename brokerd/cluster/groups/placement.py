"""Where replicas and leaders of quorum queues go, and which members may stop.  PURE.

Values in, values out; the caller brings the counts and the generator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from brokerd.cluster.groups.failure_domains import Domains
from brokerd.raft.messages import NodeId

#: Queues from which on choices are random: counting no longer pays (R-QQ-4, R-QQ-5; O-23).
RANDOM_QUEUES_MIN = 1_000
GROUP_SIZE_DEFAULT = 3

CLIENT_LOCAL = "client-local"
BALANCED = "balanced"
#: Older names that act as balanced (R-QQ-5).
_LEGACY_LOCATORS = frozenset({"random", "least-leaders", "min-masters"})

_T = TypeVar("_T")


class Shuffler(Protocol):
    """What is needed of random.Random."""

    def sample(self, population: Sequence[_T], k: int) -> list[_T]:
        """Return k distinct elements in random order."""
        ...


@dataclass(slots=True, frozen=True)
class GroupHealth:
    """One group as its leader sees it."""

    uid: int
    voters: tuple[NodeId, ...]
    #: Voters that are up and not far behind.
    online: frozenset[NodeId]


def choose_members(
    size: int | None,
    client_node: NodeId,
    members: Collection[NodeId],
    running: Collection[NodeId],
    replica_counts: Mapping[NodeId, int],
    queue_count: int,
    shuffler: Shuffler,
    domains: Domains,
) -> tuple[NodeId, ...]:
    """Choose the members of a new quorum queue (R-QQ-4); the client's node comes first.

    size: x-quorum-initial-group-size, None for the default.  Running members are taken first, as
    evenly from zones and hosts as can be, and of those that are alike in this the ones with the
    fewest replicas (ties at random); members that are down fill up, so that the group has its size
    from the start and they catch up when they return.
    """
    wanted = max(1, min(size or GROUP_SIZE_DEFAULT, len(members)))
    others = shuffler.sample(
        sorted(set(members) - {client_node}), len(set(members) - {client_node})
    )
    if queue_count < RANDOM_QUEUES_MIN:
        others.sort(key=lambda node: replica_counts.get(node, 0))
    chosen = [client_node] if client_node in members else []
    chosen = domains.extended(chosen, (node for node in others if node in running), wanted)
    return tuple(domains.extended(chosen, others, wanted))


def leader_candidates(
    locator: str,
    client_node: NodeId,
    members: Sequence[NodeId],
    running: Collection[NodeId],
    leader_counts: Mapping[NodeId, int],
    queue_count: int,
    shuffler: Shuffler,
) -> tuple[NodeId, ...]:
    """Order a new group's members by who should lead it (R-QQ-5); members that are down come last.

    locator: client-local or balanced (or a legacy name of it); anything else acts as client-local.
    """
    ordered = shuffler.sample(sorted(members), len(members))
    if locator == BALANCED or locator in _LEGACY_LOCATORS:
        if queue_count < RANDOM_QUEUES_MIN:
            ordered.sort(key=lambda node: leader_counts.get(node, 0))
    else:
        ordered.sort(key=lambda node: node != client_node)
    ordered.sort(key=lambda node: node not in running)
    return tuple(ordered)


def critical_groups(groups: Iterable[GroupHealth], member: NodeId) -> list[int]:
    """Return the groups that lose their majority when `member` stops (R-QQ-6), ascending.

    A group that has no majority even now is critical too: stopping one more cannot help it.
    """
    return sorted(
        group.uid
        for group in groups
        if member in group.voters
        and len((group.online & set(group.voters)) - {member}) <= len(group.voters) // 2
    )


def safe_to_stop(groups: Iterable[GroupHealth], member: NodeId) -> bool:
    """Tell whether every group keeps a majority without `member`.

    A group whose only voter is `member` does not count: it has no majority to lose elsewhere, and
    its durable content returns with the member.
    """
    return not critical_groups((group for group in groups if group.voters != (member,)), member)


def critical_members(groups: Iterable[GroupHealth]) -> frozenset[NodeId]:
    """Return the running members of which none may stop without a group losing its majority.

    A member that is down cannot stop, and a group with one voter has no majority to lose.
    """
    # Thousands of groups have the same few sets of voters.
    kinds = {(group.voters, group.online): group for group in groups if len(group.voters) > 1}
    online = {node for group in kinds.values() for node in group.online}
    return frozenset(node for node in online if critical_groups(kinds.values(), node))


def replica_counts(groups: Iterable[Iterable[str]]) -> Counter[NodeId]:
    """Return how many replicas each member holds."""
    return Counter(NodeId(node) for group in groups for node in group)


def newcomers(
    candidates: Collection[NodeId],
    present: Sequence[NodeId],
    counts: Mapping[NodeId, int],
    wanted: int,
    domains: Domains,
) -> list[NodeId]:
    """Return up to `wanted` of the candidates for a group that has (or will have) the members
    `present`: those after which it is spread most evenly over zones and hosts, of these the ones
    with the fewest replicas (R-QQ-4, R-QQ-23).
    """
    others = sorted(set(candidates) - set(present), key=lambda node: (counts.get(node, 0), node))
    return domains.extended(present, others, len(present) + wanted)[len(present) :]


def balanced_leaders(
    leaders: Mapping[int, NodeId],
    voters: Mapping[int, Collection[NodeId]],
    running: Collection[NodeId],
) -> list[tuple[int, NodeId]]:
    """Return the moves (group, new leader) after which leaders are spread as evenly as the voters
    allow, in an order in which they can be made; no group moves without need.

    Evenly: no chain of moves can bring a member with the most leaders and one with the fewest
    nearer to each other by more than one.  Only voters in `running` can lead.
    """
    spread = _Spread(leaders, voters, running)
    while spread.improve():
        pass
    return [(uid, node) for uid, node in sorted(spread.leaders.items()) if leaders.get(uid) != node]


class _Spread:
    """Who leads what, and by which groups a leadership can go from one member to another."""

    def __init__(
        self,
        leaders: Mapping[int, NodeId],
        voters: Mapping[int, Collection[NodeId]],
        running: Collection[NodeId],
    ) -> None:
        self.leaders: dict[int, NodeId] = {}
        self._heirs: dict[int, list[NodeId]] = {}
        self._counts: dict[NodeId, int] = dict.fromkeys(sorted(running), 0)
        #: (from, to) -> the groups that could go, in order.
        self._ways: dict[tuple[NodeId, NodeId], dict[int, None]] = {}
        for uid in sorted(leaders):
            if leaders[uid] in self._counts:
                self._heirs[uid] = sorted(set(voters.get(uid, ())) & self._counts.keys())
                self._lead(uid, leaders[uid])

    def _lead(self, uid: int, node: NodeId) -> None:
        before = self.leaders.get(uid)
        for heir in self._heirs[uid]:
            if before is not None:
                self._ways.get((before, heir), {}).pop(uid, None)
            if heir != node:
                self._ways.setdefault((node, heir), {})[uid] = None
        if before is not None:
            self._counts[before] -= 1
        self.leaders[uid] = node
        self._counts[node] += 1

    def improve(self) -> bool:
        """Make the moves of one chain from a member with many leaders to one with fewer."""
        for start in sorted(self._counts, key=lambda node: (-self._counts[node], node)):
            chain = self._chain(start)
            if chain:
                for before, after in chain:
                    self._lead(next(iter(self._ways[before, after])), after)
                return True
        return False

    def _chain(self, start: NodeId) -> list[tuple[NodeId, NodeId]]:
        """Return the shortest way to a member that leads at least two fewer groups."""
        came: dict[NodeId, NodeId] = {}
        level = [start]
        while level:
            following: list[NodeId] = []
            for node in level:
                for other in self._counts:
                    if other == start or other in came or not self._ways.get((node, other)):
                        continue
                    came[other] = node
                    if self._counts[other] + 2 <= self._counts[start]:
                        return self._way_back(came, start, other)
                    following.append(other)
            level = following
        return []

    @staticmethod
    def _way_back(
        came: Mapping[NodeId, NodeId], start: NodeId, end: NodeId
    ) -> list[tuple[NodeId, NodeId]]:
        chain: list[tuple[NodeId, NodeId]] = []
        while end != start:
            chain.append((came[end], end))
            end = came[end]
        return chain[::-1]
