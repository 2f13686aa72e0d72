"""Charts of the report."""

from __future__ import annotations

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
