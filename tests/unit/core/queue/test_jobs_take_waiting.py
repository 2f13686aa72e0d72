"""A job on messages that wait until they are due: what it takes, and how that comes back."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.queue import queue_commands
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue.test_queue_jobs import end, handed_out, restored, settle, start, take
from tests.unit.core.queue_driver import QueueDriver, consumer, content

DELAYING: dict[str, Any] = {
    "queue_type": "quorum",
    "dead_letter_exchange": "d",
    "at_least_once": True,
    "holds_delayed": True,
}
RETRYING: dict[str, Any] = {
    "queue_type": "quorum",
    "delayed_retry": "all",
    "delayed_retry_min_ms": 100,
    "delayed_retry_max_ms": 100,
}


def waiting(q: QueueDriver) -> list[tuple[int, int]]:
    """Return in how many ms each message is due, and its number."""
    return [
        (due_ms - q.now_ms, number)
        for due_ms, span in q.machine.delayed.in_order()
        for number in range(span.first, span.end)
    ]


def letters(q: QueueDriver) -> list[int]:
    q.send(queue_commands.encode_dead_letters_checkout(100_000))
    held = q.machine.query_letters_taken()
    return [number for letter in held for number in range(letter.first, letter.end)]


def test_what_waits_is_taken_by_number_and_what_was_sent_is_gone() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=100 - 10 * number) for number in range(5)])
    start(q)
    assert take(q, (0, 9)) == []
    assert take(q, (1, 2), (3, 9), waiting=True) == [[1, 2], [3, 5]]
    view = q.machine.overview()
    assert (view["delayed"], view["held_by_job"]) == (2, 3)
    restored(q)
    settle(q, [(1, 2), (4, 5)])
    assert (q.count("job_out"), waiting(q)) == (2, [(80, 2), (100, 0)])
    settle(q, [], [(3, 4)])
    assert waiting(q) == [(70, 3), (80, 2), (100, 0)]
    assert take(q, (0, 9), waiting=True) == [[0, 1], [2, 4]]
    end(q)
    assert waiting(q) == [(70, 3), (80, 2), (100, 0)]
    q.now_ms += 100
    assert letters(q) == [3, 2, 0]


def test_a_part_of_what_is_due_together_is_taken() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=50)] * 6)
    start(q)
    assert take(q, (1, 3), (4, 5), waiting=True) == [[1, 3], [4, 5]]
    assert [number for _, number in waiting(q)] == [0, 3, 5]
    restored(q)
    settle(q, [], [(2, 3), (4, 5)])
    assert [number for _, number in waiting(q)] == [0, 2, 3, 4, 5]
    settle(q, [(1, 2)])
    q.now_ms += 50
    assert letters(q) == [0, 2, 3, 4, 5]


def test_what_became_due_meanwhile_goes_when_it_comes_back() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=delay) for delay in (10, 20, 30)])
    start(q)
    take(q, (0, 3), waiting=True)
    q.now_ms += 25
    q.tick()
    assert letters(q) == []
    settle(q, [], [(0, 3)])
    assert letters(q) == [0, 1]
    assert waiting(q) == [(5, 2)]


def test_returned_messages_that_wait_are_taken_and_wait_on() -> None:
    """R-QQ-24"""
    q = QueueDriver(**RETRYING)
    q.fill(4)
    q.consume(prefetch=3)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 3), cause=ReturnCause.REJECT)
    start(q)
    # One is ready, the others wait.
    assert take(q, (0, 9)) == [[3, 4]]
    assert take(q, (1, 9), waiting=True) == [[1, 3]]
    settle(q, [(1, 2)], [(2, 4)])
    restored(q)
    assert waiting(q) == [(100, 0), (100, 2)]
    take(q, (2, 3), waiting=True)
    q.tick(100)
    assert (q.ready, q.unacked) == (2, 1)
    end(q)
    assert sorted(handed_out(q)) == [0, 2, 3]


def test_ready_and_waiting_neighbours_in_hand_come_back_each_to_where_it_was() -> None:
    q = QueueDriver(**RETRYING)
    q.fill(6)
    q.consume(prefetch=3)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((1, 2), cause=ReturnCause.REJECT)
    q.settle((0, 1), (2, 3))
    start(q)
    take(q, (1, 2), waiting=True)
    take(q, (3, 6))
    settle(q, [], [(1, 6)])
    assert (waiting(q), q.ready) == ([(100, 1)], 3)


@pytest.mark.parametrize("cancels", [False, True])
def test_what_another_message_has_replaced_meanwhile_goes_away(cancels: bool) -> None:
    q = QueueDriver(**DELAYING)
    q.publish(content(delay_ms=100, delay_key="a"), content(delay_ms=90, delay_key="b"))
    start(q)
    take(q, (0, 2), waiting=True)
    restored(q)
    q.publish(content(delay_key="a") if cancels else content(delay_ms=70, delay_key="a"))
    assert q.count("purged") == cancels
    restored(q)
    settle(q, [], [(0, 2)])
    assert q.count("purged") == 1 + cancels
    assert waiting(q) == ([(90, 1)] if cancels else [(70, 2), (90, 1)])
    end(q)
    # Its key is its own again.
    q.publish(content(delay_key="b"))
    assert waiting(q) == ([] if cancels else [(70, 2)])


def test_a_key_of_what_was_sent_on_names_nothing() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(content(delay_ms=100, delay_key="a"))
    start(q)
    take(q, (0, 1), waiting=True)
    settle(q, [(0, 1)])
    q.publish(content(delay_ms=50, delay_key="a"))
    assert waiting(q) == [(50, 1)]
    assert (q.count("job_out"), q.count("purged")) == (1, 0)


def test_replaced_ones_that_were_sent_on_count_as_sent() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(content(delay_ms=100, delay_key="a"), content(delay_ms=100, delay_key="b"))
    start(q)
    take(q, (0, 2), waiting=True)
    q.publish(content(delay_key="a"), content(delay_key="b"))
    settle(q, [(0, 2)])
    assert (q.count("job_out"), q.count("purged")) == (2, 2)


def test_a_key_that_two_in_hand_had_is_the_newer_ones() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(content(delay_ms=100, delay_key="a"))
    start(q)
    take(q, (0, 1), waiting=True)
    q.publish(content(delay_ms=50, delay_key="a"))
    end(q)
    assert waiting(q) == [(50, 1)]
    start(q)
    take(q, (0, 9), job=2, waiting=True)
    q.publish(content(delay_ms=40, delay_key="a"))
    take(q, (0, 9), job=2, waiting=True)
    end(q, 2)
    assert waiting(q) == [(40, 2)]


def test_what_came_after_its_start_is_not_the_jobs() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=50)] * 2)
    start(q)
    q.publish(*[content(delay_ms=50)] * 2)
    assert take(q, (0, 9), waiting=True) == [[0, 2]]


def test_what_was_taken_of_replaced_ones_is_not_found_again() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=50 + n, delay_key=f"k{n}") for n in range(6)])
    q.publish(content(delay_key="k3"))
    start(q)
    assert take(q, (2, 5), waiting=True) == [[2, 3], [4, 5]]
    settle(q, [], [(2, 3), (4, 5)])
    assert [number for _, number in waiting(q)] == [0, 1, 2, 4, 5]


def test_a_purge_leaves_what_the_job_holds() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=50)] * 3)
    start(q)
    take(q, (1, 2), waiting=True)
    assert q.reply(queue_commands.encode_purge())["messages"] == 2
    end(q)
    assert waiting(q) == [(50, 1)]


def test_the_end_of_the_queue_ends_what_the_job_holds() -> None:
    q = QueueDriver(**DELAYING)
    q.publish(*[content(delay_ms=50)] * 3)
    start(q)
    take(q, (1, 2), waiting=True)
    q.send(queue_commands.encode_delete(False, False, "client"))
    assert (q.count("orphaned"), q.count("purged")) == (1, 2)
    assert take(q, (0, 3), waiting=True) == []


def test_what_is_in_hand_counts_against_the_length_limit() -> None:
    q = QueueDriver(**RETRYING, max_length=4, overflow="reject-publish")
    q.fill(3)
    q.consume(prefetch=3)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 3), cause=ReturnCause.REJECT)
    start(q)
    take(q, (0, 2), waiting=True)
    # One to the limit, and one that steps over it.
    assert q.accepted(*[b"x"] * 4) == 2
    settle(q, [(0, 2)])
    assert q.accepted(*[b"x"] * 4) == 2


def test_a_snapshot_of_before_jobs_took_what_waits_is_read() -> None:
    q = QueueDriver(**RETRYING)
    q.fill(2)
    start(q)
    take(q, (0, 1))
    data = q.machine.snapshot()
    text = data[5 : 5 + int.from_bytes(data[1:5], "little")]
    old_text = text.replace(b'"waits":[],', b"")
    assert old_text != text
    old = data[:1] + len(old_text).to_bytes(4, "little") + old_text + data[5 + len(text) :]
    machine = QueueMachine(QueueOptions())
    machine.restore(old)
    machine.check_invariants()
    assert machine.snapshot() == data
