"""Mergeable log-bucket histograms (design/telemetry.md §7.3).

A value x >= 1 falls into bucket floor(ln x / ln 1.02) + 1 and is read back as 2 * 1.02^i / 2.02,
which is never more than 1 % away.  Merging adds counts, so percentiles of any window are exact in
the buckets; percentiles themselves are never averaged.  Pure; used by the counters and by tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

GAMMA = 1.02
_LOG_GAMMA = math.log(GAMMA)
#: 2^53 us are 285 years; nothing real is above, and the number of buckets stays below 1,857.
VALUE_MAX = 1 << 53


class HistogramRow(TypedDict):
    """A histogram as it stands in a row: bucket indexes and their counts, in order."""

    i: list[int]
    c: list[int]
    sum_us: int
    max_us: int


def bucket_of(value: float) -> int:
    """Return the bucket of a value; 0 holds everything below 1."""
    if value < 1:
        return 0
    return int(math.log(min(value, VALUE_MAX)) / _LOG_GAMMA) + 1


def value_of(bucket: int) -> float:
    """Return the value that stands for a bucket, within 1 % of everything in it."""
    return 2.0 * GAMMA**bucket / (1.0 + GAMMA) if bucket else 0.0


class Histogram:
    """Counts by bucket.  Invariant: `count` is the sum of the bucket counts."""

    __slots__ = ("_buckets", "count", "max_us", "sum_us")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.sum_us = 0
        self.max_us = 0

    def add(self, value_us: int, count: int = 1) -> None:
        """Count a value, as often as given; a clock that went back counts as 0."""
        value_us = max(0, min(value_us, VALUE_MAX))
        bucket = bucket_of(value_us)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self.sum_us += value_us * count
        self.max_us = max(self.max_us, value_us)

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts."""
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += other.count
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile(self, share: float) -> float:
        """Return the value that this share (0..1) of all values does not exceed; 0 if empty."""
        return percentile(sorted(self._buckets.items()), share)

    def row(self) -> HistogramRow:
        """Return it as a row's field."""
        buckets = sorted(self._buckets.items())
        return {
            "i": [bucket for bucket, _ in buckets],
            "c": [count for _, count in buckets],
            "sum_us": self.sum_us,
            "max_us": self.max_us,
        }

    def __bool__(self) -> bool:
        """Return whether anything was counted."""
        return self.count > 0


def from_row(row: Mapping[str, Sequence[int] | int]) -> Histogram:
    """Read a row's field back."""
    indexes, counts = row["i"], row["c"]
    assert not isinstance(indexes, int)
    assert not isinstance(counts, int)
    histogram = Histogram()
    for bucket, count in zip(indexes, counts, strict=True):
        histogram._buckets[bucket] = histogram._buckets.get(bucket, 0) + count
        histogram.count += count
    total, highest = row["sum_us"], row["max_us"]
    assert isinstance(total, int)
    assert isinstance(highest, int)
    histogram.sum_us, histogram.max_us = total, highest
    return histogram


def percentile(buckets: Iterable[tuple[int, int]], share: float) -> float:
    """Return a percentile of (bucket, count) pairs that are in order of their buckets."""
    pairs = list(buckets)
    wanted = share * sum(count for _, count in pairs)
    seen = 0
    for bucket, count in pairs:
        seen += count
        if seen >= wanted:
            return value_of(bucket)
    return 0.0
