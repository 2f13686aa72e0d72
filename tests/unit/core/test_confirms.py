"""Publisher confirms of a channel (R-PC)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.confirms import Confirms, SequenceConfirms


def routed(*runs: tuple[int, int]) -> Confirms:
    """Publish runs of (count, targets)."""
    confirms = Confirms()
    for count, targets in runs:
        confirms.expect(confirms.published(count), count, targets)
    return confirms


def test_sequence_numbers_start_at_1_and_unrouted_publishes_are_acked() -> None:
    """R-PC-1, R-PC-4"""
    confirms = Confirms()
    assert confirms.published(3) == 1
    assert confirms.published() == 4
    assert confirms.take() == ([], [])
    confirms.expect(1, 3, 0)
    assert confirms.take() == ([(3, True)], [])
    confirms.expect(4, 1, 0)
    assert confirms.take() == ([(4, False)], [])
    assert confirms.outstanding == 0


def test_a_publish_is_acked_when_all_its_queues_have_it() -> None:
    """R-PC-2"""
    confirms = routed((10, 2))
    confirms.confirmed(1, 10)
    assert confirms.take() == ([], [])
    confirms.confirmed(1, 4)
    assert confirms.take() == ([(4, True)], [])
    confirms.confirmed(5, 6)
    assert confirms.take() == ([(10, True)], [])


def test_one_refusing_queue_nacks_once_whatever_the_others_say() -> None:
    """R-PC-3"""
    confirms = routed((4, 2))
    confirms.answered(1, 4, 2)
    assert confirms.take() == ([], [3, 4])
    confirms.confirmed(1, 4)
    assert confirms.take() == ([(2, True)], [])
    assert confirms.outstanding == 0


def test_acks_above_an_open_or_nacked_number_go_one_by_one() -> None:
    """R-PC-8"""
    confirms = routed((3, 1), (3, 1), (3, 1))
    confirms.confirmed(1, 3)
    confirms.confirmed(7, 3)
    assert confirms.take() == ([(3, True), (7, False), (8, False), (9, False)], [])
    confirms.answered(4, 3, 1)
    assert confirms.take() == ([(4, False)], [5, 6])


def test_an_ack_with_multiple_never_reaches_a_nack_of_the_same_time() -> None:
    """R-PC-8"""
    confirms = routed((6, 1))
    confirms.answered(1, 3, 2)
    confirms.confirmed(4, 3)
    assert confirms.take() == ([(2, True), (4, False), (5, False), (6, False)], [3])


def test_a_publish_that_is_not_routed_yet_holds_back_multiple() -> None:
    confirms = Confirms()
    confirms.published(2)
    confirms.expect(confirms.published(2), 2, 0)
    assert confirms.take() == ([(3, False), (4, False)], [])


@given(
    runs=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=6),
    data=st.data(),
)
def test_every_publish_is_answered_exactly_once(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    confirms = Confirms()
    answers: list[tuple[int, int, int]] = []
    refused: set[int] = set()
    for count, targets in runs:
        first = confirms.published(count)
        confirms.expect(first, count, targets)
        for _ in range(targets):
            accepted = data.draw(st.sampled_from([count, count, data.draw(st.integers(0, count))]))
            answers.append((first, count, accepted))
            refused |= set(range(first + accepted, first + count))
    acked: set[int] = set()
    nacked: set[int] = set()

    def collect() -> None:
        acks, nacks = confirms.take()
        for tag in nacks:
            assert tag not in nacked | acked
            nacked.add(tag)
        for tag, multiple in acks:
            low = 1 if multiple else tag
            new = set(range(low, tag + 1)) - acked - nacked
            assert new
            assert not new & refused
            acked.update(new)

    for answer in data.draw(st.permutations(answers)):
        confirms.answered(*answer)
        if data.draw(st.booleans()):
            collect()
    collect()
    assert nacked == refused
    assert acked | nacked == set(range(1, confirms.next_sequence))
    assert confirms.outstanding == 0


@pytest.mark.parametrize(
    ("accepted", "acks", "nacks"),
    [(0, [], [1, 2, 3]), (2, [(2, True)], [3]), (3, [(3, True)], [])],
)
def test_a_queue_may_take_over_the_first_of_a_run_and_refuse_the_rest(
    accepted: int, acks: list[tuple[int, bool]], nacks: list[int]
) -> None:
    """R-PC-3: as a full queue does with overflow reject-publish."""
    confirms = Confirms()
    confirms.expect(confirms.published(3), 3, 1)
    confirms.answered(1, 3, accepted)
    assert confirms.take() == (acks, nacks)


def test_confirms_of_nothing_are_none() -> None:
    tracker = Confirms()
    assert tracker.published(0) == 1
    assert (tracker.outstanding, bool(tracker)) == (0, False)
    tracker.expect(tracker.published(), 1, 0)
    assert bool(tracker)


def test_numbers_that_the_client_chooses_rise_and_may_leave_gaps() -> None:
    confirms = SequenceConfirms()
    assert not confirms.number(0)
    assert confirms.number(1)
    assert confirms.number(2)
    assert not confirms.has_gaps
    assert not confirms.number(2)
    assert confirms.number(7)
    assert confirms.has_gaps
    assert (confirms.next_sequence, confirms.outstanding) == (8, 3)
    confirms.expect(1, 2, 0)
    confirms.expect(7, 1, 1)
    confirms.rejected(7, 1)
    assert confirms.due_ranges() == ([(1, 3)], [(7, 8)])


def test_what_was_withdrawn_has_no_answer_until_it_is_numbered_again() -> None:
    confirms = SequenceConfirms()
    confirms.number(4, 3)
    confirms.withdraw(5, 1)
    confirms.expect(4, 3, 0)
    assert confirms.due_ranges() == ([(4, 5), (6, 7)], [])
    confirms.take()
    assert (confirms.outstanding, confirms.number(5)) == (0, False)
    confirms.again(5, 1)
    confirms.expect(5, 1, 1)
    confirms.confirmed(5, 1)
    assert confirms.due_ranges() == ([(5, 6)], [])
