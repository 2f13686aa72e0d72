"""Counters of exchanges, users and confirms: each message at one place, by one outcome."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.telemetry import counters
from brokerd.telemetry.counters import Counters
from brokerd.telemetry.top_keys import KEYS_MAX, TopKeys
from tests.telemetry.fleet import content, route

OUTCOMES = ("routed", "ae_routed", "returned", "dropped", "ae_missing", "ae_cycle")


class Clock:
    def __init__(self) -> None:
        self.us = 1_000_000

    def ms(self) -> int:
        return self.us // 1000

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counted(clock: Clock) -> Counters:
    return Counters(clock.ms, clock.now_us)


def rows(counted: Counters, kind: str, at_us: int = 1_000_000) -> list[dict[str, Any]]:
    return [row for row in counted.take(0, at_us) if row["k"] == kind]


@pytest.mark.parametrize(
    ("result", "mandatory", "outcome"),
    [
        (route("q"), False, "routed"),
        (route("q", "r"), True, "routed"),
        (route("q", hops=1), False, "ae_routed"),
        (route("q", hops=2, missing=True), False, "ae_routed"),
        (route(), True, "returned"),
        (route(), False, "dropped"),
        (route(hops=1), True, "returned"),
        (route(missing=True), True, "ae_missing"),
        (route(missing=True), False, "ae_missing"),
        (route(cycle=True), True, "ae_cycle"),
        (route(cycle=True, missing=True), False, "ae_cycle"),
    ],
)
def test_a_message_has_exactly_one_outcome(
    counted: Counters, result: Any, mandatory: bool, outcome: str
) -> None:
    """design/telemetry.md §13.10: the cause comes before its effect."""
    counted.published("/", "u", "x", result, [content("k"), content("k")], mandatory)
    (row,) = rows(counted, "exchange")
    assert {name: row[name] for name in OUTCOMES if row[name]} == {outcome: 2}
    assert row["in"] == sum(row[name] for name in OUTCOMES) == 2
    assert row["in_bytes"] == 200
    assert row["copies"] == 2 * len(result.queues)
    assert sum(row["ae_hops"]) == row["ae_routed"]


def test_hops_are_counted_up_to_four_and_more(counted: Counters) -> None:
    for hops in (1, 2, 3, 4, 9):
        counted.published("/", "u", "x", route("q", hops=hops), [content("k")])
    (row,) = rows(counted, "exchange")
    assert row["ae_hops"] == [1, 1, 1, 2]


def test_what_the_broker_publishes_is_not_billed_as_ingress(counted: Counters) -> None:
    counted.internal_published("/", "dlx", route("a", "b"), 3, 30, copies_each=1)
    (row,) = rows(counted, "exchange")
    assert (row["in"], row["internal_in"], row["routed"], row["copies"]) == (0, 3, 3, 3)
    assert not rows(counted, "principal")


def test_a_row_is_a_delta_and_quiet_ones_only_say_that_they_live(counted: Counters) -> None:
    counted.published("/", "u", "x", route("q"), [content("k")])
    assert rows(counted, "exchange", 1_000_000)[0]["in"] == 1
    assert rows(counted, "exchange", 2_000_000) == []
    (row,) = rows(counted, "exchange", 1_000_000 + counters.HEARTBEAT_US)
    assert row["hb"] is True
    assert row["in"] == 0
    assert rows(counted, "exchange", 1_000_000 + counters.FORGET_US) == []
    assert rows(counted, "exchange", 1_000_000 + 2 * counters.FORGET_US) == []


def test_confirms_are_counted_exactly_with_multiple_singles_and_nacks(
    counted: Counters, clock: Clock
) -> None:
    """R-PC-8: one ack with multiple covers everything below that is not decided yet."""
    channel = counted.confirm_clock("/", "u")
    channel.published(1, 10, "x")
    channel.published(11, 5, "y")
    clock.us += 2_000
    channel.confirmed([(7, False), (12, False)], [5])
    channel.confirmed([(6, True)], [])
    channel.confirmed([(15, True)], [])
    taken = counted.take(0, 1)
    (principal,) = [row for row in taken if row["k"] == "principal"]
    assert (principal["confirmed"], principal["nacked"]) == (14, 1)
    exchanges = {row["exchange"]: row for row in taken if row["k"] == "exchange"}
    assert (exchanges["x"]["confirmed"], exchanges["x"]["nacked"]) == (9, 1)
    assert exchanges["y"]["confirmed"] == 5
    confirms = {row["exchange"]: row for row in taken if row["k"] == "confirm"}
    assert confirms["x"]["n"] == sum(confirms["x"]["total"]["c"]) == 9
    assert confirms["x"]["total"]["sum_us"] == 9 * 2_000


def test_a_long_channel_keeps_only_what_is_unconfirmed(counted: Counters) -> None:
    channel = counted.confirm_clock("/", "u")
    for number in range(1, 5_000):
        channel.published(number, 1, "x")
        channel.confirmed([(number, False)], [])
    assert len(channel._runs) == len(channel._firsts) == 0
    assert not channel._singles
    (row,) = rows(counted, "principal")
    assert row["confirmed"] == 4_999


def test_unroutable_keys_stay_bounded_and_their_sum_is_exact(counted: Counters) -> None:
    """R-PUB-8: every unroutable message is counted, however many keys there are."""
    for number in range(500):
        counted.published("/", "u", "x", route(), [content(f"k{number % 60}"), content("often")])
    events = [row for row in counted.take_events(0, 1) if row["k"] == "unr"]
    assert len(events) == KEYS_MAX
    assert sum(row["n"] for row in events) == 1000
    assert events[0]["rk"] == "often"
    assert events[0]["n"] - events[0]["err"] <= 500 <= events[0]["n"]


def test_a_huge_routing_key_is_cut() -> None:
    top = TopKeys()
    top.add("x" * 100_000)
    assert len(top.rows()[0][0]) == 128


def test_entities_beyond_the_bound_are_counted_together(
    counted: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "ENTITIES_MAX", 3)
    for number in range(10):
        counted.published("/", "u", f"x{number}", route("q"), [content("k")])
    found = {row["exchange"]: row["in"] for row in rows(counted, "exchange")}
    assert found == {"x0": 1, "x1": 1, "x2": 1, counters.OVERFLOW: 7}


def test_events_beyond_the_bound_become_a_gap(
    counted: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "EVENTS_MAX", 2)
    for _ in range(5):
        counted.alarm(0, 1, 100, 90)
    events = counted.take_events(0, 1)
    assert [row["k"] for row in events] == ["wm", "wm", "gap"]
    assert events[-1]["rows"] == 3


def test_a_throttled_connection_is_told_and_added_to_its_user(counted: Counters) -> None:
    counted.throttle("/", "u", "c1", "connection_blocked", 1500, "memory")
    (row,) = rows(counted, "principal")
    assert row["blocked_ms"] == 1500
    (event,) = counted.take_events(0, 1)
    assert (event["k"], event["user"], event["blocked_ms"]) == ("throttle", "u", 1500)


def test_dead_letters_add_up_by_outcome(counted: Counters) -> None:
    for outcome in ("routed", "routed", "unroutable"):
        counted.dead_lettered("/", "q", "rejected", "dlx", "", "at-most-once", outcome, 1, 10)
    events = {row["outcome"]: row["n"] for row in counted.take_events(0, 1)}
    assert events == {"routed": 2, "unroutable": 1}


def test_a_dead_letter_that_no_queue_takes_is_dropped_and_never_returned(
    counted: Counters,
) -> None:
    """telemetry.md §13.10, for what the broker publishes: nobody is there to return it to."""
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


def test_a_state_change_becomes_an_event_with_its_time(counted: Counters, clock: Clock) -> None:
    clock.us = 7_000_000
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
