"""What was given up: kinds of messages told apart without bodies and values, within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.amqp.properties import BasicProperties
from brokerd.telemetry import poison_rows
from brokerd.telemetry.poison_rows import LOOKS_A_MINUTE, PoisonRows, fingerprint


def fp(key: str = "k", **fields: Any) -> str:
    return fingerprint(key, BasicProperties(**fields).encode())


def test_messages_that_look_alike_have_one_fingerprint() -> None:
    same = fp(headers={"b": 1, "a": "x"}, content_type="text/plain")
    assert len(same) == 16
    assert same == fp(headers={"a": "y", "b": 2}, content_type="text/plain", priority=3)
    # What the broker adds from round to round tells nothing of the message.
    own = {"x-death": [], "x-first-death-queue": "q", "x-delivery-count": 4}
    assert same == fp(headers={"a": 1, "b": 2, **own}, content_type="text/plain")


def test_what_the_publisher_says_tells_messages_apart() -> None:
    kinds = [
        fp(), fp("l"), fp(content_type="a"), fp(message_id="a"), fp(type="a"), fp(app_id="a"),
        fp(headers={"a": 1}), fp(headers={"a": 1, "b": 1}), fp(headers={"a', 'b": 1}),
        fp(message_id=""),
    ]  # fmt: skip
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("header", [b"", b"\xff", b"\x20\x00\x00\x00\xff\xff", b"\x80\x00\x05a"])
def test_properties_that_cannot_be_read_are_as_none(header: bytes) -> None:
    assert fingerprint("k", header) == fp()


def test_messages_are_added_up_by_queue_kind_and_end() -> None:
    rows = PoisonRows(lambda: 0)
    for tries, ended in ((4, "routed"), (6, "routed"), (0, "routed"), (4, "dlx_missing")):
        rows.given_up("/", "q", tries, "k", b"\0\0", ended)
    routed, missing = rows.take(5, 9)
    assert routed == {
        "k": "redel", "t0": 5, "t1": 9, "vhost": "/", "queue": "q", "fp": fp(), "ended": "routed",
        "n": 3, "tries": 6, "redeliveries": 8,
    }  # fmt: skip
    assert (missing["ended"], missing["n"]) == ("dlx_missing", 1)
    assert rows.take(9, 12) == []


def test_a_queue_is_looked_at_so_often_in_a_minute_and_the_rest_is_counted() -> None:
    now = [0]
    rows = PoisonRows(lambda: now[0])
    for number in range(LOOKS_A_MINUTE + 7):
        rows.given_up("/", "q", 3, f"k{number}", b"\0\0", "routed")
    rows.given_up("/", "other", 3, "k", b"\0\0", "routed")
    told = {(row["queue"], row["fp"] == ""): row["n"] for row in rows.take(0, 1)}
    assert told == {("q", False): 1, ("q", True): 7, ("other", False): 1}
    now[0] = poison_rows.MINUTE_MS
    rows.given_up("/", "q", 3, "k", b"\0\0", "routed")
    assert [row["fp"] for row in rows.take(1, 2)] == [fp()]


def test_rows_of_an_interval_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison_rows, "ROWS_MAX", 2)
    rows = PoisonRows(lambda: 0)
    for number in range(4):
        rows.given_up("/", f"q{number}", 3, "k", b"\0\0", "routed")
    rows.given_up("/", "q0", 3, "k", b"\0\0", "routed")
    assert [(row["queue"], row["n"]) for row in rows.take(0, 1)] == [("q0", 2), ("q1", 1)]
