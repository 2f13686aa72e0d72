"""Descriptors for the log when the process, or the machine, has none left.

A listener that was filled from outside must not look like a failed disk: the log holds some
descriptors in reserve, gives them up one after the other for files it must open, and waits a while
where that is not enough.  One reserve per process, as descriptors are.  For disk.py.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path

logger = logging.getLogger(__name__)

#: A rotation opens two files at a time, a snapshot one; and the next rotations are to find some.
RESERVE_MAX = 16
#: How long an open waits for others to close theirs before it fails.
PATIENCE_S = 10.0
PAUSE_S = 0.05


class Reserve:
    """State: `_held`, descriptors of nothing; fewer than RESERVE_MAX after a shortage."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock = threading.Lock()
        # Nobody sets it: nothing tells when a descriptor is free.
        self._wait = threading.Event().wait

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open as os.open does, from the reserve if need be; OSError after the patience."""
        give_up_at = None
        while True:
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                now = time.monotonic()
                if give_up_at is None:
                    give_up_at = now + PATIENCE_S
                    logger.warning("no descriptor for %s, taking one in reserve: %s", path, error)
                if self._give_one_up():
                    continue
                if now >= give_up_at:
                    raise
                self._wait(PAUSE_S)
                continue
            if give_up_at is None:
                self._fill()
            return descriptor

    def _give_one_up(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def _fill(self) -> None:
        if len(self._held) == RESERVE_MAX:
            return
        with self._lock:
            try:
                while len(self._held) < RESERVE_MAX:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                # Short again already; the next open that finds one tries to hold more.
                return


reserve = Reserve()
