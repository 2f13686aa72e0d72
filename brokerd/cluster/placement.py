"""Where replicas and leaders of quorum queues go, and which members may stop.  PURE.

Values in, values out; the caller brings the counts and the generator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from brokerd.raft.messages import NodeId

#: From so many queues on choices are random: counting no longer pays (R-QQ-4, R-QQ-5; O-23).
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
) -> tuple[NodeId, ...]:
    """Choose the members of a new quorum queue (R-QQ-4); the client's node comes first.

    size: x-quorum-initial-group-size, None for the default.  Running members with the fewest
    replicas are taken first (ties at random); members that are down fill up, so that the group has
    its size from the start and they catch up when they return.
    """
    wanted = max(1, min(size or GROUP_SIZE_DEFAULT, len(members)))
    others = shuffler.sample(
        sorted(set(members) - {client_node}), len(set(members) - {client_node})
    )
    if queue_count < RANDOM_QUEUES_MIN:
        others.sort(key=lambda node: replica_counts.get(node, 0))
    # Stable: keeps the order by count (or chance) within the running ones and within the others.
    others.sort(key=lambda node: node not in running)
    chosen = [client_node] if client_node in members else []
    return tuple((chosen + others)[:wanted])


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
