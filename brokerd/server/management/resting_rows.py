"""Rows of queues that stand still, as they were encoded: exporters ask for all of them, again and
again.

A row is good until its queue's group moves, its rates do, the catalog changes or another member is
up.  Of queues without a replica here nothing is kept: nobody tells when they move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_clock import Moved

#: One takes 1.3 KB, so that these are 25,000 queues; of more the others are made each time.
BYTES_MAX = 32 << 20
#: After so long without a list nothing is kept: longer than exporters leave between two looks.
IDLE_S = 300.0

#: The catalog's revision, and the members that are up.
As = tuple[int, frozenset[NodeId]]


class RestingRows:
    """State: rows by the queue's uid, and what else they depend on."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._rows: dict[int, bytes] = {}
        self._size_bytes = 0
        self._as: As | None = None
        self._end: asyncio.TimerHandle | None = None

    def begin(self, of: As, moving: Collection[int]) -> None:
        """A list is made: forget what is not good any more.

        of: as the catalog and the members are; moving: queues whose rates do.  What rows are made
        of is to be as of this turn of the loop at least: a move is told once.
        """
        moved, is_all = self._moved.take()
        if is_all or of != self._as:
            self._clear()
        for uids in (moved, moving):
            for uid in uids:
                self._size_bytes -= len(self._rows.pop(uid, b""))
        self._as = of
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(IDLE_S, self._clear)

    def get(self, uid: int) -> bytes | None:
        """Return a queue's row; None: it is to be made."""
        return self._rows.get(uid)

    def keep(self, uid: int, row: bytes, of: As) -> None:
        """Keep a row that was made in this turn of the loop, for a list that began so."""
        if of == self._as and self._size_bytes + len(row) <= BYTES_MAX:
            self._size_bytes += len(row) - len(self._rows.get(uid, b""))
            self._rows[uid] = row

    def _clear(self) -> None:
        self._rows.clear()
        self._size_bytes = 0
