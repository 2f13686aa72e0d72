"""Found, join or go on: the decision of a starting node (G8: no vote of an emptied disk)."""

from __future__ import annotations

import itertools

import pytest

from brokerd.cluster.groups.formation import Answer, Course, Standing, course
from brokerd.raft.messages import NodeId

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")
FOUNDERS = (A, B, C)
EMPTY = Answer(Standing.UNFOUNDED)
WITH_DATA = Answer(Standing.UNFOUNDED, has_data=True)
UNSURE = Answer(Standing.UNKNOWN, has_data=True)
MEMBER = Answer(Standing.MEMBER, has_data=True)


def test_a_lone_node_founds_its_cluster_at_once() -> None:
    assert course(A, (A,), False, {}) is Course.FOUND


def test_founders_need_a_majority_of_empty_founders() -> None:
    assert course(A, FOUNDERS, False, {}) is Course.WAIT
    assert course(A, FOUNDERS, False, {B: EMPTY}) is Course.FOUND
    assert course(A, (A, B), False, {}) is Course.WAIT


@pytest.mark.parametrize("other", [WITH_DATA, UNSURE, Answer(Standing.UNKNOWN)])
def test_a_founder_whose_disk_is_empty_does_not_found_beside_one_that_has_data(
    other: Answer,
) -> None:
    assert course(A, FOUNDERS, False, {B: other}) is Course.WAIT


def test_one_founder_with_data_outweighs_a_majority_of_empty_ones() -> None:
    """Two of three disks are lost: what the third holds must not be overruled unasked."""
    assert course(A, FOUNDERS, False, {B: EMPTY, C: UNSURE}) is Course.WAIT


def test_a_node_that_is_no_founder_never_founds() -> None:
    answers = {A: EMPTY, B: EMPTY, C: EMPTY}
    assert course(D, FOUNDERS, False, answers) is Course.WAIT


def test_emptiness_of_nodes_that_are_no_founders_does_not_count() -> None:
    assert course(A, FOUNDERS, False, {D: EMPTY}) is Course.WAIT


def test_an_empty_disk_joins_the_cluster_that_is_there_without_a_vote() -> None:
    assert course(A, FOUNDERS, False, {B: MEMBER, C: EMPTY}) is Course.REFILL
    assert course(D, FOUNDERS, False, {B: MEMBER}) is Course.REFILL


def test_data_are_gone_on_with_whoever_answers_or_nobody() -> None:
    for answers in ({}, {B: UNSURE}, {B: EMPTY, C: EMPTY}, {B: MEMBER}):
        assert course(A, FOUNDERS, True, answers) is Course.CONTINUE


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (Standing.REMOVED, Course.REMOVED),
        (Standing.FOREIGN, Course.FOREIGN),
        (Standing.REFUSED, Course.REFUSED),
    ],
)
def test_what_a_majority_has_confirmed_outweighs_old_news(
    standing: Standing, expected: Course
) -> None:
    assert course(A, FOUNDERS, True, {B: MEMBER, C: Answer(standing)}) is expected


def test_while_a_majority_of_disks_survives_nobody_founds_a_second_cluster() -> None:
    """G1: of three founders of a cluster any minority may be empty, whoever can be asked."""
    for emptied in FOUNDERS:
        others = [node for node in FOUNDERS if node != emptied]
        for count in range(3):
            for asked in itertools.combinations(others, count):
                answers = dict.fromkeys(asked, UNSURE)
                assert course(emptied, FOUNDERS, False, answers) is not Course.FOUND
