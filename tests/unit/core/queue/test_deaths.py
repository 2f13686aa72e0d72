"""x-death, dead-letter keys and cycles (R-DLX-10..34)."""

from __future__ import annotations

from brokerd.core import annotations
from brokerd.core.annotations import Annotations, Death, RedrivenFrom
from brokerd.core.queue import deaths


def died(before: Annotations, queue: str, reason: str, **fields: object) -> Annotations:
    given = {"time_s": 1, "exchange": "x", "routing_keys": ["k"], **fields}
    return deaths.record(before, queue=queue, reason=reason, **given).annotations  # type: ignore[arg-type]


def test_the_golden_vector_of_two_queues() -> None:
    """R-DLX-27, R-DLX-21, R-DLX-22, R-DLX-23"""
    published = Annotations(ttl_ms=60_000, bcc=["b1"])
    first = deaths.record(
        published,
        queue="w",
        reason="rejected",
        time_s=100,
        exchange="",
        routing_keys=["w", "cc1"],
        expiration="60000",
        keeps_keys=False,
    )
    assert first.last == ("rejected", "w", "")
    second = deaths.record(
        first.annotations,
        queue="p",
        reason="expired",
        time_s=101,
        exchange="dx",
        routing_keys=["retry"],
    )
    assert second.annotations.deaths == [
        Death("p", "expired", 1, 101, "dx", ["retry"]),
        Death("w", "rejected", 1, 100, "", ["w", "cc1"], "60000"),
    ]
    assert second.annotations.first_death == ("rejected", "w", "")
    assert second.last == ("expired", "p", "dx")
    again = died(second.annotations, "w", "rejected", time_s=102, exchange="dx")
    again = died(again, "p", "expired", time_s=103)
    assert [(d.queue, d.count, d.time_s) for d in again.deaths] == [("p", 2, 101), ("w", 2, 100)]
    assert again.deaths[1].exchange == ""


def test_a_death_takes_the_own_ttl_away_and_carries_the_delivery_count() -> None:
    """R-DLX-14, R-DLX-35; the earlier annotations are left alone"""
    copy = RedrivenFrom(1, 2, 3, "0a")
    before = Annotations(ttl_ms=5, bcc=["b"], priority=3, redriven=copy)
    after = died(before, "q", "delivery_limit", delivery_count=4)
    assert after.redriven is None
    assert (after.ttl_ms, after.delivery_count, after.priority, after.bcc) == (None, 4, 3, ["b"])
    assert before.deaths == []
    assert annotations.decode(annotations.encode(after)) == after


def test_original_expiration_is_a_plain_integer() -> None:
    """R-DLX-22"""
    assert deaths.plain_expiration("060000") == "60000"
    assert deaths.plain_expiration("000") == "0"
    assert deaths.plain_expiration("soon") == "soon"
    assert deaths.plain_expiration(None) is None


def test_keys_are_the_dead_letter_key_alone_or_all_of_the_message() -> None:
    """R-DLX-10, R-DLX-11"""
    assert deaths.keys("rk", ["c"], ["b"], "k") == ["k"]
    assert deaths.keys("rk", ["c", "rk"], ["b"], None) == ["rk", "c", "b"]
    assert deaths.keys("rk", ["c"], [], "") == [""]


def test_automatic_cycles_drop_only_the_offending_target() -> None:
    """R-DLX-28, R-DLX-29"""
    history = died(Annotations(), "w", "expired").deaths
    assert deaths.without_cycles(["w", "other"], history, "expired") == (["other"], ["w"])


def test_a_queue_that_expires_into_itself_drops_at_the_first_death() -> None:
    """R-DLX-31"""
    history = died(Annotations(), "p", "expired").deaths
    assert deaths.without_cycles(["p"], history, "expired") == ([], ["p"])


def test_a_rejection_since_the_last_visit_is_no_cycle() -> None:
    """R-DLX-28: up to and including the most recent entry for the queue"""
    history = died(died(Annotations(), "w", "rejected"), "p", "expired").deaths
    assert deaths.without_cycles(["w"], history, "expired") == (["w"], [])
    assert deaths.without_cycles(["p"], history, "expired") == ([], ["p"])


def test_reason_rejected_is_never_a_cycle_and_delivery_limit_is_automatic() -> None:
    """R-DLX-30, R-DLX-34"""
    history = died(Annotations(), "q", "delivery_limit").deaths
    assert deaths.without_cycles(["q"], history, "rejected") == (["q"], [])
    assert deaths.without_cycles(["q"], history, "delivery_limit") == ([], ["q"])


def test_the_same_queue_twice_in_a_history_counts_where_it_stands_first() -> None:
    """R-DLX-28"""
    history = [
        Death("w", "expired", 1, 0, "", []),
        Death("p", "rejected", 1, 0, "", []),
        Death("w", "maxlen", 1, 0, "", []),
    ]
    assert deaths.without_cycles(["w", "p"], history, "expired") == (["p"], ["w"])


def test_a_new_key_is_the_only_one_from_then_on() -> None:
    """R-DLX-12, R-DLX-22: as RabbitMQ 4.3.6 does."""
    assert not deaths.has_new_key(Annotations(), "k")
    once = died(Annotations(), "q", "rejected", routing_keys=["k", "cc"])
    assert not deaths.has_new_key(once, "k")
    assert deaths.has_new_key(once, "b")
    # It has come round to the first one by a key of another queue.
    twice = died(once, "p", "expired", routing_keys=["b"])
    assert deaths.has_new_key(twice, "k")
    assert not deaths.has_new_key(died(once, "p", "expired", routing_keys=["k", "cc"]), "k")
