"""Dead letters that wait in their queue's state for the worker."""

from __future__ import annotations

from brokerd.core.queue import effects, queue_commands
from brokerd.core.queue.dead_letters import DeadLetters
from brokerd.core.queue.queue_spans import Entry, Span
from tests.unit.core.queue_driver import QueueDriver, content


def span(first: int, end: int, size: int = 5, index: int = 4) -> Span:
    """Return messages of this size, all of one entry."""
    return Span(Entry.of_equal_sizes(index, 0, 1_000, 100, size), first, end)


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


def test_letters_that_are_lost_in_the_same_command_wake_nobody() -> None:
    """R-ALO-9: a purge takes what expired with it."""
    q = QueueDriver(
        queue_type="quorum",
        at_least_once=True,
        dead_letter_exchange="dlx",
        overflow="reject-publish",
    )
    q.publish(content(b"x", ttl_ms=10))
    q.now_ms += 20
    assert q.send(queue_commands.encode_purge()).effects == [effects.Dropped("purge", 0, 1)]
    assert q.count("dl_lost") == 1


def test_settling_letters_that_nobody_has_changes_nothing() -> None:
    letters = DeadLetters()
    assert letters.settle([(3, 5)]) == []
    assert letters.held() == []
    q = QueueDriver(
        queue_type="quorum", at_least_once=True, dead_letter_exchange="d", overflow="reject-publish"
    )
    q.consume()
    q.fill(2)
    q.discard((0, 2))
    assert q.machine.letters.settle([(8, 9)]) == []
    q.reply(queue_commands.encode_dead_letters_checkout(1))
    assert [(held.first, held.end) for held in q.machine.query_letters_taken()] == [(0, 1)]
