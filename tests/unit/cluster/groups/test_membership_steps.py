"""The steps from the members that a group has to those that it is to have (R-QQ-23)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from brokerd.cluster.groups import membership_steps
from brokerd.cluster.groups.membership_steps import GroupView, Step, StepKind
from brokerd.raft import membership
from brokerd.raft.messages import Configuration, NodeId

A, B, C, D, E = (NodeId(name) for name in "abcde")
ALL = frozenset((A, B, C, D, E))


def view(
    members: str,
    wanted: str,
    voters: str,
    learners: str = "",
    alive: frozenset[NodeId] = ALL,
    match: dict[NodeId, int] | None = None,
    may_change: bool = True,
) -> GroupView:
    return GroupView(
        A,
        [NodeId(n) for n in members],
        [NodeId(n) for n in wanted],
        Configuration(tuple(NodeId(n) for n in voters), tuple(NodeId(n) for n in learners)),
        may_change,
        alive,
        configuration_index=90,
        last_index=100,
        match={} if match is None else match,
    )


def test_nothing_is_to_be_done_when_the_members_are_the_wanted_ones() -> None:
    assert membership_steps.next_step(view("abc", "cab", "abc")) == Step(StepKind.DONE)


def test_who_has_answered_nothing_does_not_vote() -> None:
    """A leader that has restarted does not know where the learner's entry is (seed 17000281)."""
    now = replace(view("ab", "ab", "a", "b"), configuration_index=0, last_index=9)
    wait = Step(StepKind.WAIT, B, "member 'b' is 9 entries behind")
    assert membership_steps.next_step(now) == wait
    assert membership_steps.next_step(replace(now, match={B: 2})) == Step(StepKind.PROMOTE, B)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (view("a", "ab", "a"), Step(StepKind.RECORD_ADD, B)),
        (view("ab", "ab", "a"), Step(StepKind.ADD_LEARNER, B)),
        (view("ab", "ab", "a", "b", match={B: 100}), Step(StepKind.PROMOTE, B)),
        (view("ab", "ab", "a", "b", match={B: 90}), Step(StepKind.PROMOTE, B)),
        (view("ab", "ab", "ab"), Step(StepKind.DONE)),
        (view("a", "ab", "ab"), Step(StepKind.RECORD_ADD, B)),
    ],
)
def test_way_of_a_new_member(now: GroupView, expected: Step) -> None:
    assert membership_steps.next_step(now) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (view("abc", "ab", "abc"), Step(StepKind.REMOVE, C)),
        (view("abc", "ab", "ab"), Step(StepKind.RECORD_REMOVE, C)),
        (view("abc", "ab", "ab", "c"), Step(StepKind.REMOVE, C)),
        (view("abc", "bc", "abc", match={B: 99, C: 100}), Step(StepKind.HAND_OVER, C)),
        (view("abcd", "bd", "abcd", match={B: 99, D: 98}), Step(StepKind.REMOVE, C)),
    ],
)
def test_way_of_a_member_that_leaves(now: GroupView, expected: Step) -> None:
    assert membership_steps.next_step(now) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # Whoever holds enough votes as soon as there is a place, in the order of the wanted ones.
        (view("abcd", "abcd", "ab", "cd", match={C: 100, D: 100}), Step(StepKind.PROMOTE, C)),
        (view("abcd", "abdc", "ab", "cd", match={C: 100, D: 100}), Step(StepKind.PROMOTE, D)),
        (view("abcd", "abcd", "abc", "d", match={D: 100}), Step(StepKind.DONE)),
        # One who comes learns, place or not.
        (view("abcd", "abcd", "abc"), Step(StepKind.ADD_LEARNER, D)),
        # One who leaves gives its place away first; then it goes.
        (view("abcd", "abd", "abc", "d", match={D: 100}), Step(StepKind.PROMOTE, D)),
        (view("abcd", "abd", "abcd"), Step(StepKind.REMOVE, C)),
        # More that vote already stay as they are.
        (view("abcd", "abcd", "abcd"), Step(StepKind.DONE)),
    ],
)
def test_so_many_vote_and_the_others_learn(now: GroupView, expected: Step) -> None:
    assert membership_steps.next_step(replace(now, voters_max=3)) == expected


def test_a_place_is_left_free_for_who_is_down_only_until_another_can_take_it() -> None:
    now = view("abcd", "abcd", "ab", "cd", alive=ALL - {C}, match={D: 100})
    assert membership_steps.next_step(replace(now, voters_max=3)) == Step(StepKind.PROMOTE, D)


@pytest.mark.parametrize("match", [{}, {B: 0}, {B: 89}])
def test_learner_votes_only_when_it_holds_what_was_committed_when_it_came(
    match: dict[NodeId, int],
) -> None:
    """A short queue is not caught up by having nothing (G1)."""
    step = membership_steps.next_step(view("ab", "ab", "a", "b", match=match))
    behind = 100 - match.get(B, 0)
    assert step == Step(StepKind.WAIT, B, f"member 'b' is {behind} entries behind")


