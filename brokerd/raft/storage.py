"""The log as the raft room needs it; the storage room implements it (LogStorage is owned here).

Reads only: writes leave the replica as Persist and SaveSnapshot actions and come back as inputs.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.raft.messages import Configuration, Entry, HardState, Snapshot


class LogStorage(Protocol):
    """A group's persisted log.  Indexes start at 1; empty: first_index 1, last_index 0."""

    def initial_state(self) -> tuple[HardState, Configuration]:
        """Return what recovery found; the configuration is the newest in snapshot or log."""
        ...

    def first_index(self) -> int:
        """Return the lowest index that is available for replication (snapshot index + 1)."""
        ...

    def last_index(self) -> int:
        """Return the highest persisted index."""
        ...

    def term(self, index: int) -> int | None:
        """Return the term at `index`; None if compacted away.  The snapshot's own index has its
        term.
        """
        ...

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Return entries [low, high); at least one, then as many as fit into bytes_max."""
        ...

    def entry_data(self, index: int) -> bytes | None:
        """Return the data of a live entry, even below the snapshot index; None if it is gone."""
        ...

    def snapshot_state(self) -> Snapshot | None:
        """Return the latest saved snapshot without its live entries: all that a start needs.

        The live entries are the bodies of every message in a queue; a restart must not read them.
        """
        ...

    def snapshot(self) -> Snapshot | None:
        """Return the latest saved snapshot with its live entries read in, for a follower."""
        ...
