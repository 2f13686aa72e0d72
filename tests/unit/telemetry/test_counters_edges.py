"""Counters at their bounds, and what only the broker itself or gRPC callers count."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.telemetry import counters
from brokerd.telemetry.counters import Counters
from tests.telemetry.fleet import content, route


@pytest.fixture
def counted() -> Counters:
    return Counters(lambda: 7_000, lambda: 50)


def rows(counted: Counters, kind: str) -> list[dict[str, Any]]:
    return [row for row in counted.take(0, 1_000_000) if row["k"] == kind]


def test_a_dead_letter_that_no_queue_takes_is_dropped_and_never_returned(
    counted: Counters,
) -> None:
    """Section 13, point 10, for what the broker publishes: nobody is there to return it to."""
    counted.internal_published("/", "dlx", route(), 2, 20)
    counted.internal_published("/", "dlx", route("q", hops=1), 3, 30)
    (row,) = rows(counted, "exchange")
    assert (row["internal_in"], row["dropped"], row["returned"]) == (5, 2, 0)
    assert (row["ae_routed"], row["copies"], row["ae_hops"]) == (3, 3, [3, 0, 0, 0])


def test_unroutable_messages_beyond_the_bound_lose_their_key_and_not_their_count(
    counted: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "ENTITIES_MAX", 2)
    for user in ("a", "b", "c", "a"):
        counted.published("/", user, "x", route(), [content("k")])
    (row,) = rows(counted, "exchange")
    assert row["dropped"] == 4
    unroutable = {row["user"]: row["n"] for row in counted.take_events(0, 1)}
    assert unroutable == {"a": 2, "b": 1}


def test_dead_letters_beyond_the_bound_are_not_told_and_known_ones_add_up(
    counted: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "ENTITIES_MAX", 1)
    for queue in ("q", "r", "q"):
        counted.dead_lettered("/", queue, "expired", "dlx", "", "at-most-once", "routed", 1, 10)
    events = counted.take_events(0, 1)
    assert [(row["queue"], row["n"], row["bytes"]) for row in events] == [("q", 2, 20)]


def test_confirms_without_times_are_given_as_numbers_or_as_items(counted: Counters) -> None:
    counted.confirmed("/", "u", 3, 1)
    counted.confirmed("/", "u", ["one", "two"], ["three"])
    taken = counted.take(0, 1)
    assert [(row["k"], row["confirmed"], row["nacked"]) for row in taken] == [("principal", 5, 2)]


def test_deliveries_are_counted_for_the_user_who_takes_them(counted: Counters) -> None:
    counted.delivered("/", "u", 3, 30, redelivered=1)
    counted.delivered("/", "u", 1, 5)
    (row,) = rows(counted, "principal")
    assert (row["out"], row["out_bytes"], row["redlv"], row["in"]) == (4, 35, 1, 0)


def test_a_state_change_becomes_an_event_with_its_time(counted: Counters) -> None:
    counted.changed("link", link="l", state="running", error=None)
    assert counted.take_events(0, 1) == [
        {"k": "link", "link": "l", "state": "running", "error": None, "t0": 7_000_000,
         "t1": 7_000_000}
    ]  # fmt: skip
    assert counted.take_events(1, 2) == []


def test_publishes_beyond_the_bound_are_confirmed_exactly_and_without_a_time(
    counted: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-PC-8: a gap of untimed publishes hides neither the runs before it nor those behind it."""
    monkeypatch.setattr(counters, "RUNS_MAX", 2)
    channel = counted.confirm_clock("/", "u")
    channel.published(1, 2, "x")
    channel.published(3, 2, "x")
    channel.published(5, 2, "x")  # There is no room for a third run.
    channel.confirmed([(2, True), (6, False)], [])
    channel.published(7, 2, "y")
    channel.confirmed([(8, True)], [])
    taken = counted.take(0, 1)
    assert [row["confirmed"] for row in taken if row["k"] == "principal"] == [8]
    timed = {row["exchange"]: row["n"] for row in taken if row["k"] == "confirm"}
    assert timed == {"x": 4, "y": 2}
