"""Rings of dead letters: which there are, and how often messages go round."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from brokerd_telemetry import rings

AT = datetime(2026, 11, 20, 14, tzinfo=UTC)


def edge(source: str, target: str, n: int = 10, reason: str = "rejected") -> dict[str, Any]:
    return {"cluster": "c", "window_start": AT, "vhost": "/", "queue": source, "target": target,
            "n": n, "reason": reason}  # fmt: skip


def queue(name: str, gone: int, ready: int = 0) -> dict[str, Any]:
    return {"cluster": "c", "window_start": AT, "vhost": "/", "queue": name, "gone": gone,
            "ready_last": ready, "unacked_last": 0}  # fmt: skip


def test_letters_that_go_on_make_no_ring() -> None:
    assert rings.rows([edge("a", "b"), edge("b", "c"), edge("a", "c")], []) == []


def test_the_ring_of_the_trial_is_told() -> None:
    """5,971 letters each way from 128 messages, as somebody found them in a report."""
    edges = [edge("a", "b", 5971), edge("b", "a", 5971, "expired"), edge("a", "out", 3)]
    queues = [queue("a", 5971 + 3, 60), queue("b", 5971, 65)]
    (found,) = rings.rows(edges, queues)
    assert (found["ring"], found["queues"]) == ("a → b → a", ["a", "b"])
    assert (found["messages"], found["n"]) == (128, 2 * 5971)
    assert found["reasons"] == ["expired", "rejected"]
    assert 46 < found["rounds"] < 47


def test_a_queue_that_is_its_own_target_is_a_ring_and_rings_are_told_apart() -> None:
    edges = [edge("a", "a"), edge("b", "c"), edge("c", "d"), edge("d", "b"), edge("a", "b")]
    found = sorted(row["ring"] for row in rings.rows(edges, []))
    assert found == ["a → a", "b → c → d → b"]


def test_a_ring_of_many_queues_has_a_short_name_and_needs_no_deep_stack() -> None:
    count = 20_000
    edges = [edge(f"q{n:05}", f"q{(n + 1) % count:05}") for n in range(count)]
    (found,) = rings.rows(edges, [])
    assert len(found["queues"]) == count
    assert found["ring"].endswith("…")


def test_vhosts_and_hours_are_apart() -> None:
    other = edge("b", "a") | {"vhost": "/other"}
    assert rings.rows([edge("a", "b"), other], []) == []
