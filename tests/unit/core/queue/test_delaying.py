"""The queue of an exchange of type x-delayed-message: what is due becomes a dead letter."""

from __future__ import annotations

from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.queue_state import DUE_PER_COMMAND_MAX
from tests.unit.core.queue_driver import QueueDriver, content


def driver() -> QueueDriver:
    return QueueDriver(
        queue_type="quorum", dead_letter_exchange="d", at_least_once=True, holds_delayed=True
    )


def letters(queue: QueueDriver) -> list[int]:
    """Return the numbers of all that is due, in the order in which it goes."""
    command = queue_commands.encode_dead_letters_checkout(100_000)
    queue.send(command)
    return [
        number
        for letter in queue.machine.query_letters_taken()
        for number in range(letter.first, letter.end)
    ]


def test_each_becomes_a_letter_when_it_is_due_in_order_of_time() -> None:
    queue = driver()
    queue.publish(
        content(delay_ms=300), content(delay_ms=100), content(delay_ms=100), content(delay_ms=200)
    )
    assert queue.machine.overview()["delayed"] == 4
    assert queue.machine.next_deadline_ms() == queue.now_ms + 100
    assert letters(queue) == []
    queue.now_ms += 100
    outcome = queue.send(queue.machine.tick_command())
    assert effects.DeadLettersWaiting() in outcome.effects
    assert letters(queue) == [1, 2]
    queue.now_ms += 1_000
    assert letters(queue) == [1, 2, 3, 0]
    assert queue.machine.overview()["counters"]["expired"] == 4


def test_what_says_no_delay_is_due_at_once() -> None:
    queue = driver()
    queue.publish(b"plain")
    queue.publish(content(delay_ms=0), content(priority=3))
    assert queue.machine.next_deadline_ms() == queue.now_ms
    assert letters(queue) == [0, 1, 2]


def test_a_copy_of_a_batch_delays_nothing_twice() -> None:
    queue = driver()
    queue.publish(content(delay_ms=100), content(delay_ms=50))
    _, command = queue.log[-1]
    queue.send(command)
    queue.now_ms += 100
    assert letters(queue) == [1, 0]


def test_a_clock_that_goes_back_holds_nothing_longer_than_the_highest_time_seen() -> None:
    queue = driver()
    queue.publish(content(delay_ms=100))
    queue.now_ms += 100
    queue.send(queue.machine.tick_command())
    queue.now_ms -= 5_000
    assert letters(queue) == [0]


def test_many_that_are_due_at_once_take_several_commands() -> None:
    queue = driver()
    count = 2 * DUE_PER_COMMAND_MAX + 5
    queue.publish(*[content(delay_ms=10 + number) for number in range(count)])
    queue.now_ms += 10 + count
    for waiting in (DUE_PER_COMMAND_MAX + 5, 5, 0):
        assert queue.machine.next_deadline_ms() is not None
        queue.send(queue.machine.tick_command())
        assert queue.machine.delayed.count == waiting


def test_a_declaration_counts_what_waits() -> None:
    queue = driver()
    queue.publish(content(delay_ms=10), content(delay_ms=1_000))
    queue.now_ms += 10
    reply = queue.reply(queue_commands.encode_declared())
    assert reply["ready"] == 2


def test_what_waits_is_in_the_snapshot() -> None:
    queue = driver()
    queue.publish(content(delay_ms=200), content(delay_ms=100))
    again = QueueMachine()
    again.restore(queue.machine.snapshot())
    queue.machine = again
    queue.now_ms += 200
    assert letters(queue) == [1, 0]


def test_another_queue_takes_no_notice_of_a_delay() -> None:
    queue = QueueDriver(queue_type="quorum")
    queue.publish(content(delay_ms=100))
    assert queue.machine.overview()["ready"] == 1


def test_what_is_new_in_a_batch_that_came_in_part_is_taken_with_its_own_delay() -> None:
    queue = driver()
    queue.publish(content(delay_ms=100))
    batch = [content(delay_ms=100), content(delay_ms=50)]
    queue.send(enqueue_commands.encode_enqueue("n1", 7, 50, 1, batch))
    queue.now_ms += 50
    assert letters(queue) == [1]
    queue.now_ms += 50
    assert letters(queue) == [1, 0]


def test_a_message_replaces_the_waiting_one_with_its_key() -> None:
    queue = driver()
    queue.publish(content(delay_ms=100, delay_key="a"), content(delay_ms=100, delay_key="b"))
    queue.publish(content(delay_ms=50, delay_key="a"), content(delay_ms=200, delay_key="b"))
    assert queue.machine.delayed.count == 2
    assert queue.count("purged") == 2
    queue.now_ms += 100
    assert letters(queue) == [2]
    queue.now_ms += 100
    assert letters(queue) == [2, 3]


def test_of_one_batch_the_last_with_a_key_stays() -> None:
    queue = driver()
    queue.publish(*[content(delay_ms=10, delay_key="a")] * 3)
    queue.now_ms += 10
    assert letters(queue) == [2]


def test_a_cancellation_takes_the_waiting_one_away_and_is_itself_not_kept() -> None:
    queue = driver()
    queue.publish(content(delay_ms=100, delay_key="a"), content(delay_ms=90))
    queue.publish(content(delay_key="a"))
    queue.publish(content(delay_key="a"))
    assert queue.count("purged") == 3
    queue.now_ms += 100
    assert letters(queue) == [1]


def test_what_was_due_is_not_replaced() -> None:
    queue = driver()
    queue.publish(content(delay_ms=10, delay_key="a"))
    queue.now_ms += 10
    assert letters(queue) == [0]
    queue.publish(content(delay_ms=10, delay_key="a"))
    queue.now_ms += 10
    assert letters(queue) == [0, 1]


def test_keys_are_in_the_snapshot() -> None:
    queue = driver()
    queue.publish(content(delay_ms=100, delay_key="a"), content(delay_ms=100, delay_key="b"))
    queue.publish(content(delay_key="b"))
    again = QueueMachine()
    again.restore(queue.machine.snapshot())
    queue.machine = again
    queue.publish(content(delay_ms=50, delay_key="a"))
    queue.now_ms += 100
    assert letters(queue) == [3]


def test_many_that_were_replaced_leave_nothing_behind() -> None:
    queue = driver()
    for number in range(50):
        queue.publish(content(delay_ms=1_000 + number, delay_key=f"k{number}"))
    for number in range(40):
        queue.publish(content(delay_key=f"k{number}"))
    assert queue.machine.next_deadline_ms() == queue.now_ms + 1_040
    assert [due_ms for due_ms, _ in queue.machine.delayed.in_order()] == [
        queue.now_ms + 1_000 + number for number in range(40, 50)
    ]
    queue.reply(queue_commands.encode_purge())
    assert queue.machine.delayed.count == 0
    queue.publish(content(delay_ms=5, delay_key="k45"))
    assert queue.machine.delayed.count == 1


def test_a_look_in_order_passes_over_what_was_taken() -> None:
    queue = driver()
    for number in range(9):
        queue.publish(content(delay_ms=100 + number, delay_key=f"k{number}"))
    queue.publish(content(delay_key="k4"))
    in_order = [due_ms - queue.now_ms for due_ms, _ in queue.machine.delayed.in_order()]
    assert in_order == [100, 101, 102, 103, 105, 106, 107, 108]
    queue.now_ms += 1_000
    assert letters(queue) == [0, 1, 2, 3, 5, 6, 7, 8]
