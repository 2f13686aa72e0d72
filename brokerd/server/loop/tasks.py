"""Tasks that run beside something and end with it: with a member, with a client's connection.

A component that starts work receives `spawn` in its constructor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


def log_failure(error: BaseException | None) -> None:
    """Log why a task failed, None if it did not."""
    if error is not None:
        log.error("background task failed", exc_info=error)


class Tasks:
    """Owns the tasks that have not ended.  The failure of one ends no other."""

    def __init__(self, ended: Callable[[BaseException | None], None] = log_failure) -> None:
        """ended(why it failed, or None) is called behind each task."""
        self._ended = ended
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with its owner at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._ended(None if task.cancelled() else task.exception())

    def cancel(self) -> None:
        """End all of them."""
        for task in self._running:
            task.cancel()
