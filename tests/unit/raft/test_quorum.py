"""What a majority of voters holds, and whether it elects."""

from __future__ import annotations

import pytest

from brokerd.raft import quorum
from brokerd.raft.messages import NodeId
from brokerd.raft.quorum import VoteResult

A, B, C, D = (NodeId(n) for n in "abcd")


@pytest.mark.parametrize(
    ("matches", "index"),
    [([], 0), ([7], 7), ([7, 5], 5), ([9, 5, 7], 7), ([9, 5, 7, 1], 5), ([1, 2, 3, 4, 5], 3)],
)
def test_committed_index_is_what_a_majority_holds(matches: list[int], index: int) -> None:
    assert quorum.committed_index(matches) == index


def test_election_is_won_or_lost_by_majority_of_voters_only() -> None:
    voters = (A, B, C)
    assert quorum.vote_result(voters, {A: True}) is VoteResult.PENDING
    assert quorum.vote_result(voters, {A: True, D: True}) is VoteResult.PENDING
    assert quorum.vote_result(voters, {A: True, B: True}) is VoteResult.WON
    assert quorum.vote_result(voters, {A: True, B: False, C: False}) is VoteResult.LOST
    assert quorum.vote_result((), {}) is VoteResult.LOST
