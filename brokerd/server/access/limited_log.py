"""Log lines that strangers cause: a few at once, then one a second, and how many were left out.

For lines of which anybody can cause any number: refused logins, refused connections.
"""

from __future__ import annotations

import asyncio
import logging
import time

#: Lines that are written at once.
BURST = 20
#: Time in which one more line may be written.
EVERY_S = 1.0
#: Lines that were left out are counted out loud after so much time.
COUNTED_S = 5.0


class LimitedLog:
    """Counts what it leaves out; `what` names it, as in "refused logins"."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._lines = float(BURST)
        self._filled_s = time.monotonic()
        self._left_out = 0

    def write(self, level: int, text: str) -> None:
        """Write a line if there have not been too many."""
        now_s = time.monotonic()
        self._lines = min(self._lines + (now_s - self._filled_s) / EVERY_S, BURST)
        self._filled_s = now_s
        if self._lines >= 1:
            self._lines -= 1
            self._log.log(level, "%s", text)
            return
        self._left_out += 1
        if self._left_out == 1:
            asyncio.get_running_loop().call_later(COUNTED_S, self._count)

    def _count(self) -> None:
        self._log.warning("%d %s more than the log shows", self._left_out, self._what)
        self._left_out = 0
