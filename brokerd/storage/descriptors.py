"""Descriptors for the log when the process, or the machine, has none left.

A listener that was filled from outside must not look like a failed disk: the log holds some
descriptors in reserve, gives them up one after the other for files it must open, and waits where
that is not enough, for as long as it takes.  One reserve per process, as descriptors are.  For
disk.py; the server asks `waiting_s`.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import time
from pathlib import Path

logger = logging.getLogger(__name__)

#: A rotation opens two files at a time, a snapshot one; and the next rotations are to find some.
RESERVE_MAX = 16
#: Nothing tells when a descriptor is free.
PAUSE_S = 0.05
#: What open(2) says when the process, or the machine, has no descriptor left.
SHORTAGES = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """State: `_held`, descriptors of nothing; fewer than RESERVE_MAX after a shortage.

    `_waiting`: since when opens wait, on the monotonic clock, by thread.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock = threading.Lock()
        self._waiting: dict[int, float] = {}

    def waiting_s(self) -> float | None:
        """Return for how long the log has waited for a descriptor; None: it does not wait."""
        # A copy: the threads that wait come and go meanwhile.
        since = list(self._waiting.values())
        return time.monotonic() - min(since) if since else None

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open as os.open does, from the reserve if need be; never waits."""
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            return self._open_short(path, flags, mode, error)
        self._fill()
        return descriptor

    def wait_open(self, path: Path, flags: int, is_over: threading.Event, mode: int = 0o600) -> int:
        """Open, and wait until there is a descriptor; once `is_over` is set it fails at once.

        Not on the event loop: who holds the descriptors may be closed there.
        """
        try:
            return self.open(path, flags, mode)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            logger.error("no descriptor for %s, the log waits: %s, %s", path, error, _limit())
        thread, began = threading.get_ident(), time.monotonic()
        self._waiting[thread] = began
        try:
            while True:
                is_last = is_over.wait(PAUSE_S)
                try:
                    # What comes is for the file that waits, not for the reserve.
                    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
                    break
                except OSError as error:
                    if error.errno not in SHORTAGES or is_last:
                        raise
        finally:
            del self._waiting[thread]
        logger.warning("the log goes on after %.1f s without descriptors", time.monotonic() - began)
        return descriptor

    def _open_short(self, path: Path, flags: int, mode: int, error: OSError) -> int:
        """Give descriptors up until the file is open, or none is left: then `error`."""
        is_said = False
        while self._give_one_up():
            if not is_said:
                is_said = True
                logger.warning("no descriptor for %s, taking one in reserve: %s", path, error)
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as again:
                # Somebody else was faster.
                if again.errno not in SHORTAGES:
                    raise
        raise error

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


def _limit() -> str:
    return f"the limit of this process is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"


reserve = Reserve()
