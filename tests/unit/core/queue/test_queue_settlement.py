"""Settle, return, discard, delivery limits, TTL (R-ACK, R-DL, R-TTL)."""

from __future__ import annotations

import pytest

from brokerd.core.queue import effects, queue_commands, settling_gets
from brokerd.core.queue.queue_commands import ReturnCause
from tests.unit.core.queue_driver import (
    QueueDriver,
    consumer,
    content,
    dead,
    delivered,
    numbers,
    only,
)


def cycle(q: QueueDriver, number: int, cause: ReturnCause) -> None:
    q.requeue((number, number + 1), cause=cause)


def test_a_classic_queue_puts_messages_back_where_they_were() -> None:
    """R-ACK-5"""
    q = QueueDriver()
    q.consume(prefetch=4)
    q.fill(6)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((3, 4))
    q.requeue((1, 2))
    q.requeue((0, 1))
    assert delivered(q.consume("d")) == {"d": [0, 1, 3, 4, 5]}


def test_a_quorum_queue_with_a_limit_serves_returned_messages_first_in_order_of_return() -> None:
    """R-QQ-14, R-DL-7"""
    q = QueueDriver(queue_type="quorum", delivery_limit=5)
    q.consume(prefetch=4)
    q.fill(6)
    q.send(queue_commands.encode_cancel(consumer()))
    for number in (3, 1, 0):
        q.requeue((number, number + 1))
    assert delivered(q.consume("d")) == {"d": [3, 1, 0, 4, 5]}


def test_a_quorum_queue_without_a_limit_puts_them_at_the_back() -> None:
    """R-DL-7"""
    q = QueueDriver(queue_type="quorum")
    q.consume(prefetch=2)
    q.fill(4)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 1))
    assert delivered(q.consume("d")) == {"d": [2, 3, 0]}


def test_a_quorum_queue_whose_limit_is_switched_off_serves_returned_messages_first() -> None:
    """R-DL-7, R-QQ-14: as RabbitMQ 4.3.6."""
    q = QueueDriver(queue_type="quorum", delivery_count_mode="failures")
    q.consume(prefetch=2)
    q.fill(4)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 2))
    assert delivered(q.consume("d")) == {"d": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("mode", "cause", "deliveries"),
    [
        ("3.x", ReturnCause.NACK, 3),
        ("3.x", ReturnCause.REJECT, 3),
        ("3.x", ReturnCause.RECOVER, 3),
        ("4.0", ReturnCause.NACK, 3),
        ("4.3", ReturnCause.REJECT, 3),
        ("4.3", ReturnCause.NACK, None),
        ("4.3", ReturnCause.RECOVER, None),
    ],
)
def test_a_limit_of_2_means_3_deliveries(
    mode: str, cause: ReturnCause, deliveries: int | None
) -> None:
    """R-DL-2, R-DL-3, R-DL-6"""
    q = QueueDriver(
        queue_type="quorum",
        delivery_limit=2,
        delivery_count_mode=mode,
        dead_letter_exchange="dlx",
    )
    q.consume(prefetch=1)
    q.fill(1)
    for _ in range(10):
        if q.unacked:
            cycle(q, 0, cause)
    assert q.count("dlv") == (deliveries or 11)
    assert q.count("over_limit") == (1 if deliveries else 0)


@pytest.mark.parametrize(("mode", "deliveries"), [("3.x", 1), ("4.0", 3), ("4.3", 1)])
def test_a_count_that_came_along_is_limited_unless_deliveries_are(
    mode: str, deliveries: int
) -> None:
    """R-DL-9, R-DL-2: 4.0 compares with the deliveries of this queue."""
    q = QueueDriver(queue_type="quorum", delivery_limit=2, delivery_count_mode=mode)
    q.consume(prefetch=1)
    q.publish(content(b"x", delivery_count=2))
    for _ in range(5):
        if q.unacked:
            cycle(q, 0, ReturnCause.REJECT)
    assert (q.count("dlv"), q.count("over_limit")) == (deliveries, 1)


def test_the_dead_letter_of_the_limit_tells_its_counts() -> None:
    """R-DL-3, R-DLX-35, R-DL-4"""
    q = QueueDriver(queue_type="quorum", delivery_limit=0, dead_letter_exchange="dlx")
    q.consume()
    q.fill(1)
    letter = only(q.requeue((0, 1)), effects.DeadLetter)
    assert (letter.reason, letter.exchange, letter.routing_key) == ("delivery_limit", "dlx", None)
    assert letter.runs == [effects.Run(0, 1, 2, 0, 1, 1)]


def test_a_graceful_channel_end_counts_and_can_kill() -> None:
    """R-DL-2, R-DL-3, O-3: limit 1 with channel.close each time is 2 deliveries"""
    for mode in ("3.x", "4.0", "4.3"):
        q = QueueDriver(queue_type="quorum", delivery_limit=1, delivery_count_mode=mode)
        q.fill(1)
        for channel in (1, 2, 3):
            q.consume(channel=channel)
            q.channel_down(channel)
        assert (q.count("dlv"), q.count("over_limit")) == (2, 1)


