"""Counting votes and copies.  Pure functions over small collections; no state, no Raft roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from brokerd.raft.messages import NodeId


class VoteResult(IntEnum):
    """How an election stands."""

    PENDING = 0
    WON = 1
    LOST = 2


def majority(voter_count: int) -> int:
    """Return how many of `voter_count` voters make a majority."""
    return voter_count // 2 + 1


def committed_index(matches: Sequence[int]) -> int:
    """Return the highest index that a majority holds, given what each voter holds (Raft thesis
    §3.5).
    """
    if not matches:
        return 0
    return sorted(matches)[-majority(len(matches))]


def vote_result(voters: Sequence[NodeId], votes: Mapping[NodeId, bool]) -> VoteResult:
    """Return the state of an election; only voters' votes count."""
    needed = majority(len(voters))
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    if voters and granted >= needed:
        return VoteResult.WON
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if len(voters) - refused < needed:
        return VoteResult.LOST
    return VoteResult.PENDING
