"""The parts of the queue machine by their numbers: boundaries that no scenario stands on."""

from __future__ import annotations

from brokerd.core import effects
from brokerd.core.dead_letters import DeadLetters
from brokerd.core.delayed import Delayed
from brokerd.core.effects import Run
from brokerd.core.enqueuers import REFUSED_RANGES_MAX, EnqueuerKey, Enqueuers
from brokerd.core.queue_spans import Entry, Span, runs_of
from tests.unit.core.queue_driver import QueueDriver, dead, delivered, only

ONE = EnqueuerKey("n1", 7, 1)


def entry_of(*sizes: int, index: int = 4, first: int = 10) -> Entry:
    """Return an entry whose messages 10, 11, ... have these sizes."""
    columns = [size.to_bytes(4, "little") for size in sizes]
    return Entry(index, first, 1_000, len(sizes), [b"".join(columns)])


def span(first: int, end: int, size: int = 5, index: int = 4) -> Span:
    """Return messages of this size, all of one entry."""
    return Span(Entry.of_equal_sizes(index, 0, 1_000, 100, size), first, end)


# ---- publishers' sequence numbers ---------------------------------------------------------------


def test_a_publishers_numbers_go_on_where_it_stopped() -> None:
    """R-QQ-8"""
    enqueuers = Enqueuers()
    assert enqueuers.expected(ONE) == 1
    enqueuers.seen(ONE, 5, 5)
    assert (enqueuers.expected(ONE), len(enqueuers)) == (5, 1)
    assert list(enqueuers.rows()) == [(ONE, 5, [])]
    enqueuers.seen(ONE, 9, 7)
    assert list(enqueuers.rows()) == [(ONE, 9, [(7, 9)])]


def test_what_was_refused_is_refused_again_and_what_came_before_it_is_not() -> None:
    """R-QQ-8"""
    enqueuers = Enqueuers()
    assert enqueuers.accepted_again(ONE, 3, 8) == 5
    enqueuers.seen(ONE, 9, 6)
    assert enqueuers.accepted_again(ONE, 1, 6) == 5
    assert enqueuers.accepted_again(ONE, 1, 7) == 5
    assert enqueuers.accepted_again(ONE, 4, 9) == 2
    assert enqueuers.accepted_again(ONE, 6, 9) == 0
    assert enqueuers.accepted_again(ONE, 1, 4) == 3


def test_refusals_are_remembered_in_bounded_room() -> None:
    enqueuers = Enqueuers()
    for number in range(REFUSED_RANGES_MAX):
        enqueuers.seen(ONE, 10 * number + 5, 10 * number + 4)
    ((_, _, refused),) = enqueuers.rows()
    assert refused[:2] == [(4, 5), (14, 15)]
    assert len(refused) == REFUSED_RANGES_MAX
    enqueuers.seen(ONE, 10_005, 10_004)
    ((_, _, refused),) = enqueuers.rows()
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
    assert [key for key, _, _ in enqueuers.rows()] == keys[2:]
    enqueuers.clear()
    assert len(enqueuers) == 0


# ---- messages that wait -------------------------------------------------------------------------


def test_delayed_messages_come_when_they_are_due_in_order_of_return() -> None:
    delayed = Delayed()
    assert delayed.next_due_ms() is None
    for first, due_ms in ((1, 30), (4, 20), (6, 20), (8, 40)):
        delayed.add(span(first, first + 2), due_ms)
    assert (delayed.count, delayed.size_bytes, delayed.next_due_ms()) == (8, 40, 20)
    assert [(due_ms, s.first) for due_ms, s in delayed] == [(20, 4), (20, 6), (30, 1), (40, 8)]
    assert delayed.pop_due(19) == []
    assert [s.first for s in delayed.pop_due(20)] == [4, 6]
    assert (delayed.count, delayed.size_bytes, delayed.next_due_ms()) == (4, 20, 30)
    assert [s.first for s in delayed.clear()] == [1, 8]
    assert (delayed.count, delayed.size_bytes, delayed.next_due_ms()) == (0, 0, None)


def test_a_worker_gets_dead_letters_in_order_and_by_count() -> None:
    """R-ALO-1"""
    letters = DeadLetters()
    letters.add([span(1, 4), span(8, 10)], "rejected", 50)
    letters.add([span(20, 21)], "expired", 40)
    assert (letters.count, letters.size_bytes, letters.oldest_ms()) == (6, 30, 50)
    taken = letters.checkout(2, 1)
    assert [(x.first, x.end, x.reason, x.time_ms, x.order) for x in taken] == [
        (1, 3, "rejected", 50, 1)
    ]
    taken = letters.checkout(2, 1)
    assert [(x.first, x.end, x.order) for x in taken] == [(3, 4, 1), (8, 9, 2)]
    assert [(x.first, x.end, x.order) for x in letters.waiting] == [(9, 10, 2), (20, 21, 3)]
    assert letters.checkout(0, 1) == []
    assert (letters.count, letters.size_bytes) == (6, 30)
    assert [(x.first, x.end) for x in letters.held()] == [(1, 3), (3, 4), (8, 9)]
    assert letters.next_order == 4


