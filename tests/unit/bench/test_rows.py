"""The comparison's table says what was measured, and no more."""

from __future__ import annotations

import pytest

from bench import rows, run


def row(key: str) -> rows.Row:
    return next(candidate for candidate in run.ROWS if candidate.key == key)


def rates(*values: float) -> list[rows.Point]:
    return [{"rate": value} for value in values]


def test_keys_of_rows_are_distinct() -> None:
    assert len(set(run.keys())) == len(run.ROWS)


def test_rows_beside_another_name_one_that_there_is() -> None:
    assert {each.beside for each in run.ROWS if each.beside} <= set(run.keys())


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
    assert row(key).aims[0].is_met_by(ratio) is is_met


def test_table_shows_median_spread_ratio_and_whether_the_target_is_met() -> None:
    figures = {
        "brokerd": {"publish-1000": rates(90_000.0, 100_000.0, 95_000.0)},
        "rabbitmq": {"publish-1000": rates(20_000.0, 19_000.0, 21_000.0)},
    }
    line = run.table([row("publish-1000")], {}, figures).splitlines()[-1]
    assert "**95,000** (90,000-100,000)" in line
    assert "**20,000** (19,000-21,000)" in line
    assert "4.75 met" in line


def test_row_that_failed_on_one_side_has_no_ratio() -> None:
    figures = {"rabbitmq": {"both": rates(10_000.0)}}
    line = run.table([row("both")], {}, figures).splitlines()[-1]
    assert line == "| publish and consume at once | msg/s | - | **10,000** | - | ≥ 2 | - | - |"


def test_each_figure_of_a_row_has_a_line_and_cpu_stands_beside_the_first() -> None:
    ours: rows.Point = {
        "p50_us": 600.0,
        "p99_us": 900.0,
        "broker_cpu_us": 812.3,
        "client_cpu_us": 1.256,
    }
    theirs: rows.Point = {"p50_us": 1_000.0, "p99_us": 1_000.0}
    figures = {"brokerd": {"publish-1": [ours]}, "rabbitmq": {"publish-1": [theirs]}}
    first, second = run.table([row("publish-1")], {}, figures).splitlines()[-2:]
    assert "| 0.60 met | ≤ 0.6 | 812 + 1.26 | - |" in first
    assert second == "|  | p99, µs | **900** | **1,000** | 0.90 | - |  |  |"


def test_a_row_of_ours_alone_is_compared_with_our_row_of_the_other_way() -> None:
    figures = {"brokerd": {"grpc": rates(50.0), "publish-1000": rates(100.0)}}
    line = run.table([row("grpc")], {}, figures).splitlines()[-1]
    assert "| - | 0.50 missed | ≥ 1 |" in line
