"""What unfinished and unhandled gRPC requests may hold in memory: per connection, and in all.

No I/O.  Small requests are counted as they come; a large message is promised its memory before its
bytes are asked for, whole or not at all, so that those that are on the way can always be finished.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

#: Of one connection: a message of 16 MiB and others beside it.
CONNECTION_BYTES_MAX = 32 * 1024 * 1024
#: Large messages that wait for their promise, at all connections together.
WAITING_MAX = 1024
#: Those that are asked each time when bytes are free.
ASKED_MAX = 8


class Budget:
    """Bytes of all connections (without `parent`), or of one (part of the parent's)."""

    def __init__(self, limit: int, parent: Budget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._parent = parent
        #: Those who wait for a promise, in order; the parent's serves all.
        self._waiting: dict[Callable[[], bool], None] = {} if parent is None else parent._waiting

    def take(self, size: int, limit_parts: int = 4) -> bool:
        """Count bytes; False if they would exceed `limit_parts` quarters of the limit."""
        parent = self._parent
        if self.used + size > self.limit * limit_parts // 4:
            return False
        if parent is not None and not parent.take(size, limit_parts):
            return False
        self.used += size
        return True

    def promise(self, size: int) -> bool:
        """The same for a large message, before it comes; a quarter is left to small ones."""
        return self.take(size, limit_parts=3)

    def reserve(self, size: int) -> bool:
        """The same for what a call may have for as long as it lasts: half is left to messages that
        are promised theirs.
        """
        return self.take(size, limit_parts=1)

    def give(self, size: int) -> None:
        """These bytes are free again."""
        self.used -= size
        if self._parent is not None:
            self._parent.give(size)

    def wait(self, attempt: Callable[[], bool]) -> bool:
        """Have `attempt` called when bytes are free, until it is True; False: too many do."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting[attempt] = None
        return True

    def leave(self, attempt: Callable[[], bool]) -> None:
        """It waits no longer."""
        self._waiting.pop(attempt, None)

    def serve(self) -> None:
        """Let some of those who wait try again, in turn."""
        for attempt in list(islice(self._waiting, ASKED_MAX)):
            self._waiting.pop(attempt, None)
            if not attempt():
                # Behind the others: its own connection may be what has no room.
                self._waiting[attempt] = None
