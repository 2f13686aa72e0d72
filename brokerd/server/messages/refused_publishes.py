"""Published messages that a queue refused without being asked: its home member is down, or it waits
with damage that lasts.

The publisher hears of it where it asked for confirms; otherwise the count and the log are all that
says so.  Called by queues/stream.py; one for all publishing channels of a member.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from brokerd.server.messages.repeated_warnings import RepeatedWarnings


class RefusedPublishes:
    """State: how many there were, and which warnings were given lately."""

    def __init__(self, reason_of: Callable[[int], str]) -> None:
        """reason_of(uid): why a queue refuses, with its name."""
        #: Messages since this member's start, each once for each queue that refused it.
        self.total = 0
        self._reason_of = reason_of
        self._warnings = RepeatedWarnings()

    def count(self, uid: int, count: int) -> None:
        """Count, and warn once a minute for each reason."""
        self.total += count
        if reason := self._reason_of(uid):
            self._warnings.warn(f"published messages are refused: {reason}", time.monotonic())
