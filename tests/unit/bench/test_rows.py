"""The comparison's table says what was measured, and no more."""

from __future__ import annotations

import pytest

from bench import rows, run


def row(key: str) -> rows.Row:
    return next(candidate for candidate in rows.ROWS if candidate.key == key)


def test_keys_of_rows_are_distinct() -> None:
    assert len(set(run.keys())) == len(rows.ROWS)


@pytest.mark.parametrize(
    ("key", "ratio", "is_met"),
    [
        ("publish-1000", 4.0, True),
        ("publish-1000", 3.9, False),
        ("publish-1", 0.6, True),
        ("publish-1", 0.7, False),
    ],
)
def test_target_is_a_floor_for_rates_and_a_ceiling_for_latency(
    key: str, ratio: float, is_met: bool
) -> None:
    assert row(key).is_met_by(ratio) is is_met


def test_table_shows_median_spread_ratio_and_whether_the_target_is_met() -> None:
    figures = {
        "brokerd": {"publish-1000": [90_000.0, 100_000.0, 95_000.0]},
        "rabbitmq": {"publish-1000": [20_000.0, 19_000.0, 21_000.0]},
    }
    line = run.table([row("publish-1000")], {}, figures).splitlines()[-1]
    assert "**95,000** (90,000-100,000)" in line
    assert "**20,000** (19,000-21,000)" in line
    assert "4.75 met" in line


def test_row_that_failed_on_one_side_has_no_ratio() -> None:
    figures = {"rabbitmq": {"both": [10_000.0]}}
    line = run.table([row("both")], {}, figures).splitlines()[-1]
    assert line == "| publish and consume at once | msg/s | - | **10,000** | - | ≥ 2 |"
