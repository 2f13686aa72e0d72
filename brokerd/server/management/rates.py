"""Rates: what counters gained between two samples, for `_details.rate` of the management API.

Samples are taken here, of this member's replicas and counters, while somebody asks; nothing is done
per message.  A queue that did not change keeps its sample, so that 10,000 idle ones cost two
references each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

#: Gauges and counters of one thing, in an order that its kind fixes.
Sample: TypeAlias = tuple[int, ...]
Take: TypeAlias = Callable[[], Mapping[Hashable, Sample]]

#: RabbitMQ's collect_statistics_interval.
INTERVAL_S = 5.0
#: Without anybody who asks, sampling ends after so long.
IDLE_S = 300.0


class Rates:
    """State: the last two samples of everything, and when they were taken."""

    def __init__(self) -> None:
        self._takes: dict[str, Take] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        await asyncio.sleep(INTERVAL_S)