@pytest.mark.parametrize("mode", ["3.x", "4.3"])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_dead_letter_takes_the_failures_along(queue_type: str, mode: str) -> None:
    """R-DL-2, R-DLX-35: as from RabbitMQ 4.3.6, from classic queues too."""
    for cause, count in ((ReturnCause.REJECT, 3), (ReturnCause.NACK, 2)):
        q = QueueDriver(queue_type=queue_type, dead_letter_exchange="dlx", delivery_count_mode=mode)
        q.fill(1)
        q.consume(prefetch=1)
        q.requeue((0, 1), cause=ReturnCause.REJECT)
        q.channel_down()
        q.consume()
        letter = only(q.discard((0, 1), cause=cause), effects.DeadLetter)
        assert [run.delivery_count for run in letter.runs] == [count]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_message_that_failed_elsewhere_has_been_handed_out_before(queue_type: str) -> None:
    """R-DLX-35: until it returns here, which tells how often that was here."""
    q = QueueDriver(queue_type=queue_type, delivery_count_mode="4.3")
    q.consume(prefetch=1)
    for carried, times in ((0, [0, 1]), (3, [3, 1])):
        told = [*q.publish(content(b"x", delivery_count=carried)).effects]
        told += q.requeue((q.machine.next_number - 1, q.machine.next_number)).effects
        runs = [run for each in told if isinstance(each, effects.Deliver) for run in each.runs]
        assert [effects.times_acquired(run) for run in runs] == times
        q.settle((q.machine.next_number - 1, q.machine.next_number))


def test_reject_without_requeue_counts_in_4_3() -> None:
    """R-DL-2"""
    for cause, count in ((ReturnCause.REJECT, 1), (ReturnCause.NACK, 0)):
        q = QueueDriver(queue_type="quorum", delivery_count_mode="4.3", dead_letter_exchange="dlx")
        q.consume()
        q.fill(1)
        letter = only(q.discard((0, 1), cause=cause), effects.DeadLetter)
        assert [run.delivery_count for run in letter.runs] == [count]


def test_a_carried_delivery_count_brings_the_limit_nearer() -> None:
    """R-DL-9"""
    q = QueueDriver(queue_type="quorum", delivery_limit=2)
    q.consume()
    q.publish(content(delivery_count=2))
    q.requeue((0, 1))
    assert q.count("over_limit") == 1


def test_a_changed_limit_holds_for_the_next_return() -> None:
    """R-DL-8"""
    q = QueueDriver(queue_type="quorum", delivery_limit=9)
    q.consume(prefetch=1)
    q.fill(1)
    cycle(q, 0, ReturnCause.NACK)
    q.configure(queue_type="quorum", delivery_limit=1)
    cycle(q, 0, ReturnCause.NACK)
    assert q.count("over_limit") == 1


def test_classic_queues_have_no_limit_and_count_failures_for_their_dead_letters() -> None:
    """R-DL-11, R-DLX-35"""
    q = QueueDriver(delivery_limit=0)
    q.consume(prefetch=1)
    q.fill(1)
    outcome = q.requeue((0, 1), cause=ReturnCause.REJECT)
    assert only(outcome, effects.Deliver).runs == [effects.Run(0, 1, 2, 0, 1, 1)]


def test_discarded_messages_are_dead_lettered_in_ascending_order_or_dropped() -> None:
    """R-ACK-6, R-DLX-20, R-DLX-9"""
    for exchange, letters in (("dlx", [("rejected", [0, 1, 2])]), (None, [])):
        q = QueueDriver(dead_letter_exchange=exchange)
        q.consume()
        q.fill(4)
        assert dead(q.discard((0, 2), (2, 3))) == letters
        assert (q.count("rejected"), q.count("dl_out")) == (3, 3 if exchange else 0)


def test_dead_letters_go_where_the_queue_pointed_when_they_died() -> None:
    """R-DLX-8: expiry found by the very command that changes the exchange"""
    q = QueueDriver(dead_letter_exchange="old", dead_letter_routing_key="k", message_ttl_ms=10)
    q.fill(1)
    q.now_ms += 10
    letter = only(q.configure(dead_letter_exchange="new"), effects.DeadLetter)
    assert (letter.exchange, letter.routing_key, letter.now_ms) == ("old", "k", q.now_ms)


def test_messages_expire_at_the_head_and_the_deadline_says_when() -> None:
    """R-TTL-1, R-TTL-3, R-TTL-5"""
    q = QueueDriver(message_ttl_ms=100, dead_letter_exchange="dlx")
    q.fill(2)
    assert q.machine.next_deadline_ms() == q.now_ms + 100
    q.now_ms += 50
    q.fill(1)
    assert dead(q.tick(49)) == []
    assert dead(q.tick(1)) == [("expired", [0, 1])]
    assert (q.ready, q.count("expired")) == (1, 2)


