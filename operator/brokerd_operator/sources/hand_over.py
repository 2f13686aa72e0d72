"""Calls from the thread of a watch to the loop of the engine: in order, a slice of them at a time.

After a start there is an event for each of thousands of resources; between two slices the loop
does everything else that is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

#: Calls of one slice: some milliseconds, were each of them about a new resource.
SLICE = 50


class HandOver:
    """Owns the calls that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        #: Whether the loop knows that something waits: it is woken once, not for each call.
        self._is_told = False

    def give(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call a function soon; from any thread."""
        with self._lock:
            self._waiting.append((function, arguments))
            if self._is_told:
                return
            self._is_told = True
        # The loop may be closed at the very end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        with self._lock:
            count = min(len(self._waiting), SLICE)
            calls = [self._waiting.popleft() for _ in range(count)]
            self._is_told = bool(self._waiting)
            if self._is_told:
                self._loop.call_soon(self._run)
        for function, arguments in calls:
            try:
                function(*arguments)
            except Exception as error:
                # As the loop does it with a call of its own: the others come all the same.
                context = {"message": "a call from a watch failed", "exception": error}
                self._loop.call_exception_handler(context)
