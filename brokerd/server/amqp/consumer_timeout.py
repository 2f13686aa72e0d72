"""When a channel's deliveries went out, for the consumer timeout of RabbitMQ before 4.3 (R-CS-9).

Used by channel_deliveries.py and started by listener.py in profiles whose `consumer_timeout.scope`
is the channel; the other scope is the queue machine's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from brokerd.config import QueueConfig
    from brokerd.core.profiles import Profile

#: Deliveries that follow each other within this time share one mark.
MARK_MS = 1000
#: How often channels are looked at, at most (R-QQ-22: every minute).
CHECK_MS = 60_000


class Channel(Protocol):
    """A channel that watches over its deliveries."""

    def check_times(self, timeout_ms: int) -> None:
        """Close, if the oldest unsettled delivery is older than this."""
        ...


class Connection(Protocol):
    """Whose channels are looked at."""

    @property
    def sessions(self) -> Mapping[int, Channel]:
        """Return the channels by number."""
        ...


class DeliveryTimes:
    """Marks (first tag, when), ascending; a delivery's time is that of the last mark before it.

    Bounded by time: one mark a second, and none older than the oldest unsettled delivery.
    """

    __slots__ = ("_clock_ms", "_marks")

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._marks: deque[tuple[int, int]] = deque()

    def delivered(self, tag: int) -> None:
        """Deliveries from this tag on go out now."""
        now_ms = self._clock_ms()
        if not self._marks or now_ms - self._marks[-1][1] >= MARK_MS:
            self._marks.append((tag, now_ms))

    def age_ms(self, oldest_tag: int | None) -> int:
        """Return how long the oldest unsettled delivery has been out; None: there is none."""
        marks = self._marks
        if oldest_tag is None:
            marks.clear()
            return 0
        while len(marks) > 1 and marks[1][0] <= oldest_tag:
            marks.popleft()
        return self._clock_ms() - marks[0][1] if marks else 0


def watched(profile: Profile, queues: QueueConfig) -> int:
    """Return the timeout that channels watch over, in milliseconds; 0: they watch over none."""
    if profile.consumer_timeout_scope != "channel":
        return 0
    return queues.consumer_timeout_ms


def check_interval_ms(timeout_ms: int) -> int:
    """Return how often to look, so that a short timeout is kept to about half its length."""
    return max(250, min(CHECK_MS, timeout_ms // 2))


async def watch(timeout_ms: int, connections: Callable[[], Iterable[Connection]]) -> None:
    """Look at all channels of this member, for ever; not at all without a timeout."""
    if not timeout_ms:
        return
    while True:
        await asyncio.sleep(check_interval_ms(timeout_ms) / 1000)
        for connection in connections():
            for session in list(connection.sessions.values()):
                session.check_times(timeout_ms)
