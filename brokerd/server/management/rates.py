"""Rates: what figures gained between two samples, for `_details.rate` of the management API.

Samples of this member's replicas are taken while somebody asks; nothing is done per message.  What
stands still is not looked at and keeps its sample: 10,000 idle queues cost about 1.5 MB, busy ones
7 MB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence, Set
from typing import TYPE_CHECKING, TypeAlias

from brokerd.server.loop.chunks import in_chunks

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_clock import Moved

#: Gauges and counters of one queue, in an order that its taker fixes.
Sample: TypeAlias = tuple[int, ...]

#: RabbitMQ's collect_statistics_interval.
INTERVAL_S = 5.0
#: Without anybody who asks, sampling ends after so long: longer than autoscalers and exporters
#: leave between two looks.
IDLE_S = 300.0


class Rates:
    """State: the last two samples of each queue here, and how far apart they were taken; the
    queues whose two samples differ, which are to come to rest.
    """

    def __init__(
        self,
        uids: Callable[[], Sequence[int]],
        take: Callable[[int], Sample | None],
        moved: Moved,
        always: Collection[int] = (),
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """take(uid): None where the queue is gone or not here.  always: what moves without being
        among `moved`.  begin: called before some are taken, in the turn in which `moved` is asked.
        """
        self._uids = uids
        self._take = take
        self._moved = moved
        self._always = always
        self._begin = begin
        self._moving: set[int] = set()
        self._samples: dict[int, tuple[Sample, Sample]] = {}
        self._interval_s = 0.0
        self._wanted_until = 0.0
        self._wanted = asyncio.Event()

    def of(self, uid: int) -> tuple[float, ...]:
        """Return what each figure gained a second, () while that is not known."""
        found = self._samples.get(uid)
        if found is None or not self._interval_s:
            return ()
        before, last = found
        if before is last:
            return (0.0,) * len(last)
        return tuple(
            round((b - a) / self._interval_s, 4) for a, b in zip(before, last, strict=True)
        )

    @property
    def moving(self) -> Set[int]:
        """Return the queues of which some rate is not 0, or was not until the last sample."""
        return self._moving

    def want(self) -> None:
        """Somebody asks, and may again."""
        self._wanted_until = asyncio.get_running_loop().time() + IDLE_S
        self._wanted.set()

    async def run(self) -> None:
        """Sample while somebody asks, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            taken_at = loop.time()
            await self._sample(0.0)
            while loop.time() < self._wanted_until:
                await asyncio.sleep(taken_at + INTERVAL_S - loop.time())
                now = loop.time()
                await self._sample(now - taken_at)
                taken_at = now
            self._wanted.clear()
            self._samples = {}
            self._moving.clear()
            self._interval_s = 0.0

    async def _sample(self, interval_s: float) -> None:
        moved, is_all = self._moved.take()
        self._begin()
        if is_all or not self._samples:
            uids = self._uids()
        else:
            uids = list(self._moving.union(moved, self._always))
        self._interval_s = interval_s
        async for some in in_chunks(uids):
            for uid in some:
                self._look_at(uid)

    def _look_at(self, uid: int) -> None:
        taken = self._take(uid)
        if taken is None:
            self._samples.pop(uid, None)
            self._moving.discard(uid)
            return
        pair = self._samples.get(uid)
        if pair is None:
            pair = taken, taken
        elif pair[1] != taken:
            pair = pair[1], taken
        elif pair[0] is not pair[1]:
            pair = pair[1], pair[1]
        # Else as it was: new objects of 10,000 queues are 7 ms of Python's collector.
        self._samples[uid] = pair
        if pair[0] is pair[1]:
            self._moving.discard(uid)
        else:
            self._moving.add(uid)
