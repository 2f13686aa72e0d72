"""Maintenance windows: whether one is open, and when the next begins. PURE; times come in as UTC.

For the decision whether members may be restarted now (rollout.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from brokerd_operator.specs.broker_cluster import MaintenanceWindow

#: In the order of datetime's weekday().
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = datetime.timedelta(days=1)


def is_open(windows: Iterable[MaintenanceWindow], now: datetime.datetime) -> bool:
    """Whether `now` is inside a window; without any window it always is."""
    listed = list(windows)
    return not listed or any(
        begins <= now < begins + datetime.timedelta(milliseconds=window.duration)
        for window in listed
        # A window of at most a day that is open now began today or yesterday.
        for begins in _beginnings(window, now - _DAY, 2)
    )


def next_opening(
    windows: Iterable[MaintenanceWindow], now: datetime.datetime
) -> datetime.datetime | None:
    """When the next window begins; None without windows."""
    return min(
        (
            begins
            for window in windows
            # Eight days: today's beginning may be over already.
            for begins in _beginnings(window, now, 8)
            if begins > now
        ),
        default=None,
    )


def _beginnings(
    window: MaintenanceWindow, first: datetime.datetime, days: int
) -> Iterator[datetime.datetime]:
    hour, _, minute = window.start.partition(":")
    for offset in range(days):
        day = first + offset * _DAY
        if not window.days or DAYS[day.weekday()] in window.days:
            yield day.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
