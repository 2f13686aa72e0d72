"""Charts of the report."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from brokerd_telemetry import charts


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.4, 0.5), (1, 1), (3, 5), (51, 100)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert charts.nice_top(value) == pytest.approx(top)


def test_charts_bear_no_values_one_value_and_many() -> None:
    assert charts.sparkline([], "x") == ""
    for values in ([0.0], [5.0], [float(number) for number in range(10_000)]):
        assert "polyline" in charts.sparkline(values, "x")
        assert "nan" not in charts.lines([("a", values)], ("b", "c"), "u")
    assert max(charts.thinned([0.0] * 5000 + [9.0])) == 9.0


def test_names_in_charts_are_escaped() -> None:
    assert "<script>" not in charts.lines([("<script>", [1.0])], ("<b>", "c"), "<i>")


def flow(*seconds: int, step_s: float = 10.0) -> list[dict[str, Any]]:
    begin = datetime(2026, 11, 20, 14, tzinfo=UTC)
    return [
        {"window_start": begin + timedelta(seconds=at), "step_s": step_s, "enq": 50}
        for at in seconds
    ]


def points(chart: str) -> list[list[str]]:
    return [found.split() for found in re.findall(r'<polyline [^>]*points="([^"]*)"', chart)]


def test_a_minute_has_a_shape_and_not_one_flat_line() -> None:
    chart = charts.flow(flow(0, 30), ["enq"], ["enqueued"])
    ((first, *middle, last),) = points(chart)
    assert len(middle) == 2
    heights = [float(point.split(",")[1]) for point in (first, *middle, last)]
    assert heights[0] == heights[3] < heights[1] == heights[2]
    assert "2026-11-20 14:00:00" in chart
    assert "14:00:40 UTC" in chart


def test_a_day_has_as_many_points_as_there_is_room_for_and_intervals_are_no_gaps() -> None:
    (day,) = points(charts.flow(flow(*range(0, 86_400, 10)), ["enq"], ["enqueued"]))
    assert len(day) <= charts.POINTS_MAX
    # Members that tell once a minute: no zeros between what they tell.
    (slow,) = points(charts.flow(flow(0, 60, 120, step_s=60.0), ["enq"], ["enqueued"]))
    assert len({point.split(",")[1] for point in slow}) == 1
    assert charts.flow([], ["enq"], ["enqueued"]) == ""


def test_a_sparkline_of_zeros_is_a_line_at_the_bottom() -> None:
    flat = charts.sparkline([0.0, 0.0, 0.0], "x")
    assert "polygon" not in flat
    assert {point.split(",")[1] for point in points(flat)[0]} == {"31.0"}
    assert "polygon" in charts.sparkline([0.0, 1.0], "x")