def test_learner_that_is_far_behind_waits() -> None:
    now = GroupView(A, [A, B], [A, B], Configuration((A,), (B,)), True, ALL, 5, 1000, {B: 935})
    assert membership_steps.next_step(now).kind is StepKind.WAIT
    now = GroupView(A, [A, B], [A, B], Configuration((A,), (B,)), True, ALL, 5, 1000, {B: 936})
    assert membership_steps.next_step(now) == Step(StepKind.PROMOTE, B)


def test_second_change_waits_for_the_first() -> None:
    step = membership_steps.next_step(view("ab", "abc", "ab", may_change=False))
    assert step == Step(StepKind.WAIT, reason="the last change is being committed")


def test_new_members_come_before_old_ones_leave() -> None:
    assert membership_steps.next_step(view("abc", "abd", "abc")).kind is StepKind.RECORD_ADD
    step = membership_steps.next_step(view("abcd", "abd", "abc", "d"))
    assert (step.kind, step.node) == (StepKind.WAIT, D)


def test_new_member_that_is_down_does_not_keep_others_from_coming_and_going() -> None:
    alive = ALL - {D}
    assert membership_steps.next_step(view("abc", "abde", "abc", alive=alive)) == Step(
        StepKind.RECORD_ADD, E
    )
    assert membership_steps.next_step(view("abc", "abd", "abc", alive=alive)) == Step(
        StepKind.REMOVE, C
    )
    step = membership_steps.next_step(view("ab", "abd", "ab", alive=alive))
    assert step == Step(StepKind.WAIT, D, "member 'd' is down")


def test_member_that_is_down_leaves_first() -> None:
    """That is what shrink is for: of a, b and c with c down, b could not leave before c."""
    alive = ALL - {C}
    assert membership_steps.next_step(view("abc", "a", "abc", alive=alive)) == Step(
        StepKind.REMOVE, C
    )
    assert membership_steps.next_step(view("abc", "a", "ab", alive=alive)) == Step(
        StepKind.REMOVE, B
    )


def test_nobody_leaves_who_takes_the_majority_along() -> None:
    """R-QQ-6."""
    step = membership_steps.next_step(view("abc", "ac", "abc", alive=ALL - {C}))
    text = "the other members would have no majority: 1 of 2 are up"
    assert step == Step(StepKind.WAIT, B, text)


def test_last_voter_stays() -> None:
    step = membership_steps.next_step(view("a", "b", "a", alive=ALL - {B}))
    assert step == Step(StepKind.WAIT, B, "member 'b' is down")
    assert membership_steps.fault_of_removal([], ALL) == "it is the last member of the group"


def test_leader_hands_over_to_a_member_that_stays() -> None:
    step = membership_steps.next_step(
        view("abc", "b", "abc", alive=ALL - {C}, match={B: 50, C: 100})
    )
    assert step == Step(StepKind.REMOVE, C)
    step = membership_steps.next_step(view("ab", "b", "ab", match={B: 50}))
    assert step == Step(StepKind.HAND_OVER, B)


def test_configurations_change_by_one_member_at_a_time() -> None:
    """Raft thesis §4.1: every step is one that the raft room takes."""
    now = Configuration((A, B), (D,))
    for kind, node, expected in (
        (StepKind.ADD_LEARNER, C, Configuration((A, B), (C, D))),
        (StepKind.PROMOTE, D, Configuration((A, B, D))),
        (StepKind.REMOVE, D, Configuration((A, B))),
        (StepKind.REMOVE, A, Configuration((B,), (D,))),
    ):
        after = membership_steps.changed(now, Step(kind, node))
        assert after == expected
        assert membership.fault_of_change(now, after) is None


def test_any_way_ends_at_the_wanted_members() -> None:
    """Random wishes, members that come and go; a majority of the group is up when nothing moves."""
    rng = random.Random(5)
    for _ in range(300):
        nodes = sorted(ALL)
        members = rng.sample(nodes, rng.randint(1, 5))
        configuration = Configuration(tuple(sorted(members)))
        wanted = rng.sample(nodes, rng.randint(1, 5))
        leader = members[0]
        for _ in range(60):
            now = GroupView(
                leader, members, wanted, configuration, True, ALL, 1, 9, dict.fromkeys(nodes, 9)
            )
            step = membership_steps.next_step(now)
            assert step.kind is not StepKind.WAIT
            if step.kind is StepKind.DONE:
                break
            if step.kind is StepKind.RECORD_ADD:
                members = [*members, step.node]
            elif step.kind is StepKind.RECORD_REMOVE:
                members = [node for node in members if node != step.node]
                assert step.node not in configuration.voters
            elif step.kind is StepKind.HAND_OVER:
                leader = step.node
            else:
                after = membership_steps.changed(configuration, step)
                assert membership.fault_of_change(configuration, after) is None
                configuration = after
            assert leader in configuration.voters
        assert set(configuration.voters) == set(members) == set(wanted)
        assert configuration.learners == ()
