"""Messages as they lie in log entries: parsed entries, kept for deliveries that follow each other.

Bounded by count and by bytes; the log has a cache of its own below.  Used by queues/directory.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from brokerd.core.message import Content
from brokerd.core.queue import effects, enqueue_commands

VIEWS_MAX = 128
VIEWS_BYTES_MAX = 16 * 1024 * 1024
#: Above this share of the memory watermark bodies are paged out, until it is below the other one.
#: Well before the alarm, which stops publishers.
PAGING_PERCENT = 75
PAGING_END_PERCENT = 60
#: What each of the two caches may keep then: enough for what is being delivered right now.
PAGING_BYTES_MAX = 2 * 1024 * 1024


class MessageViews:
    """Invariant: `_size` is the bytes of all entries that are kept."""

    def __init__(self, entry_data: Callable[[int, int], bytes | None]) -> None:
        """entry_data(group, index) reads an entry, None where it is not here any more."""
        self._entry_data = entry_data
        self._views: OrderedDict[tuple[int, int], enqueue_commands.EnqueueView] = OrderedDict()
        self._size = 0
        self._bytes_max = VIEWS_BYTES_MAX

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the entries that are kept."""
        return self._size

    def limit(self, bytes_max: int) -> None:
        """Keep no more bytes than this from now on, one entry aside."""
        self._bytes_max = bytes_max
        self._shrink()

    def contents(self, uid: int, run: effects.Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        key = (uid, run.entry)
        view = self._views.get(key)
        if view is None:
            data = self._entry_data(uid, run.entry)
            if data is None:
                return None
            view = self._views[key] = enqueue_commands.EnqueueView(data)
            self._size += len(data)
            self._shrink()
        return view.contents(run.position, run.length)

    def _shrink(self) -> None:
        views = self._views
        while len(views) > VIEWS_MAX or (self._size > self._bytes_max and len(views) > 1):
            _, oldest = views.popitem(last=False)
            self._size -= len(oldest.data)


class LogCache(Protocol):
    """Recent entries of the log in memory."""

    def limit_cache(self, bytes_max: int | None) -> None:
        """Bound it; None: to what is configured."""
        ...

    def cached_bytes(self) -> int:
        """Return how many bytes it holds."""
        ...


class BodyCaches:
    """All bodies in memory that stand in the log as well: given back when memory runs short.

    They are read from the log again to be delivered (replication.md §2.7).
    """

    def __init__(self, views: MessageViews, log: LogCache) -> None:
        self._views = views
        self._log = log
        self.is_paging = False

    def size_bytes(self) -> int:
        """Return the bytes that both caches hold."""
        return self._views.size_bytes + self._log.cached_bytes()

    def memory_seen(self, used: int, limit: int) -> None:
        """Act on what the process uses of what it may before the alarm (0: no limit)."""
        is_short = used * 100 > limit * (PAGING_END_PERCENT if self.is_paging else PAGING_PERCENT)
        is_paging = bool(limit) and is_short
        if is_paging != self.is_paging:
            self.is_paging = is_paging
            self._log.limit_cache(PAGING_BYTES_MAX if is_paging else None)
            self._views.limit(PAGING_BYTES_MAX if is_paging else VIEWS_BYTES_MAX)
