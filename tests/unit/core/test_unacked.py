"""Delivery tags of a channel (R-ACK)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.unacked import Unacked, UnknownDeliveryTag


def filled(*runs: tuple[str, int, int]) -> Unacked[str]:
    tracker: Unacked[str] = Unacked()
    for consumer, number, count in runs:
        tracker.delivered(consumer, number, count)
    return tracker


def test_tags_start_at_1_and_no_ack_deliveries_use_them_up() -> None:
    """R-ACK-1"""
    tracker: Unacked[str] = Unacked()
    assert tracker.delivered("a", 100, 3) == 1
    assert tracker.delivered("b", 0, 2, no_ack=True) == 4
    assert tracker.delivered("a", 103, 1) == 6
    assert len(tracker) == 4
    with pytest.raises(UnknownDeliveryTag):
        tracker.ack(4, False)


def test_a_single_ack_names_an_outstanding_tag_once() -> None:
    """R-ACK-2"""
    tracker = filled(("a", 100, 3))
    assert tracker.ack(2, False) == {"a": [(101, 102)]}
    with pytest.raises(UnknownDeliveryTag, match="unknown delivery tag 2"):
        tracker.ack(2, False)
    for tag in (0, 4):
        with pytest.raises(UnknownDeliveryTag):
            tracker.ack(tag, False)
    assert tracker.outstanding("a") == 2


def test_multiple_settles_up_to_a_tag_that_must_be_outstanding() -> None:
    """R-ACK-3"""
    tracker = filled(("a", 100, 2), ("b", 7, 2), ("a", 102, 1))
    assert tracker.ack(4, True) == {"a": [(100, 102)], "b": [(7, 9)]}
    for tag in (3, 6):
        with pytest.raises(UnknownDeliveryTag):
            tracker.ack(tag, True)
    assert tracker.ack(0, True) == {"a": [(102, 103)]}
    assert tracker.ack(0, True) == {}


def test_bulk_acks_join_what_is_in_order() -> None:
    tracker = filled(("a", 100, 5), ("b", 0, 3), ("a", 105, 2))
    ranges, error = tracker.acks([(1, False), (2, False), (3, False), (7, False), (6, False)])
    assert error is None
    assert ranges == {"a": [(100, 103)], "b": [(1, 2), (0, 1)]}
    assert tracker.acks([(5, True), (0, True)]) == ({"a": [(103, 107)], "b": [(2, 3)]}, None)


def test_bulk_acks_stop_at_the_first_unknown_tag_and_keep_what_stands_before() -> None:
    """R-ACK-11: the others of the channel are requeued, not settled."""
    tracker = filled(("a", 100, 6))
    tracker.ack(3, False)
    ranges, error = tracker.acks([(1, False), (2, False), (3, False), (4, False)])
    assert ranges == {"a": [(100, 102)]}
    assert error is not None
    assert error.tag == 3
    assert tracker.take_all() == {"a": [(103, 106)]}


def test_tags_of_a_deleted_queue_are_acked_to_no_effect() -> None:
    """R-ACK-10, R-Q-12"""
    tracker = filled(("gone", 0, 2), ("a", 0, 1))
    tracker.silence("gone")
    assert tracker.ack(3, True) == {"a": [(0, 1)]}
    with pytest.raises(UnknownDeliveryTag):
        tracker.ack(1, False)


def test_rollback_makes_the_same_tags_outstanding_again() -> None:
    """R-TX-4"""
    tracker = filled(("a", 100, 5))
    taken = tracker.take(3, True)
    assert tracker.outstanding("a") == 2
    tracker.put_back(taken)
    tracker.check()
    assert tracker.ack(0, True) == {"a": [(100, 105)]}


def test_recover_and_drop_and_resume_lists() -> None:
    """R-ACK-7"""
    tracker = filled(("a", 5, 2), ("b", 0, 2), ("a", 1, 2))
    assert tracker.numbers_of("a") == [(1, 3), (5, 7)]
    assert tracker.drop("b") == 2
    assert tracker.take_all() == {"a": [(5, 7), (1, 3)]}
    assert len(tracker) == 0


@given(
    runs=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5)), max_size=8),
    acks=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=12),
)
def test_bulk_acks_settle_what_single_ones_do(
    runs: list[tuple[str, int]], acks: list[tuple[int, bool]]
) -> None:
    bulk: Unacked[str] = Unacked()
    model: dict[int, tuple[str, int]] = {}
    numbers = {"a": 0, "b": 50}
    for consumer, count in runs:
        tag = bulk.delivered(consumer, numbers[consumer], count)
        for i in range(count):
            model[tag + i] = (consumer, numbers[consumer] + i)
        numbers[consumer] += count
    settled: list[tuple[str, int]] = []
    bad: int | None = None
    for tag, multiple in acks:
        if tag == 0 and multiple:
            chosen = sorted(model)
        elif tag not in model:
            bad = tag
            break
        else:
            chosen = [t for t in sorted(model) if t <= tag] if multiple else [tag]
        settled += [model.pop(t) for t in chosen]
    ranges, error = bulk.acks(acks)
    bulk.check()
    assert (error.tag if error else None) == bad
    found = [(c, n) for c, pairs in ranges.items() for low, high in pairs for n in range(low, high)]
    assert sorted(found) == sorted(settled)
    assert len(bulk) == len(model)


def test_what_is_put_back_before_its_neighbour_keeps_its_numbers() -> None:
    """R-TX-4: a rollback makes the same tags stand for the same messages."""
    unacked: Unacked[str] = Unacked()
    for number in (11, 12, 13):
        unacked.delivered("c", number, 1)
    assert unacked.oldest_tag() == 1
    unacked.put_back(unacked.take(2, True))
    unacked.check()
    assert unacked.ack(1, False) == {"c": [(11, 12)]}
    assert unacked.oldest_tag() == 2
    assert unacked.ack(0, True) == {"c": [(12, 14)]}
    assert unacked.oldest_tag() is None


def test_bulk_acks_with_a_hole_in_a_run_settle_what_stands_before_it() -> None:
    """R-ACK-2: the tag in the middle was acked before; those behind it stay outstanding."""
    tracker = filled(("a", 100, 5))
    tracker.ack(3, False)
    ranges, error = tracker.acks([(1, False), (2, False), (3, False), (4, False)])
    assert isinstance(error, UnknownDeliveryTag)
    assert ranges == {"a": [(100, 102)]}
    assert tracker.outstanding("a") == 2
    assert tracker.ack(4, False) == {"a": [(103, 104)]}


def test_bulk_acks_may_end_with_a_tag_that_was_never_given() -> None:
    """R-ACK-2"""
    tracker = filled(("a", 100, 2))
    ranges, error = tracker.acks([(1, False), (2, False), (3, False)])
    assert (ranges, str(error)) == ({"a": [(100, 102)]}, "unknown delivery tag 3")
    assert len(tracker) == 0


def test_silencing_a_consumer_that_holds_nothing_is_no_error() -> None:
    """R-ACK-10"""
    tracker: Unacked[str] = Unacked()
    tracker.silence("gone")
    tracker.delivered("c", 0, 1)
    assert tracker.ack(1, False) == {"c": [(0, 1)]}


def test_what_is_held_below_a_tag_is_told_by_consumer() -> None:
    """ADR 69: a tag within a run cuts it; nothing changes."""
    tracker = filled(("a", 100, 3), ("b", 7, 2), ("a", 103, 2))
    tracker.ack(2, False)
    assert tracker.numbers_below(1) == {}
    assert tracker.numbers_below(5) == {"a": [(100, 101), (102, 103)], "b": [(7, 8)]}
    assert tracker.numbers_below(8) == {"a": [(100, 101), (102, 105)], "b": [(7, 9)]}
    assert len(tracker) == 6
