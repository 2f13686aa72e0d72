"""The checker of the chaos runs finds planted losses, inventions and the rest."""

from __future__ import annotations

import pytest

from tests.chaos.checker import Verdict, judge, missing
from tests.chaos.history import (
    PREFETCH,
    REJECT_EVERY,
    Delivery,
    FaultSpan,
    History,
    MessageKey,
    must_be_rejected,
)

COUNT = 3 * REJECT_EVERY


def sound(count: int = COUNT) -> History:
    """Return a run without a fault: one confirm and one delivery per 0.1 s."""
    history = History(began_s=0.0, ended_s=count / 10, left={"work": [0, 0], "dead": [0, 0]})
    for number in range(count):
        key, at_s = MessageKey(1, number), number / 10
        history.attempted[key] = "work"
        history.confirmed[key] = at_s
        history.deliveries.append(Delivery("work", 7, key, 0, False, at_s))
        if must_be_rejected(number):
            history.deliveries.append(Delivery("dead", 8, key, 0, False, at_s + 0.01))
    return history


def without(history: History, number: int, queue: str) -> History:
    """Drop the deliveries of a message from one queue."""
    history.deliveries = [
        d for d in history.deliveries if d.key.number != number or d.queue != queue
    ]
    return history


def test_a_sound_run_has_no_violation() -> None:
    verdict = judge(sound())
    assert verdict.violations == []
    assert (verdict.attempted, verdict.confirmed, verdict.received) == (COUNT, COUNT, COUNT)
    assert verdict.dead_lettered == COUNT // REJECT_EVERY
    assert verdict.duplicates == 0


def test_a_confirmed_message_that_never_came_is_lost() -> None:
    """G1."""
    assert judge(without(sound(), 5, "work")).lost == [MessageKey(1, 5)]


def test_a_message_that_was_not_confirmed_may_be_missing_or_there() -> None:
    history = without(sound(), 5, "work")
    del history.confirmed[MessageKey(1, 5)]
    del history.confirmed[MessageKey(1, 6)]
    verdict = judge(history)
    assert verdict.violations == []
    assert verdict.unconfirmed_received == 1


def test_a_rejected_message_must_arrive_among_the_dead_letters() -> None:
    """G6: its delivery from the work queue is not enough."""
    verdict = judge(without(sound(), REJECT_EVERY, "dead"))
    assert verdict.unburied == [MessageKey(1, REJECT_EVERY)]
    assert verdict.lost == []


def test_a_message_that_died_before_any_consumer_got_it_is_not_lost() -> None:
    history = without(sound(), 5, "work")
    history.deliveries.append(Delivery("dead", 8, MessageKey(1, 5), 0, False, 1.0))
    assert judge(history).violations == []


@pytest.mark.parametrize("queue", ["work", "dead"])
def test_a_message_that_nobody_published_is_unexpected(queue: str) -> None:
    """G2."""
    history = sound()
    history.deliveries.append(Delivery(queue, 7, MessageKey(1, COUNT), 0, False, 9.0))
    assert len(judge(history).unexpected) == 1


def test_a_message_in_a_queue_of_others_is_unexpected() -> None:
    history = sound()
    history.deliveries.append(Delivery("other", 7, MessageKey(1, 3), 0, True, 9.0))
    assert len(judge(history).unexpected) == 1


def test_a_body_that_is_none_of_ours_is_unexpected() -> None:
    history = sound()
    history.strange.append(b"zzz")
    assert judge(history).unexpected == ["body b'zzz'"]


def test_duplicates_are_counted_and_must_be_flagged() -> None:
    history = sound()
    history.deliveries.append(Delivery("work", 9, MessageKey(1, 3), 0, True, 9.0))
    verdict = judge(history)
    assert (verdict.duplicates, verdict.violations) == (1, [])
    history.deliveries.append(Delivery("work", 9, MessageKey(1, 3), 0, False, 9.1))
    verdict = judge(history)
    assert verdict.duplicates == 2
    assert [delivery.at_s for delivery in verdict.unflagged] == [9.1]


def test_order_holds_per_publishing_connection_and_channel() -> None:
    """G3: requeued messages, other connections and other channels aside."""
    history = sound()
    late = Delivery("work", 7, MessageKey(1, COUNT), 1, False, 9.0)
    later = Delivery("work", 7, MessageKey(1, COUNT + 1), 1, False, 9.1)
    history.attempted |= {late.key: "work", later.key: "work"}
    history.deliveries += [later, late]
    assert judge(history).out_of_order == [late]
    for harmless in (
        late._replace(redelivered=True),
        late._replace(epoch=2),
        late._replace(channel=70),
    ):
        history.deliveries[-1] = harmless
        assert judge(history).out_of_order == []


