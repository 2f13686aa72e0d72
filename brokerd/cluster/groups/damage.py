"""Why a group has no leader, where damage is the reason.  PURE.

A member whose log is damaged has no vote until a leader has refilled it (replication.md §1, G8).
So a group waits while the whole members that are up are no majority, and a client that wants
something of it should learn what for.  server/members/stuck_queues.py asks the members and says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brokerd.raft.messages import NodeId
from brokerd.raft.quorum import majority

#: Members that a reason names; it has to fit into the 255 bytes of a reply text.
NAMES_MAX = 3
NAME_BYTES_MAX = 24
ELLIPSIS = "..."


@dataclass(slots=True, frozen=True)
class ReplicaState:
    """What a member that answers says of its replica."""

    is_leader: bool = False
    is_damaged: bool = False
    #: A broken invariant stopped it; it may work again after a restart.
    has_stopped: bool = False


@dataclass(slots=True, frozen=True)
class Verdict:
    """The group waits, and damage is part of the reason."""

    #: Follows "is".
    reason: str
    #: Waiting does not help: all members that are not damaged would be no majority either.
    is_lasting: bool


def has_leader(replicas: Mapping[NodeId, ReplicaState]) -> bool:
    """Tell whether some member says that it leads."""
    return any(replica.is_leader for replica in replicas.values())


def judge(voters: Sequence[NodeId], replicas: Mapping[NodeId, ReplicaState]) -> Verdict | None:
    """Return why these voters elect no leader; None if they can, or if damage is not the reason.

    replicas: of the members that answered.
    """
    damaged = [node for node in voters if node in replicas and replicas[node].is_damaged]
    if has_leader(replicas) or not damaged:
        return None
    absent = [node for node in voters if node not in replicas or replicas[node].has_stopped]
    absent = [node for node in absent if node not in damaged]
    needed = majority(len(voters))
    if len(voters) - len(damaged) - len(absent) >= needed:
        return None
    is_lasting = len(voters) - len(damaged) < needed
    if len(voters) == 1:
        what = f"{_names(damaged)} is its only member, nobody can refill it"
    elif is_lasting:
        what = f"no majority of whole members can refill {_names(damaged)}"
    else:
        what = f"waits for {_names(absent)}, since {_names(damaged)} must be refilled to vote"
    return Verdict(f"damaged: {what}", is_lasting)


def shortened(text: str, bytes_max: int) -> str:
    """Return a text that takes at most `bytes_max` bytes, cut between two characters."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) <= bytes_max:
        return text
    return raw[: bytes_max - len(ELLIPSIS)].decode("utf-8", "ignore") + ELLIPSIS


def _names(nodes: Sequence[NodeId]) -> str:
    named = ", ".join(shortened(node, NAME_BYTES_MAX) for node in nodes[:NAMES_MAX])
    left = len(nodes) - NAMES_MAX
    return f"{named} and {left} more" if left > 0 else named
