"""Conditions: meanings of reasons, merging, and the verdict of kstatus on what comes out."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator import conditions
from brokerd_operator.conditions import Condition, Verdict

NOW = "2026-11-20T15:00:00Z"
LATER = "2026-11-20T16:00:00Z"


def body(reason: str, generation: int = 3, observed: int = 3, **metadata: Any) -> dict[str, Any]:
    found = conditions.standard(reason, "because", observed)
    return {
        "metadata": {"generation": generation, **metadata},
        "status": {
            "observedGeneration": observed,
            "conditions": conditions.merge([], found, NOW),
        },
    }


@pytest.mark.parametrize("reason", sorted(conditions.REASONS))
def test_every_reason_has_one_consistent_meaning(reason: str) -> None:
    """Never both: Reconciling promises progress, Stalled asks for a human."""
    meaning = conditions.REASONS[reason]
    assert not (meaning.is_reconciling and meaning.is_stalled)
    if meaning.ready == conditions.TRUE:
        assert not meaning.is_reconciling
        assert not meaning.is_stalled


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Applied", Verdict.CURRENT),
        ("Adopted", Verdict.CURRENT),
        ("WaitingForVhost", Verdict.IN_PROGRESS),
        ("BrokerError", Verdict.IN_PROGRESS),
        ("InvalidName", Verdict.FAILED),
        ("NotGranted", Verdict.FAILED),
        ("FightingDrift", Verdict.FAILED),
        ("Paused", Verdict.IN_PROGRESS),
        ("Expired", Verdict.IN_PROGRESS),
    ],
)
def test_kstatus_takes_each_reason_as_meant(reason: str, expected: Verdict) -> None:
    assert conditions.verdict(body(reason))[0] is expected


def test_kstatus_waits_for_the_generation_and_for_deletion() -> None:
    assert conditions.verdict(body("Applied", generation=4))[0] is Verdict.IN_PROGRESS
    assert conditions.verdict(body("Applied", deletionTimestamp=NOW))[0] is Verdict.TERMINATING
    fresh = {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}
    assert conditions.verdict(fresh)[0] is Verdict.IN_PROGRESS


def test_a_resource_without_any_status_is_current_to_kstatus() -> None:
    """The reason for status.default in the CRDs (design/operator.md §6, measured with Helm 4)."""
    assert conditions.verdict({"metadata": {"generation": 1}})[0] is Verdict.CURRENT


def test_unchanged_status_keeps_its_time() -> None:
    first = conditions.merge([], conditions.standard("Applied", "a", 1), NOW)
    again = conditions.merge(first, conditions.standard("Adopted", "b", 2), LATER)
    assert again[0]["lastTransitionTime"] == NOW
    assert again[0]["reason"] == "Adopted"
    assert again[0]["observedGeneration"] == 2
    failed = conditions.merge(again, conditions.standard("BrokerError", "c", 2), LATER)
    assert failed[0]["lastTransitionTime"] == LATER


def test_conditions_that_no_longer_hold_go_and_foreign_ones_stay() -> None:
    foreign = Condition("Audited", "False", "SomebodyElses", "m", 1, NOW)
    waiting = conditions.standard("WaitingForVhost", "m", 1)
    first = conditions.merge([foreign.to_json()], waiting, NOW)
    assert [item["type"] for item in first] == ["Ready", "Audited", "Reconciling"]
    second = conditions.merge(first, conditions.standard("Applied", "m", 1), LATER)
    assert [item["type"] for item in second] == ["Ready", "Audited"]


def test_merging_twice_changes_nothing() -> None:
    found = [*conditions.standard("Applied", "m", 1), conditions.in_sync((), 1)]
    first = conditions.merge([], found, NOW)
    assert conditions.merge(first, reversed(found), LATER) == first


def test_status_is_the_same_when_only_times_differ() -> None:
    left = body("Applied")["status"]
    right = {**left, "conditions": [{**left["conditions"][0], "lastTransitionTime": LATER}]}
    assert left != right
    assert conditions.is_same_status(left, right)
    assert not conditions.is_same_status(left, {**left, "observedGeneration": 4})
    assert not conditions.is_same_status(left, body("BrokerError")["status"])


def test_messages_hold_no_logins_and_are_cut() -> None:
    """SEC-22."""
    found = conditions.build("Ready", False, "BrokerError", "amqp://user:s3cret@host/v down", 1)
    assert found.message == "amqp://host/v down"
    long = conditions.build("Ready", False, "BrokerError", "x" * 5000, 1)
    assert len(long.message) == conditions.MESSAGE_MAX


@pytest.mark.parametrize("reason", ["", "with space", "-", "Ends:", "x" * 1025])
def test_reasons_that_the_api_server_would_refuse_are_errors(reason: str) -> None:
    with pytest.raises(ValueError, match="not a reason"):
        conditions.build("Ready", True, reason, "m", 1)


def test_unknown_reason_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        conditions.standard("Whatever", "m", 1)


def test_drift_names_at_most_five_paths() -> None:
    found = conditions.in_sync([f"settings.k{n}" for n in range(7)], 2)
    assert found.status == "False"
    assert found.reason == "Drifted"
    assert found.message.count("settings.") == 5
