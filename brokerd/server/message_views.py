"""Messages as they lie in log entries: parsed entries, kept for deliveries that follow each other.

Bounded by count and by bytes; the log has a cache of its own below.  Used by broker.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from brokerd.core import effects, queue_commands
from brokerd.core.message import Content

VIEWS_MAX = 128
VIEWS_BYTES_MAX = 16 * 1024 * 1024


class MessageViews:
    """Invariant: `_size` is the bytes of all entries that are kept."""

    def __init__(self, entry_data: Callable[[int, int], bytes | None]) -> None:
        """entry_data(group, index) reads an entry, None where it is not here any more."""
        self._entry_data = entry_data
        self._views: OrderedDict[tuple[int, int], queue_commands.EnqueueView] = OrderedDict()
        self._size = 0

    def contents(self, uid: int, run: effects.Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        key = (uid, run.entry)
        view = self._views.get(key)
        if view is None:
            data = self._entry_data(uid, run.entry)
            if data is None:
                return None
            view = self._views[key] = queue_commands.EnqueueView(data)
            self._size += len(data)
            while len(self._views) > VIEWS_MAX or (
                self._size > VIEWS_BYTES_MAX and len(self._views) > 1
            ):
                _, oldest = self._views.popitem(last=False)
                self._size -= len(oldest.data)
        return view.contents(run.position, run.length)
