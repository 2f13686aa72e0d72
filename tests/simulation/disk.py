"""A disk that forgets: what was written and not yet synced is gone after a crash.

FakeDisk implements brokerd.raft.storage.LogStorage for one member.  Writes are applied in order
when their sync is over (`complete`), never before; a crash drops the ones still on the way, except
for a prefix that may just have made it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from brokerd.raft.actions import InstallSnapshot, Persist, SaveSnapshot
from brokerd.raft.membership import decode_configuration
from brokerd.raft.messages import Configuration, Entry, EntryKind, HardState, Snapshot

Write = Persist | InstallSnapshot | SaveSnapshot


class FakeDisk:
    """What one member's disk holds.  Invariant: `log[i].index == snapshot index + 1 + i`."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.log: list[Entry] = []
        self.saved: Snapshot | None = None
        #: Bodies of live entries at or below the snapshot.
        self.live: dict[int, Entry] = {}
        #: Writes on the way, oldest first.
        self.waiting: deque[Write] = deque()

    # ---- brokerd.raft.storage.LogStorage --------------------------------------------------------

    def initial_state(self) -> tuple[HardState, Configuration]:
        """Return what a restart finds."""
        for entry in reversed(self.log):
            if entry.kind == EntryKind.CONFIG:
                return self.hard_state, decode_configuration(entry.data)
        if self.saved is not None:
            return self.hard_state, self.saved.configuration
        return self.hard_state, Configuration(())

    def first_index(self) -> int:
        """Return the lowest index that is still in the log."""
        return self.saved.index + 1 if self.saved is not None else 1

    def last_index(self) -> int:
        """Return the highest index that is synced."""
        return self.first_index() + len(self.log) - 1

    def term(self, index: int) -> int | None:
        """Return the term of a synced entry."""
        first = self.first_index()
        if first <= index < first + len(self.log):
            return self.log[index - first].term
        if self.saved is not None and index == self.saved.index:
            return self.saved.term
        return None

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Return entries [low, high) within a size."""
        first = self.first_index()
        found: list[Entry] = []
        total = 0
        for entry in self.log[low - first : high - first]:
            total += len(entry.data)
            if found and total > bytes_max:
                break
            found.append(entry)
        return found

    def entry_data(self, index: int) -> bytes | None:
        """Return a live entry's data."""
        first = self.first_index()
        if first <= index < first + len(self.log):
            return self.log[index - first].data
        entry = self.live.get(index)
        return None if entry is None else entry.data

    def snapshot_state(self) -> Snapshot | None:
        """Return the snapshot alone."""
        return None if self.saved is None else replace(self.saved, live=[])

    def snapshot(self) -> Snapshot | None:
        """Return the snapshot with its live entries."""
        if self.saved is None:
            return None
        return replace(self.saved, live=[self.live[index] for index in sorted(self.live)])

    # ---- writing --------------------------------------------------------------------------------

    def submit(self, write: Write) -> None:
        """Begin a write."""
        self.waiting.append(write)

    def complete(self, count: int) -> list[Write]:
        """One sync is over: the oldest `count` writes are on disk."""
        done = []
        for _ in range(min(count, len(self.waiting))):
            write = self.waiting.popleft()
            self._apply(write)
            done.append(write)
        return done

    def crash(self, rng: random.Random) -> None:
        """Lose what was not synced; some of it may have reached the disk, the last write torn."""
        self.complete(rng.randrange(len(self.waiting) + 1))
        if self.waiting and rng.random() < 0.5:
            torn = self.waiting[0]
            if isinstance(torn, Persist):
                count = rng.randrange(len(torn.entries) + 1)
                keeps_state = rng.random() < 0.5
                self._apply(
                    Persist(
                        torn.token,
                        torn.hard_state if keeps_state else None,
                        torn.entries[:count],
                    )
                )
        self.waiting.clear()

    def holds(self, index: int, term: int) -> bool:
        """Whether an entry is synced here, in the log or covered by the snapshot."""
        if self.saved is not None and index <= self.saved.index:
            return True
        return self.term(index) == term

    def _apply(self, write: Write) -> None:
        if isinstance(write, SaveSnapshot):
            self._save(write)
            return
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if isinstance(write, InstallSnapshot):
            self.saved = replace(write.snapshot, live=[])
            self.live = {entry.index: entry for entry in write.snapshot.live}
            self.log = []
        elif write.entries:
            at = write.entries[0].index - self.first_index()
            assert 0 <= at <= len(self.log), "a write would leave a gap"
            del self.log[at:]
            self.log.extend(write.entries)

    def _save(self, write: SaveSnapshot) -> None:
        snapshot = write.snapshot
        # A snapshot that was installed meanwhile may be newer.
        if snapshot.index < self.first_index():
            return
        bodies = {}
        for low, high in write.live_indexes:
            for index in range(low, high):
                data = self.entry_data(index)
                assert data is not None, "a live entry's body is gone"
                bodies[index] = Entry(index, self._any_term(index), EntryKind.COMMAND, data)
        keep = self.log[snapshot.index + 1 - self.first_index() :]
        self.saved = snapshot
        self.live = bodies
        self.log = keep

    def _any_term(self, index: int) -> int:
        if index in self.live:
            return self.live[index].term
        term = self.term(index)
        assert term is not None
        return term