def test_what_a_consumer_was_not_sent_may_come_late_to_another_one() -> None:
    """ADR 69: after a fault, and no more than the other one's prefetch."""
    history = sound()
    others = Delivery("work", 8, MessageKey(1, 0), 1, True, 8.0)
    late = [
        Delivery("work", 7, MessageKey(2, number), 1, False, 9.1) for number in range(PREFETCH + 1)
    ]
    first = Delivery("work", 7, MessageKey(2, PREFETCH + 1), 1, False, 9.0)
    history.attempted |= {delivery.key: "work" for delivery in (first, *late)}
    history.deliveries += [others, first, *late]
    history.faults[:] = [FaultSpan("cut", 8.5, 8.9)]
    assert judge(history).out_of_order == late[-1:]
    history.deliveries.pop()
    assert judge(history).out_of_order == []
    history.faults[:] = [FaultSpan("cut", 9.2, 9.3)]
    assert judge(history).out_of_order == late[:-1]
    # The other one goes on: it holds what it was sent.
    history.faults[:] = [FaultSpan("cut", 8.5, 8.9)]
    history.deliveries.append(others._replace(at_s=9.5))
    assert judge(history).out_of_order == late[:-1]


@pytest.mark.parametrize("counts", [[0, 2], [None, 0]])
def test_queues_must_report_nothing_left_at_each_member(counts: list[int | None]) -> None:
    history = sound()
    history.left["work"] = counts
    assert judge(history).left == [f"work: {counts}"]


def test_a_member_that_does_not_come_back_is_a_violation() -> None:
    history = sound()
    history.broken.append("n1 did not start")
    assert judge(history).violations == ["1 broken, as n1 did not start"]


def test_a_message_that_too_few_logs_hold_is_a_violation() -> None:
    """G1: even if somebody got it afterwards."""
    history = sound()
    history.looked_for, history.scarce = 3, [MessageKey(1, 5)]
    verdict = judge(history)
    assert verdict.looked_for == 3
    assert verdict.violations == [
        f"1 confirmed and not readable in a majority of logs, as {MessageKey(1, 5)}"
    ]


def test_outages_are_measured_per_queue() -> None:
    """A queue that goes on must not hide one that stands still; G9 is counted from the heal."""
    history = sound()
    history.faults = [FaultSpan("kill", 1.05, 2.05)]
    assert judge(history).gap_max_s == pytest.approx(0.1)
    for number in range(COUNT):
        key, at_s = MessageKey(2, number), number / 10
        history.attempted[key] = "slow"
        if not 1.0 < at_s < 4.0:
            history.confirmed[key] = at_s
        history.deliveries.append(Delivery("slow", 7, key, 0, False, at_s))
        if must_be_rejected(number):
            history.deliveries.append(Delivery("dead", 8, key, 0, False, at_s))
    verdict = judge(history)
    assert verdict.violations == []
    assert verdict.gap_max_s == pytest.approx(4.0 - 1.05)
    assert verdict.resume_max_s == pytest.approx(4.0 - 2.05)


def test_a_queue_that_never_resumes_is_seen() -> None:
    history = sound()
    history.faults = [FaultSpan("kill", 1.0, 2.0)]
    history.confirmed = {key: at for key, at in history.confirmed.items() if at < 1.0}
    verdict = judge(history)
    assert isinstance(verdict, Verdict)
    assert verdict.gap_max_s == pytest.approx(history.ended_s - 1.0)


def test_a_dead_letter_that_is_published_again_is_a_new_message() -> None:
    """R-ALO-4: a lost confirm of the target makes a duplicate without the flag."""
    history = sound()
    key = MessageKey(1, REJECT_EVERY)
    history.deliveries.append(Delivery("dead", 8, key, 0, False, 9.0))
    verdict = judge(history)
    assert (verdict.duplicates, verdict.violations) == (1, [])


def test_what_is_missing_is_what_would_be_lost_or_not_dead_lettered() -> None:
    assert missing(sound()) == 0
    assert missing(without(sound(), 5, "work")) == 1
    assert missing(without(sound(), REJECT_EVERY, "dead")) == 1
    assert missing(without(sound(), REJECT_EVERY, "work")) == 0
