"""Rows of queues that stand still, as they were encoded: exporters ask for all of them, again and
again, each in a shape of its own.

A row is good until its queue's group moves, its rates do, the catalog changes or another member is
up.  Of queues without a replica here nothing is kept: their moves are not reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Iterable
from typing import TYPE_CHECKING

from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_clock import Moved

#: A whole one takes 1.3 KB, so that these are 22,000 queues; of more the others are made each time.
BYTES_MAX = 32 << 20
#: What a row takes beside what stands in it: bytes, and a place in a dict.
ROW_BYTES = 33 + 100
#: Shapes that are kept; one more replaces the first.  Each program asks for one or two.
SHAPES_MAX = 8
#: Seconds without a list before all rows go: longer than exporters leave between two looks.
IDLE_S = 300.0

_NO_ROWS: dict[int, bytes] = {}

#: The catalog's revision, and the members that are up.
As = tuple[int, frozenset[NodeId]]


class RowCache:
    """State: rows by their shape and the queue's uid, the shape that was asked for first in front;
    what else they depend on.
    """

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._rows: dict[Hashable, dict[int, bytes]] = {}
        self._size_bytes = 0
        self._as: As | None = None
        self._end: asyncio.TimerHandle | None = None

    def begin(self, shape: Hashable, of: As, moving: Collection[int]) -> None:
        """A list is made: forget what is not good any more.

        shape: what its rows have; of: as the catalog and the members are; moving: queues whose
        rates do.  What rows are made of is to be as of this turn of the loop at least: a move is
        reported once.
        """
        moved, is_all = self._moved.take()
        if is_all or of != self._as:
            self._clear()
        for rows in self._rows.values():
            for uids in (moved, moving):
                for uid in uids:
                    self._size_bytes -= _size(rows.pop(uid, b""))
        self._as = of
        if shape not in self._rows:
            if len(self._rows) >= SHAPES_MAX:
                first = self._rows.pop(next(iter(self._rows)))
                self._size_bytes -= sum(map(_size, first.values()))
            self._rows[shape] = {}
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(IDLE_S, self._clear)

    def get(self, shape: Hashable, uids: Iterable[int]) -> list[bytes | None]:
        """Return the queues' rows; None: it is to be made."""
        return list(map(self._rows.get(shape, _NO_ROWS).get, uids))

    def keep(self, shape: Hashable, uid: int, row: bytes, of: As) -> None:
        """Keep a row that was made in this turn of the loop, for a list that began so."""
        rows = self._rows.get(shape)
        if rows is not None and of == self._as and self._size_bytes + _size(row) <= BYTES_MAX:
            self._size_bytes += _size(row) - _size(rows.get(uid, b""))
            rows[uid] = row

    def _clear(self) -> None:
        self._rows.clear()
        self._size_bytes = 0


def _size(row: bytes) -> int:
    return len(row) + ROW_BYTES if row else 0