def test_a_new_leaders_worker_gets_the_unsettled_again() -> None:
    """R-ALO-1; design/replication.md §2.9"""
    letters = DeadLetters()
    letters.add([span(1, 4), span(8, 10)], "rejected", 50)
    letters.checkout(4, 1)
    settled = letters.settle([(2, 3)])
    assert [(s.first, s.end) for s in settled] == [(2, 3)]
    assert (letters.count, letters.size_bytes) == (4, 20)
    again = letters.checkout(10, 2)
    assert [(x.first, x.end) for x in again] == [(1, 2), (3, 4), (8, 9), (9, 10)]
    assert letters.checkout(10, 2) == []
    # Whoever learned of it, a confirmed target is a confirmed target.
    letters.checkout(1, 3)
    settled = letters.settle([(1, 2), (9, 10), (50, 60)])
    assert sorted((s.first, s.end) for s in settled) == [(1, 2), (9, 10)]
    assert (letters.count, letters.size_bytes) == (2, 10)
    assert [(s.first, s.end) for s in letters.clear()] == [(3, 4), (8, 9)]
    assert (letters.count, letters.size_bytes, letters.oldest_ms()) == (0, 0, None)


def test_the_oldest_dead_letter_may_be_with_the_worker_or_wait() -> None:
    letters = DeadLetters()
    letters.add([span(1, 2)], "rejected", 50)
    letters.add([span(2, 3)], "rejected", 60)
    letters.checkout(1, 1)
    assert letters.oldest_ms() == 50
    letters.settle([(1, 2)])
    assert letters.oldest_ms() == 60


# ---- sizes --------------------------------------------------------------------------------------


def test_sizes_within_an_entry_are_exact() -> None:
    entry = entry_of(3, 1, 4, 1, 5)
    assert [entry.bytes_of(10, end) for end in range(10, 16)] == [0, 3, 4, 8, 9, 14]
    assert entry.bytes_of(12, 14) == 5
    assert [entry.fitting(11, 15, room) for room in (-1, 0, 1, 4, 5, 6, 10, 11, 99)] == [
        *(0, 0, 1, 1, 2, 3, 3, 4, 4)
    ]
    assert [entry.covering(11, 15, excess) for excess in (1, 2, 5, 6, 7, 11, 99)] == [
        *(1, 2, 2, 3, 4, 4, 4)
    ]


def test_sizes_of_equal_messages_are_exact() -> None:
    entry = Entry.of_equal_sizes(4, 10, 1_000, 5, 3)
    assert entry.bytes_of(11, 13) == 6
    assert [entry.fitting(11, 15, room) for room in (-1, 0, 2, 3, 5, 6, 99)] == [
        *(0, 0, 0, 1, 1, 2, 4)
    ]
    assert [entry.covering(11, 15, excess) for excess in (1, 3, 4, 99)] == [1, 1, 2, 4]
    empty = Entry.of_equal_sizes(4, 10, 1_000, 5, 0)
    assert (empty.fitting(11, 15, 0), empty.covering(11, 15, 7)) == (4, 4)


def test_neighbours_become_one_run_only_where_they_are_alike() -> None:
    entry = Entry.of_equal_sizes(4, 10, 1_000, 20, 3)
    spans = [
        Span(entry, 10, 12),
        Span(entry, 12, 14),
        Span(entry, 15, 16),
        Span(entry, 16, 17, acquired_count=1),
        Span(entry, 17, 18, acquired_count=1, delivery_count=1),
        Span(Entry.of_equal_sizes(5, 18, 1_000, 20, 3), 18, 19, acquired_count=1, delivery_count=1),
    ]
    assert runs_of(spans) == [
        Run(10, 4, 4, 0, 0, 0),
        Run(15, 1, 4, 5, 0, 0),
        Run(16, 1, 4, 6, 1, 0),
        Run(17, 1, 4, 7, 1, 1),
        Run(18, 1, 5, 0, 1, 1),
    ]


# ---- refusals -----------------------------------------------------------------------------------


def test_what_is_refused_for_a_dead_letter_exchange_says_where_it_is() -> None:
    """R-LEN-4: numbers that were never given, places in the entry that are real."""
    driver = QueueDriver(max_length=2, overflow="reject-publish-dlx", dead_letter_exchange="dlx")
    driver.fill(1)
    outcome = driver.fill(4)
    letter = only(outcome, effects.DeadLetter)
    assert letter.runs == [Run(2, 3, 2, 1, 0, 0)]
    assert (driver.count("refused"), driver.count("dl_out")) == (3, 3)


def test_what_is_refused_without_that_is_only_refused() -> None:
    """R-LEN-3: reject-publish tells the publisher and nobody else."""
    driver = QueueDriver(max_length=1, overflow="reject-publish", dead_letter_exchange="dlx")
    assert dead(driver.fill(3)) == []
    assert (driver.ready, driver.count("refused"), driver.count("dl_out")) == (1, 2, 0)
    plain = QueueDriver(max_length=1, overflow="reject-publish-dlx")
    assert dead(plain.fill(3)) == []
    assert plain.count("dl_out") == 0


def test_a_limit_lets_in_what_a_consumer_makes_room_for_in_one_batch() -> None:
    driver = QueueDriver(max_length=1, overflow="reject-publish")
    driver.consume("c", prefetch=2)
    outcome = driver.fill(5)
    assert delivered(outcome) == {"c": [0, 1]}
    assert (driver.ready, driver.unacked, driver.count("refused")) == (1, 2, 2)
