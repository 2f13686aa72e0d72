"""Lists of queues in the order of their names, cut by a name or a pattern: programs ask for the
same page again and again, and a pattern takes 25 ms of ten thousand names.

A list is good until the catalog changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Queue

#: Lists, and queues in all of them: 8 bytes each.
LISTS_MAX = 64
QUEUES_MAX = 500_000
#: After so long without a question nothing is kept: longer than programs leave between two looks.
IDLE_S = 300.0


class KeptLists:
    """State: lists by what was asked for, the one that was made first in front; as of one revision
    of the catalog.
    """

    def __init__(self) -> None:
        self._lists: dict[Hashable, Sequence[Queue]] = {}
        self._count = 0
        self._revision = -1
        self._end: asyncio.TimerHandle | None = None

    def get(self, key: Hashable, revision: int) -> Sequence[Queue] | None:
        """Return a list that is as of this revision; None: it is to be made."""
        if revision != self._revision:
            self._clear()
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(IDLE_S, self._clear)
        return self._lists.get(key)

    def keep(self, key: Hashable, revision: int, queues: Sequence[Queue]) -> None:
        """Keep a list that was made while the catalog had this revision, and has it still."""
        if len(queues) > QUEUES_MAX:
            return
        if revision != self._revision:
            self._clear()
        self._revision = revision
        self._count += len(queues) - len(self._lists.pop(key, ()))
        self._lists[key] = queues
        while self._count > QUEUES_MAX or len(self._lists) > LISTS_MAX:
            first = next(iter(self._lists))
            self._count -= len(self._lists.pop(first))

    def _clear(self) -> None:
        self._lists.clear()
        self._count = 0
