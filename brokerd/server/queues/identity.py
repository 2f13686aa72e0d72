"""Which member this is, in which of its lives, and the numbers that are unique within that life.

Built by composition.py; the rooms name what they need of it in their ports (Identity, Process,
Sender).
"""

from __future__ import annotations

import time

from brokerd.core.catalog.catalog_objects import ConnectionId


class Process:
    """State: the last number that was given."""

    def __init__(self, node: str, incarnation: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self._last_uid = 0

    @staticmethod
    def clock_ms() -> int:
        """Return the wall clock in milliseconds."""
        return int(time.time() * 1000)

    def next_uid(self) -> int:
        """Return a number that is unique within this incarnation (channels, connections)."""
        self._last_uid += 1
        return self._last_uid

    def connection_id(self, uid: int) -> ConnectionId:
        """Return the cluster-wide id of a connection of this process."""
        return ConnectionId(self.node, self.incarnation, uid)
