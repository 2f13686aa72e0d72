"""How many published bytes are in flight from this member, per queue, and who waits for fewer.

In flight: sent to a queue's leader and not answered.  Part of turn.py; stream.py asks whether a
client has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

#: Bytes of one batch from which a publisher counts as heavy: the first to be held back.
HEAVY_BYTES = 64 * 1024

#: Most bytes in flight to all queues together: the memory watermark divided by the first, but at
#: least the second.
WATERMARK_SHARE = 8
MEMBER_BYTES_MAX_LEAST = 32 * 1024 * 1024

#: In flight to one queue, where the configuration says nothing else.
QUEUE_BYTES_MAX = 32 * 1024 * 1024


class Source(Protocol):
    """Where a client's publishes are read from (amqp/flow.py: ReadGate)."""

    def hold_flow(self, reason: str) -> None:
        """Read no more: too much is in flight."""
        ...

    def release_flow(self, reason: str) -> None:
        """That has arrived."""
        ...


class InFlight:
    """State: bytes by queue, and who waits for fewer of them.

    Invariant: queues without bytes are not in `_by_queue`, and no client waits for them.
    """

    def __init__(self, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.queue_bytes_max = queue_bytes_max
        self.member_bytes_max = MEMBER_BYTES_MAX_LEAST
        self._by_queue: dict[int, int] = {}
        self._total = 0
        self._awaiting: dict[int, list[tuple[int, Callable[[], None]]]] = {}

    def set_watermark(self, limit: int) -> None:
        """Memory may be used up to `limit` before the alarm."""
        self.member_bytes_max = max(limit // WATERMARK_SHARE, MEMBER_BYTES_MAX_LEAST)

    def add(self, uid: int, size: int) -> None:
        """A command with messages for a queue has been sent."""
        self._by_queue[uid] = self._by_queue.get(uid, 0) + size
        self._total += size

    def remove(self, uid: int, size: int) -> None:
        """It has its answer."""
        self._total -= size
        left = self._by_queue[uid] - size
        if left:
            self._by_queue[uid] = left
        else:
            del self._by_queue[uid]
        if self._awaiting and (awaiting := self._awaiting.pop(uid, None)) is not None:
            if still := [each for each in awaiting if left > each[0]]:
                self._awaiting[uid] = still
            for most, has_room in awaiting:
                if left <= most:
                    asyncio.get_running_loop().call_soon(has_room)

    def room_to_await(self, uid: int, is_heavy: bool) -> int:
        """Return to how many bytes a queue has to come down before a client that has just
        published to it is read again; -1: it may go on.

        A client waits only for the queue that it published to: queues that take nothing keep no
        client from the others.  A queue that has no more than an equal part of what the member may
        have is not waited for, up to twice as much of all.
        is_heavy: the client has sent the queue much at once; the others are held back at twice as
        much.
        """
        pending, limit = self._by_queue.get(uid, 0), self.queue_bytes_max
        total, most = self._total, self.member_bytes_max
        is_everyone = pending > 2 * limit or total > 2 * most
        if total > most and (is_everyone or pending * len(self._by_queue) > most):
            limit = min(limit, pending - 1)
        if pending > limit and (is_heavy or is_everyone):
            return limit // 2
        return -1

    def when_below(self, uid: int, size: int, has_room: Callable[[], None]) -> None:
        """Have `has_room` called, later and once, when no more than `size` bytes are in flight to
        a queue that has more.
        """
        self._awaiting.setdefault(uid, []).append((size, has_room))
