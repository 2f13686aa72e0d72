"""Who is called around a flush of the host: before groups run, and after all of them have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class FlushCalls:
    """State: whom to call, each once, in the order of asking; one's fault is not the others'."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before: list[Callable[[], None]] = []
        #: None: no flush is under way.
        self._after: list[Callable[[], None]] | None = None

    def before(self, callback: Callable[[], None]) -> None:
        """Call at the beginning of the next flush."""
        self._before.append(callback)

    @property
    def is_any_before(self) -> bool:
        """Tell whether somebody is to be called before the next flush."""
        return bool(self._before)

    def after(self, callback: Callable[[], None]) -> None:
        """Call once all groups of the flush under way have run; or else soon."""
        if self._after is None:
            self._loop.call_soon(callback)
        else:
            self._after.append(callback)

    def begin(self) -> None:
        """A flush begins: call those before it."""
        if self._before:
            before, self._before = self._before, []
            call_all(before)
        self._after = []

    def take(self) -> list[Callable[[], None]]:
        """All groups have run: return whom to call now."""
        taken, self._after = self._after or [], None
        return taken


def call_all(callbacks: list[Callable[[], None]]) -> None:
    """Call each."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            logger.exception("a call around a flush failed")
