"""Consumer timeouts, delayed retry and what they leave in snapshots (R-QQ-22, R-QQ-24)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.queue import effects, queue_commands
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from tests.unit.core.queue_driver import QueueDriver, StepMeta, consumer, dead, delivered, only

QUORUM: dict[str, Any] = {"queue_type": "quorum", "delivery_limit": 9}


def timed(timeout_ms: int | None = 1000, **options: Any) -> QueueDriver:
    return QueueDriver(**QUORUM | {"consumer_timeout_ms": timeout_ms} | options)


def deadline(q: QueueDriver) -> int:
    due = q.machine.next_deadline_ms()
    assert due is not None
    return due


def test_a_consumer_that_holds_a_message_too_long_is_cancelled_and_the_message_returns() -> None:
    """R-QQ-22: uncounted in mode 4.3, and what is settled later is passed over."""
    q = timed(delivery_count_mode="4.3")
    q.consume(prefetch=2)
    q.fill(2)
    q.now_ms += 400
    q.settle((0, 1))
    assert 2000 <= deadline(q) <= 2016
    assert q.tick(500).effects == []
    q.now_ms = deadline(q)
    outcome = q.tick()
    cancelled = only(outcome, effects.ConsumerCancelled)
    assert cancelled.consumer == consumer()
    assert cancelled.cause == effects.timed_out(1000)
    assert (q.ready, q.unacked, q.machine.consumer_rows()) == (1, 0, [])
    q.settle((1, 2))
    assert (q.ready, q.count("ack")) == (1, 1)
    run = effects.Run(*q.get()["run"])
    assert (run.first, run.acquired_count, run.delivery_count) == (1, 1, 0)


def test_only_late_messages_return_and_the_rest_stays_with_the_channel() -> None:
    """R-QQ-22, R-CS-3: a cancelled consumer keeps what it may still settle."""
    q = timed()
    q.consume(prefetch=9)
    q.fill(1)
    q.now_ms += 900
    q.fill(1)
    q.now_ms += 200
    only(q.tick(), effects.ConsumerCancelled)
    assert (q.ready, q.unacked) == (1, 1)
    q.settle((1, 2))
    q.now_ms = deadline(q)
    assert q.tick().effects == []
    assert (q.count("ack"), q.machine.next_deadline_ms()) == (1, None)


def test_only_the_consumer_that_is_late_is_cancelled() -> None:
    """R-QQ-22"""
    q = timed()
    q.consume("a", prefetch=1)
    q.fill(1)
    q.now_ms += 900
    q.consume("b", prefetch=1)
    q.fill(1)
    assert only(q.tick(200), effects.ConsumerCancelled).consumer == consumer("a")
    assert q.unacked == 1
    assert only(q.tick(900), effects.ConsumerCancelled).consumer == consumer("b")


def test_the_rest_of_a_cancelled_consumer_times_out_too() -> None:
    """R-QQ-22"""
    q = timed()
    q.consume(prefetch=9)
    q.fill(1)
    q.send(queue_commands.encode_cancel(consumer()))
    q.now_ms = deadline(q)
    assert q.tick().effects == []
    assert (q.ready, q.unacked) == (1, 0)


def test_basic_get_holds_no_longer_than_a_consumer() -> None:
    """R-QQ-22"""
    q = timed()
    q.fill(1)
    assert q.get()["run"]
    q.now_ms = deadline(q)
    q.tick()
    assert (q.ready, q.unacked) == (1, 0)


def test_a_consumers_own_timeout_beats_the_queues() -> None:
    """R-QQ-22: the argument x-consumer-timeout."""
    q = timed(50_000)
    who = consumer("own")
    checkout = Checkout(who, 1, False, False, 0, "guest", timeout_ms=64)
    q.send(queue_commands.encode_checkout(checkout))
    q.fill(1)
    assert deadline(q) == 1064
    assert only(q.tick(64), effects.ConsumerCancelled).cause == effects.timed_out(64)


def test_a_policy_changes_the_timeout_of_messages_that_are_out() -> None:
    """R-QQ-22, R-POL-5"""
    q = timed(50_000)
    q.consume(prefetch=1)
    q.fill(1)
    q.now_ms += 5000
    q.configure(**QUORUM, consumer_timeout_ms=1000)
    only(q.tick(), effects.ConsumerCancelled)


def test_returns_of_slow_consumers_count_where_every_return_does() -> None:
    """R-QQ-22, R-DL-2 (3.x): a message on which consumers hang comes to an end."""
    q = timed(100, delivery_limit=1, dead_letter_exchange="dlx")
    q.fill(1)
    for _ in range(2):
        q.consume(prefetch=1)
        outcome = q.tick(200)
    assert dead(outcome) == [("delivery_limit", [0])]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_without_a_timeout_nobody_looks(queue_type: str) -> None:
    """R-CS-9"""
    q = QueueDriver(queue_type=queue_type)
    q.consume(prefetch=1)
    q.fill(1)
    assert q.machine.next_deadline_ms() is None
    q.tick(10_000_000)
    assert q.unacked == 1


@pytest.mark.parametrize("is_of_consumer", [False, True])
def test_a_classic_queue_ends_slow_consumers_where_it_is_told_to(is_of_consumer: bool) -> None:
    """R-QQ-22: by its own argument or policy, or the consumer's argument."""
    q = QueueDriver(consumer_timeout_ms=None if is_of_consumer else 64)
    checkout = Checkout(
        consumer(), 1, False, False, 0, "guest", timeout_ms=64 if is_of_consumer else None
    )
    q.send(queue_commands.encode_checkout(checkout))
    q.fill(2)
    assert q.tick(63).effects == []
    assert only(q.tick(1), effects.ConsumerCancelled).cause == effects.timed_out(64)
    assert (q.ready, q.unacked, q.machine.consumers.registered) == (2, 0, 0)
    # In its old place, as all that comes back to a classic queue.
    assert [q.get()["run"][0] for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_the_time_of_what_is_held_begins_with_the_first_timeout(queue_type: str) -> None:
    """R-QQ-22, R-POL-5: what was taken without one is not late at once, and is not forgotten."""
    q = QueueDriver(queue_type=queue_type)
    q.consume(prefetch=1)
    q.fill(1)
    q.now_ms += 10_000_000
    q.configure(queue_type=queue_type, consumer_timeout_ms=64)
    assert q.tick().effects == []
    assert (q.unacked, deadline(q)) == (1, q.now_ms + 64)
    only(q.tick(64), effects.ConsumerCancelled)
    assert (q.ready, q.unacked) == (1, 0)


def test_deliveries_of_about_the_same_time_stay_one_span() -> None:
    """Thousands of single deliveries must not make thousands of records."""
    q = timed(1_800_000)
    q.consume(prefetch=0)
    for _ in range(100):
        q.now_ms += 10
        q.fill(1)
    held = next(iter(q.machine.consumers.rows())).held
    assert held.count == 100
    q.settle((10, 90))
    assert q.unacked == 20


@pytest.mark.parametrize(
    ("kind", "cause", "waits"),
    [
        ("all", ReturnCause.NACK, True),
        ("all", ReturnCause.REJECT, True),
        ("failed", ReturnCause.NACK, False),
        ("failed", ReturnCause.REJECT, True),
        ("returned", ReturnCause.NACK, True),
        ("returned", ReturnCause.REJECT, False),
        ("disabled", ReturnCause.NACK, False),
    ],
)
def test_delayed_retry_holds_back_the_returns_of_its_kind(
    kind: str, cause: ReturnCause, waits: bool
) -> None:
    """R-QQ-24, R-DL-10"""
    q = QueueDriver(
        **QUORUM, delayed_retry=kind, delayed_retry_min_ms=100, delayed_retry_max_ms=100
    )
    q.consume(prefetch=1)
    q.fill(1)
    outcome = q.requeue((0, 1), cause=cause)
    assert delivered(outcome) == ({} if waits else {"c": [0]})
    view = q.machine.overview()
    assert (view["delayed"], view["ready"], view["unacked"]) == (waits, 0, not waits)
    if waits:
        assert deadline(q) == q.now_ms + 100
        assert delivered(q.tick(99)) == {}
        assert delivered(q.tick(1)) == {"c": [0]}


def test_the_delay_grows_with_the_failures_up_to_a_limit() -> None:
    """R-QQ-24: min x max(1, delivery count), at most max."""
    q = QueueDriver(
        **QUORUM, delayed_retry="all", delayed_retry_min_ms=100, delayed_retry_max_ms=250
    )
    q.consume(prefetch=1)
    q.fill(1)
    waited = []
    for _ in range(4):
        q.requeue((0, 1), cause=ReturnCause.REJECT)
        waited.append(deadline(q) - q.now_ms)
        q.now_ms = deadline(q)
        assert delivered(q.tick()) == {"c": [0]}
    assert waited == [100, 200, 250, 250]


def test_delayed_messages_are_not_ready_but_count_against_the_limits() -> None:
    """R-QQ-24, R-LEN-8, R-QQ-19: a purge takes them, too."""
    q = QueueDriver(
        **QUORUM,
        delayed_retry="all",
        delayed_retry_min_ms=100,
        delayed_retry_max_ms=100,
        max_length=1,
    )
    q.consume(prefetch=2)
    q.fill(2)
    q.requeue((0, 2))
    assert (q.ready, q.machine.overview()["delayed"]) == (0, 2)
    q.send(queue_commands.encode_cancel(consumer()))
    q.fill(1)
    assert (q.ready, q.count("maxlen_drop")) == (0, 1)
    assert q.reply(queue_commands.encode_purge()) == {"messages": 2}
    assert list(q.machine.live_indexes()) == []


def test_the_end_of_a_queue_takes_the_delayed_along() -> None:
    """R-QQ-24, R-Q-12"""
    q = QueueDriver(**QUORUM, delayed_retry="all", delayed_retry_min_ms=9, delayed_retry_max_ms=9)
    q.consume(prefetch=1)
    q.fill(1)
    q.requeue((0, 1))
    q.send(queue_commands.encode_delete(False, False, "client"))
    assert q.count("purged") == 1


def test_delays_timeouts_and_refusal_survive_a_snapshot() -> None:
    """A new member counts time and limits as the others do."""
    q = timed(
        1000,
        delayed_retry="returned",
        delayed_retry_min_ms=50,
        delayed_retry_max_ms=50,
        max_length=2,
        overflow="reject-publish",
    )
    q.consume(prefetch=2)
    q.fill(2)
    q.requeue((0, 1), cause=ReturnCause.RECOVER)
    q.send(queue_commands.encode_cancel(consumer()))
    assert q.accepted(b"x", b"y", b"z") == 2
    assert q.machine.refusing
    twin = QueueMachine()
    twin.restore(q.machine.snapshot())
    assert twin.snapshot() == q.machine.snapshot()
    twin.check_invariants()
    for _ in range(3):
        due = q.machine.next_deadline_ms()
        if due is None:
            break
        assert twin.next_deadline_ms() == due
        meta = StepMeta(q.index + 1, 1, due)
        q.now_ms = due
        assert twin.apply(meta, twin.tick_command()) == q.tick()
        assert twin.overview() == q.machine.overview()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"consumer_timeout_ms": 1_800_000},
        {"message_ttl_ms": 60_000},
        {"max_length": 10_000, "overflow": "reject-publish"},
        {"dead_letter_exchange": "dlx"},
        {"delayed_retry": "all", "delayed_retry_min_ms": 5, "delayed_retry_max_ms": 5},
        {"alternate_exchange": "alt"},
    ],
)
def test_what_nobody_uses_costs_one_record_for_a_whole_batch(options: dict[str, Any]) -> None:
    """Plain messages stay one span and one run, in the queue and in the consumer's hands."""
    q = QueueDriver(**QUORUM | options)
    q.fill(500)
    assert len(list(q.machine.store)) == 1
    (run,) = only(q.consume(), effects.Deliver).runs
    assert run.length == 500
    held = next(iter(q.machine.consumers.rows())).held
    assert len(list(held)) == 1


def test_what_a_channel_got_and_held_too_long_returns_and_the_channel_hears_of_it() -> None:
    """R-QQ-22, R-CS-8: as RabbitMQ 4.3.6 does for basic.get."""
    q = timed()
    q.fill(1)
    q.get()
    q.now_ms = deadline(q)
    told = only(q.tick(), effects.ConsumerCancelled)
    assert (told.consumer, told.cause) == (consumer(""), effects.timed_out(1000))
    assert (q.ready, q.unacked) == (1, 0)
