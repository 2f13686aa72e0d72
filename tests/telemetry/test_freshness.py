"""Until when findings count, by the rhythm of the runs before (ADR 41)."""

from __future__ import annotations

from brokerd_telemetry import freshness

HOUR_US = freshness.HOUR_US


def hours(*ends: float) -> list[int]:
    """Return the ends of runs, as they are noted one after the other."""
    found: list[int] = []
    for end in ends:
        found = freshness.noted(found, int(end * HOUR_US))
    return found


def last_rows(*ends: float) -> float:
    """Return for how many hours the last of these runs counts."""
    found = hours(*ends)
    return (freshness.until_us(found, found[-1]) - found[-1]) / HOUR_US


def test_findings_count_for_two_rhythms_and_an_hour() -> None:
    assert last_rows(1, 2, 3, 4) == 3
    assert last_rows(24, 48, 72) == 49
    assert last_rows(0.02, 0.04, 0.06) == 3


def test_neither_an_outage_nor_a_run_by_hand_changes_the_rhythm() -> None:
    assert last_rows(1, 2, 3, 200, 201, 202) == 3
    assert last_rows(24, 48, 72, 72.1, 96, 120) == 49


def test_a_first_run_counts_for_a_day_and_an_empty_one_is_none() -> None:
    assert last_rows(5) == 25
    assert hours(5, 5, 5) == [5 * HOUR_US]
    assert freshness.until_us([], 7) == 7 + freshness.UNKNOWN_US


def test_few_runs_are_remembered() -> None:
    assert len(hours(*range(100))) == freshness.ENDS_KEPT
