"""Log-bucket histograms (design/telemetry.md §7.3)."""

from __future__ import annotations

import random

import pytest

from brokerd.telemetry import histograms
from brokerd.telemetry.histograms import Histogram


@pytest.mark.parametrize("value", [1, 2, 3, 10, 99, 1000, 123_456, 10**9, histograms.VALUE_MAX])
def test_a_value_is_read_back_within_one_percent(value: int) -> None:
    assert histograms.value_of(histograms.bucket_of(value)) == pytest.approx(value, rel=0.01)


def test_percentiles_of_a_log_normal_sample_are_within_one_percent() -> None:
    rng = random.Random(1)
    values = sorted(int(rng.lognormvariate(7, 1)) + 1 for _ in range(20_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.95, 0.99, 0.999):
        exact = values[int(share * len(values)) - 1]
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.011)
    assert histogram.count == 20_000
    assert histogram.max_us == values[-1]
    assert histogram.sum_us == sum(values)


def test_merging_equals_counting_together() -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in range(1, 500, 7):
        one.add(value)
        both.add(value)
    for value in range(300, 90_000, 501):
        other.add(value, 3)
        both.add(value, 3)
    one.merge(other)
    assert one.row() == both.row()


def test_a_row_can_be_read_back() -> None:
    histogram = Histogram()
    histogram.add(343)
    histogram.add(90_000, 4)
    row = histogram.row()
    assert sum(row["c"]) == histogram.count
    assert histograms.from_row(dict(row)).row() == row  # type: ignore[arg-type]


def test_values_below_one_and_beyond_the_bound_have_a_place() -> None:
    histogram = Histogram()
    histogram.add(-5)
    histogram.add(0)
    histogram.add(1 << 80)
    assert histogram.row()["i"][0] == 0
    assert histogram.row()["c"][0] == 2
    assert histogram.row()["i"][1] == histograms.bucket_of(histograms.VALUE_MAX) < 1900


def test_an_empty_histogram_has_no_percentile_and_is_false() -> None:
    assert Histogram().percentile(0.99) == 0.0
    assert not Histogram()


def test_the_buckets_of_annex_a_are_about_a_millisecond() -> None:
    # design/telemetry.md §14.1: i 343, 361, 379; max 1805 us.
    assert histograms.bucket_of(1805) == 379
    assert histograms.value_of(343) == pytest.approx(882, rel=0.01)