def test_the_smallest_ttl_wins() -> None:
    """R-TTL-1"""
    q = QueueDriver(message_ttl_ms=100)
    q.publish(content(ttl_ms=10))
    q.publish(content(ttl_ms=1000))
    q.tick(10)
    assert q.ready == 1
    q.tick(90)
    assert q.ready == 0


def test_expired_messages_behind_a_live_head_are_counted_but_never_delivered() -> None:
    """R-TTL-2"""
    q = QueueDriver(dead_letter_exchange="dlx")
    q.publish(content(), content(ttl_ms=10), content())
    q.tick(10)
    assert q.ready == 3
    outcome = q.consume()
    assert delivered(outcome) == {"c": [0, 2]}
    assert dead(outcome) == [("expired", [1])]


def test_ttl_0_is_delivered_to_whoever_is_ready_and_expires_otherwise() -> None:
    """R-TTL-6: prefetch 1, three messages: the first is delivered, the rest expire"""
    q = QueueDriver(message_ttl_ms=0, dead_letter_exchange="dlx")
    q.consume(prefetch=1)
    outcome = q.fill(3)
    assert delivered(outcome) == {"c": [0]}
    assert dead(outcome) == [("expired", [1, 2])]


def test_an_unacked_message_expires_only_when_it_is_back() -> None:
    """R-TTL-1, R-TTL-5"""
    q = QueueDriver(message_ttl_ms=10, dead_letter_exchange="dlx")
    q.consume()
    q.fill(1)
    assert dead(q.tick(50)) == []
    assert dead(q.requeue((0, 1))) == [("expired", [0])]


def test_a_new_ttl_holds_for_later_arrivals() -> None:
    """R-TTL-7, O-24"""
    q = QueueDriver()
    q.fill(1)
    q.configure(message_ttl_ms=10)
    q.fill(1)
    q.tick(1000)
    assert q.ready == 2
    assert q.get()["run"][0] == 0
    assert q.ready == 0


def test_classic_expiry_stops_at_the_highest_level_that_lives_quorum_looks_everywhere() -> None:
    """R-PRI-5, R-TTL-4"""
    for queue_type, left in (("classic", 2), ("quorum", 1)):
        q = QueueDriver(queue_type=queue_type, max_priority=5)
        q.publish(content(priority=5), content(ttl_ms=10))
        q.tick(10)
        assert q.ready == left


def test_time_does_not_go_back_with_a_new_leader() -> None:
    q = QueueDriver(message_ttl_ms=100)
    q.fill(1)
    q.now_ms -= 500
    q.fill(1)
    q.now_ms += 600
    q.tick()
    assert q.ready == 0


def test_parts_of_a_delivery_are_settled_one_by_one_in_any_order() -> None:
    q = QueueDriver()
    q.consume()
    q.fill(6)
    for number in (4, 0, 5, 2):
        q.settle((number, number + 1))
    assert q.unacked == 2
    assert numbers(only(q.send(queue_commands.encode_resume(consumer(), [])), effects.Deliver).runs)
    q.settle((0, 6), (0, 6))
    assert (q.unacked, q.count("ack")) == (0, 6)
    assert list(q.machine.live_indexes()) == []


@pytest.mark.parametrize("options", [{}, {"queue_type": "quorum"}], ids=["classic", "quorum"])
def test_a_get_settles_what_was_got_before(options: dict[str, str]) -> None:
    """R-CS-8: state and answer are those of the settlement and the get after each other."""
    both, each = QueueDriver(**options), QueueDriver(**options)
    getter = consumer("", 1)
    for queue in (both, each):
        queue.fill(4)
        queue.get()
        queue.get()
    each.settle((0, 2), who=getter)
    get = queue_commands.encode_get(getter, False)
    answer = both.reply(settling_gets.encode(get, [(0, 1), (1, 2), (1, 2), (3, 4)]))
    assert answer == each.reply(get)
    assert both.machine.overview() == each.machine.overview()
    assert both.machine.overview()["counters"]["ack"] == 2
    # What it held and what nobody gave it: the last one is ready still.
    assert (both.ready, both.unacked) == (1, 1)


def test_a_get_that_finds_nothing_or_is_refused_settles_all_the_same() -> None:
    queue = QueueDriver(queue_type="quorum")
    queue.fill(1)
    queue.get()
    get = queue_commands.encode_get(consumer("", 1), False)
    assert queue.reply(settling_gets.encode(get, [(0, 1)]))["run"] is None
    assert queue.unacked == 0
    queue.fill(1)
    queue.get()
    queue.configure(queue_type="quorum", single_active_consumer=True)
    assert queue.reply(settling_gets.encode(get, [(1, 2)]))["refused"] == 405
    assert queue.unacked == 0
