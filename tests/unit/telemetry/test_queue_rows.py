"""Rows of led queues: cumulative counters for the job, deltas that never claim others' past."""

from __future__ import annotations

from typing import Any

from brokerd.telemetry.queue_rows import HEARTBEAT_US, QueueRows
from tests.telemetry.fleet import GroupState, Queue


def say(rows: QueueRows, queue: Queue, term: int = 1, now_us: int = 10) -> list[dict[str, Any]]:
    status = GroupState(term, {"a": 0})
    return rows.rows(queue, queue.overview(now_us), queue.options(), status, 0, now_us)


def test_a_queue_that_was_born_since_the_start_is_told_from_birth() -> None:
    rows, queue = QueueRows(), Queue(1, "q")
    rows.known([99])
    queue.counters["enq"] = 5
    (row,) = say(rows, queue)
    assert row["enq"] == row["c_enq"] == 5


def test_the_past_of_a_queue_that_was_there_before_is_not_claimed() -> None:
    rows, queue = QueueRows(), Queue(1, "q")
    rows.known([1])
    queue.counters["enq"] = 5
    (row,) = say(rows, queue)
    assert ("enq" in row, row["c_enq"]) == (False, 5)
    queue.counters["enq"] = 7
    (row,) = say(rows, queue)
    assert (row["enq"], row["c_enq"]) == (2, 7)


def test_a_new_term_does_not_repeat_what_another_leader_told() -> None:
    rows, queue = QueueRows(), Queue(1, "q")
    say(rows, queue, term=1)
    queue.counters["enq"] = 50
    (row,) = say(rows, queue, term=3)
    assert ("enq" in row, row["c_enq"], row["term"]) == (False, 50, 3)


def test_a_queue_that_changed_nothing_is_silent_until_its_heartbeat() -> None:
    rows, queue = QueueRows(), Queue(1, "q")
    queue.ready = 4
    assert len(say(rows, queue, now_us=1_000_000)) == 1
    # Its oldest message grows older, which is no change (design/telemetry.md §13.8).
    assert say(rows, queue, now_us=2_000_000) == []
    (row,) = say(rows, queue, now_us=1_000_000 + HEARTBEAT_US)
    assert row["hb"] is True
    queue.unacked = 1
    assert len(say(rows, queue, now_us=1_000_001 + HEARTBEAT_US)) == 1


def end(rows: QueueRows, queue: Queue, is_expired: bool, messages: int) -> dict[str, Any]:
    status, overview = GroupState(1, {"a": 0}), queue.overview(20)
    return rows.last_row(queue, overview, queue.options(), status, 10, 20, is_expired, messages)


def test_the_last_row_of_a_queue_says_what_went_with_it() -> None:
    """Of one that was never told of as well: it lived for less than an interval."""
    rows, known, brief = QueueRows(), Queue(1, "q"), Queue(2, "r")
    known.counters["enq"] = known.ready = 70
    say(rows, known)
    known.unacked, known.ready = 30, 40
    row = end(rows, known, is_expired=False, messages=70)
    assert (row["deleted"], row["purged"], row["orphaned"]) == (70, 40, 30)
    assert (row["ready"], row["unacked"], row["c_enq"]) == (0, 0, 70)
    brief.counters["enq"], brief.counters["purged"] = 12, 12
    row = end(rows, brief, is_expired=True, messages=12)
    assert (row["expired_queue"], row["enq"], row["purged"], row["ready"]) == (12, 12, 12, 0)
    empty = Queue(3, "s")
    say(rows, empty)
    assert end(rows, empty, is_expired=False, messages=0)["deleted"] == 0


def test_letters_that_went_with_a_vhost_are_lost_letters() -> None:
    """The queue's machine counts them where the queue itself is deleted."""
    rows, queue = QueueRows(), Queue(1, "q", at_least_once=True)
    queue.counters["dl_out"] = queue.pending = 5
    row = end(rows, queue, is_expired=False, messages=0)
    assert (row["c_dl_out"], row["c_dl_lost"], row.get("dl_pending", 0)) == (5, 5, 0)


def test_queues_that_were_silent_for_long_are_due() -> None:
    rows, queues = QueueRows(), [Queue(uid, f"q{uid}") for uid in (1, 2, 3)]
    for now_us, queue in enumerate(queues):
        say(rows, queue, now_us=now_us)
    assert rows.due(HEARTBEAT_US - 1) == []
    # What it says is heard whether it is due or not.
    queues[0].counters["enq"] = 1
    say(rows, queues[0], now_us=5)
    assert rows.due(HEARTBEAT_US + 1) == [2]
    assert rows.due(HEARTBEAT_US + 5) == [2, 3, 1]
    rows.forget(2)
    say(rows, queues[2], now_us=HEARTBEAT_US + 5)
    assert rows.due(HEARTBEAT_US + 6) == [1]


def test_a_clock_that_is_put_back_silences_nobody() -> None:
    rows, ahead, behind = QueueRows(), Queue(1, "q1"), Queue(2, "q2")
    say(rows, ahead, now_us=9 * HEARTBEAT_US)
    say(rows, behind, now_us=10)
    assert rows.due(20) == [1]
    assert len(say(rows, ahead, now_us=20)) == 1
    assert rows.due(10 + HEARTBEAT_US) == [2]


def test_numbers_that_are_zero_are_left_out_but_for_those_that_make_a_row() -> None:
    rows, queue = QueueRows(), Queue(1, "q")
    queue.consumers = 0
    (row,) = say(rows, queue)
    numbers = {name: value for name, value in row.items() if type(value) is int}
    fixed = {"t0": 0, "t1": 10, "grp": 1, "term": 1, "members": 2, "delivery_limit": 3,
             "prefetch_sum": 10}  # fmt: skip
    assert numbers == fixed | {"ready": 0, "unacked": 0, "c_enq": 0, "c_ack": 0}
    queue.counters |= {"enq": 20, "ack": 10}
    queue.ready = 10
    (row,) = say(rows, queue)
    told = {"ready": 10, "enq": 20, "ack": 10, "c_enq": 20, "c_ack": 10}
    assert {name: row.get(name) for name in told} == told
    assert "c_dlv" not in row


def test_nothing_is_left_of_a_queue_that_is_deleted() -> None:
    """A member remembered the number of each queue that there ever was."""
    rows = QueueRows()
    rows.known([1, 2])
    say(rows, Queue(3, "q"))
    rows.forget_deleted([1, 2, 3])
    assert rows._born_before == {1, 2, 3}
    rows.forget(3)
    rows.forget_deleted([2])
    assert rows._born_before == {2}
    assert not rows._seen


def test_a_queue_that_is_led_elsewhere_is_forgotten() -> None:
    rows, queue = QueueRows(), Queue(1, "q")
    say(rows, queue)
    rows.forget(1)
    queue.counters["enq"] = 9
    (row,) = say(rows, queue)
    assert ("enq" in row, row["c_enq"]) == (False, 9)
