"""Which numbers a queue has of a publishing channel: duplicates, refusals, earlier lives."""

from __future__ import annotations

from brokerd.core.queue.enqueuers import REFUSED_RANGES_MAX, Channels, EnqueuerKey, Enqueuers

ONE = EnqueuerKey("n1", 7, 1)


def test_a_publishers_numbers_go_on_where_it_stopped() -> None:
    """R-QQ-8"""
    enqueuers = Enqueuers()
    assert enqueuers.known("n1", 7).expected(1) == 1
    channels = enqueuers.of("n1", 7)
    channels.seen(1, 5, 5)
    assert enqueuers.known("n1", 7) is enqueuers.of("n1", 7) is channels
    assert (channels.expected(1), channels.expected(2), len(enqueuers)) == (5, 1, 1)
    assert list(enqueuers.rows()) == [(ONE, 5, [])]
    channels.seen(1, 9, 7)
    assert list(enqueuers.rows()) == [(ONE, 9, [(7, 9)])]


def test_who_is_only_looked_for_is_not_there_afterwards() -> None:
    """Whether a replica was restored from a snapshot must not show in its rows."""
    enqueuers = Enqueuers()
    assert len(enqueuers.known("n1", 7)) == 0
    enqueuers.of("n2", 1).seen(1, 2, 2)
    enqueuers.of("n1", 7).seen(1, 2, 2)
    assert enqueuers.nodes() == {"n1", "n2"}
    assert [key.node for key, _, _ in enqueuers.rows()] == ["n2", "n1"]


def test_what_was_refused_is_refused_again_and_what_came_before_it_is_not() -> None:
    """R-QQ-8"""
    channels = Channels()
    assert channels.accepted_again(1, 3, 8) == 5
    channels.seen(1, 9, 6)
    assert channels.accepted_again(1, 1, 6) == 5
    assert channels.accepted_again(1, 1, 7) == 5
    assert channels.accepted_again(1, 4, 9) == 2
    assert channels.accepted_again(1, 6, 9) == 0
    assert channels.accepted_again(1, 1, 4) == 3


def test_refusals_are_remembered_in_bounded_room() -> None:
    channels = Channels()
    for number in range(REFUSED_RANGES_MAX):
        channels.seen(1, 10 * number + 5, 10 * number + 4)
    ((_, _, refused),) = channels.rows()
    assert refused[:2] == [(4, 5), (14, 15)]
    assert len(refused) == REFUSED_RANGES_MAX
    channels.seen(1, 10_005, 10_004)
    ((_, _, refused),) = channels.rows()
    assert refused[:2] == [(4, 15), (24, 25)]
    assert len(refused) == REFUSED_RANGES_MAX


def test_only_earlier_lives_of_the_same_node_are_forgotten() -> None:
    keys = [EnqueuerKey("n1", 6, 1), ONE, EnqueuerKey("n1", 8, 1), EnqueuerKey("n2", 3, 1)]
    enqueuers = Enqueuers()
    for key in keys:
        enqueuers.restore(key, 3, [(1, 2)])
    enqueuers.forget_earlier_incarnations("n1", 7)
    assert list(enqueuers.rows()) == [(key, 3, [(1, 2)]) for key in keys[1:]]
    enqueuers.forget(ONE)
    enqueuers.forget(ONE)
    assert enqueuers.nodes() == {"n1", "n2"}
    assert [key for key, _, _ in enqueuers.rows()] == keys[2:]
    enqueuers.clear()
    assert len(enqueuers) == 0


def test_refused_ranges_are_remembered_up_to_a_bound() -> None:
    known = Channels()
    for number in range(1, 4 * REFUSED_RANGES_MAX, 2):
        known.seen(1, number + 2, number + 1)
    (row,) = known.rows()
    assert len(row[2]) == REFUSED_RANGES_MAX
    assert row[2][0][0] == 2
