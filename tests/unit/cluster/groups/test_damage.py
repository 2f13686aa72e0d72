"""What is said of a group that has no leader since members are damaged."""

from __future__ import annotations

import pytest

from brokerd.cluster.groups.damage import ReplicaState, Verdict, has_leader, judge, shortened
from brokerd.raft.messages import NodeId

A, B, C, D, E, F = (NodeId(name) for name in "abcdef")
WHOLE = ReplicaState()
LEADER = ReplicaState(is_leader=True)
DAMAGED = ReplicaState(is_damaged=True)
STOPPED = ReplicaState(has_stopped=True)
#: Damaged, and stopped by what it met there.
BOTH = ReplicaState(is_damaged=True, has_stopped=True)


@pytest.mark.parametrize(
    "replicas",
    [
        # Nobody is damaged: a majority is missing, as in any other group.
        {A: WHOLE},
        {},
        # Somebody leads: it refills the others.
        {A: LEADER, B: DAMAGED, C: DAMAGED},
        # The whole ones are a majority: an election is on its way.
        {A: WHOLE, B: WHOLE, C: DAMAGED},
    ],
)
def test_damage_is_no_reason_where_others_can_vote(replicas: dict[NodeId, ReplicaState]) -> None:
    assert judge((A, B, C), replicas) is None


@pytest.mark.parametrize("absent", [{}, {C: STOPPED}])
def test_a_whole_member_that_is_down_or_stopped_is_waited_for(
    absent: dict[NodeId, ReplicaState],
) -> None:
    verdict = judge((A, B, C), {A: WHOLE, B: DAMAGED} | absent)
    reason = "damaged: waits for c, since b must be refilled to vote"
    assert verdict == Verdict(reason, is_lasting=False)


@pytest.mark.parametrize("damaged", [DAMAGED, BOTH])
@pytest.mark.parametrize("first", [{A: WHOLE}, {}])
def test_without_a_majority_of_whole_members_nothing_is_to_be_waited_for(
    first: dict[NodeId, ReplicaState], damaged: ReplicaState
) -> None:
    verdict = judge((A, B, C), first | {B: damaged, C: DAMAGED})
    assert verdict is not None
    assert verdict.is_lasting
    assert verdict.reason == "damaged: no majority of whole members can refill b, c"


def test_a_lone_member_and_one_of_two_are_no_majority_without_the_damaged_one() -> None:
    lone = judge((A,), {A: DAMAGED, B: WHOLE})
    assert lone == Verdict("damaged: a is its only member, nobody can refill it", is_lasting=True)
    pair = judge((A, B), {A: DAMAGED, B: WHOLE})
    assert pair == Verdict("damaged: no majority of whole members can refill a", is_lasting=True)


def test_others_that_are_no_voters_do_not_count() -> None:
    """A member that left, or learns, can be damaged as it likes."""
    assert judge((A, B, C), {A: WHOLE, D: DAMAGED}) is None


def test_a_reason_names_some_of_many_and_stays_short() -> None:
    """It goes into a reply text of 255 bytes, behind the queue's name."""
    nodes = [NodeId(letter * 200) for letter in "abcdefg"]
    verdict = judge(nodes, dict.fromkeys(nodes[:6], DAMAGED))
    assert verdict is not None
    assert "a..., " in verdict.reason
    assert "and 3 more" in verdict.reason
    assert len(verdict.reason.encode()) < 200


def test_a_text_is_cut_between_characters() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("ééé", 6) == "ééé"
    assert shortened("éééé", 6) == "é..."


def test_who_leads_is_seen() -> None:
    assert has_leader({A: WHOLE, B: LEADER})
    assert not has_leader({A: WHOLE, B: DAMAGED})
