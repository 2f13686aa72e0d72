"""Findings: when they are raised and cleared, and what they advise."""

from __future__ import annotations

from brokerd_telemetry import findings
from brokerd_telemetry.findings import Hit

HIT = Hit("queue", "/", "q", 1, 0, "text")
HOURS = [f"2026-11-20T{number:02}" for number in range(10)]


def states(hits: list[int], at_once: bool = False) -> list[str]:
    found = {HOURS[number]: HIT for number in hits}
    return [f"{at[-2:]} {status}" for at, status, _, _ in findings._states(HOURS, found, at_once)]


def test_a_finding_is_raised_in_its_second_hour_and_clear_after_three() -> None:
    """8.19: no flapping."""
    assert states([1, 2]) == [
        "01 PENDING", "02 RAISED", "03 RAISED", "04 RAISED", "05 CLEAR",
    ]  # fmt: skip


def test_a_finding_that_comes_back_in_time_was_never_clear() -> None:
    assert states([1, 2, 4])[-1] == "07 CLEAR"
    assert [line for line in states([1, 2, 4]) if "CLEAR" in line] == ["07 CLEAR"]


def test_a_single_hour_does_not_raise_unless_the_rule_is_certain() -> None:
    assert states([3]) == ["03 PENDING"]
    assert states([3], at_once=True) == ["03 RAISED", "04 RAISED", "05 RAISED", "06 CLEAR"]


def test_messages_dropped_for_the_default_limit_are_a_finding_with_advice() -> None:
    (rule,) = [rule for rule in findings.RULES if rule.id == "LIMIT-DROP"]
    row = {"vhost": "v", "queue": "q", "default_limit_drop": 3}
    hit = rule.check(row)
    assert hit is not None
    assert (hit.object_type, hit.vhost, hit.name, hit.value) == ("queue", "v", "q", 3)
    assert hit.message.startswith("3 messages were dropped for the default delivery limit")
    assert (rule.severity, rule.at_once) == ("critical", True)
    assert "dead letter exchange" in rule.action
    assert "delivery-limit" in rule.action
    # None of them, and an hour that was told before the counter came.
    assert rule.check(row | {"default_limit_drop": 0}) is None
    assert rule.check({"vhost": "v", "queue": "q"}) is None
