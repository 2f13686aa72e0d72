"""A log without disk: for volatile queues, and for tests that want no files.

For cluster/ and tests.  Implements the same LogStorage; every change is immediate, there is no
writer thread to hand anything to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from brokerd.raft import membership
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    configuration_of,
)

_COMMAND = EntryKind.COMMAND
#: Share of the held entries that may be dead, as its divisor.
DEAD_SHARE = 8


class MemoryLog:
    """LogStorage of one group in memory.

    Invariant: above the snapshot's index every index up to `last_index()` is there; at or below it
    only the live ones.
    """

    __slots__ = (
        "_configuration",
        "_emptied",
        "_entries",
        "_hard_state",
        "_last",
        "_snapshot",
        "damaged",
    )

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._entries: dict[int, Entry] = {}
        #: So many entries have lost their data (`empty_dead`).
        self._emptied = 0
        self._last = 0
        self._hard_state = HardState()
        self._configuration = configuration or configuration_of(())
        self._snapshot: Snapshot | None = None
        #: Memory does not rot; the attribute is there because GroupLog has it.
        self.damaged = False

    # ---- LogStorage -----------------------------------------------------------------------------

    def initial_state(self) -> tuple[HardState, Configuration]:
        for index in range(self._last, self.first_index() - 1, -1):
            entry = self._entries[index]
            if entry.kind == EntryKind.CONFIG:
                return self._hard_state, membership.decode_configuration(entry.data)
        return self._hard_state, self._configuration

    def first_index(self) -> int:
        return self._snapshot.index + 1 if self._snapshot is not None else 1

    def last_index(self) -> int:
        return self._last

    def term(self, index: int) -> int | None:
        base = self._snapshot
        if base is None and index == 0:
            return 0
        if base is not None and index <= base.index:
            return base.term if index == base.index else None
        entry = self._entries.get(index)
        return None if entry is None else entry.term

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        if not self.first_index() <= low < high <= self._last + 1:
            raise IndexError(f"entries {low}..{high} of {self.first_index()}..{self._last}")
        found = [self._entries[low]]
        size = len(found[0].data)
        for index in range(low + 1, high):
            entry = self._entries[index]
            size += len(entry.data)
            if size > bytes_max:
                break
            found.append(entry)
        return found

    def entry_data(self, index: int) -> bytes | None:
        entry = self._entries.get(index)
        return None if entry is None else entry.data

    def snapshot_state(self) -> Snapshot | None:
        base = self._snapshot
        if base is None:
            return None
        return Snapshot(base.index, base.term, base.configuration, base.data, terms=base.terms)

    def snapshot(self) -> Snapshot | None:
        base = self._snapshot
        if base is None:
            return None
        live = [self._entries[index] for index in sorted(self._entries) if index <= base.index]
        return Snapshot(base.index, base.term, base.configuration, base.data, live, base.terms)

    # ---- changes --------------------------------------------------------------------------------

    def append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """One Persist action: the first entry cuts off whatever stood there and behind."""
        if hard_state is not None:
            self._hard_state = hard_state
        if not entries:
            return
        for index in range(entries[0].index, self._last + 1):
            del self._entries[index]
        for entry in entries:
            self._entries[entry.index] = entry
        self._last = entries[-1].index

    def save_snapshot(
        self, snapshot: Snapshot, live: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Keep the state; of the entries up to its index only the live ones (None: all)."""
        if snapshot.index < self.first_index():
            return
        self._snapshot = snapshot
        self._configuration = snapshot.configuration
        self._last = max(self._last, snapshot.index)
        if live is not None:
            self.set_live(live)

    def install_snapshot(self, snapshot: Snapshot, hard_state: HardState) -> None:
        """Replace everything by what a leader sent."""
        self._entries = {entry.index: entry for entry in snapshot.live}
        self._emptied = 0
        self._snapshot = snapshot
        self._configuration = snapshot.configuration
        self._hard_state = hard_state
        self._last = snapshot.index

    def clear(self) -> None:
        """Give the memory back: the group is gone."""
        self._entries.clear()
        self._snapshot = None
        self._last = self._emptied = 0

    def set_live(self, live: Sequence[tuple[int, int]]) -> None:
        """Forget the entries up to the snapshot that are in none of the [low, high) ranges."""
        base = self.first_index()
        keep = {index for low, high in live for index in range(low, min(high, base))}
        for index in [index for index in self._entries if index < base and index not in keep]:
            del self._entries[index]
        self._emptied = sum(1 for entry in self._entries.values() if not entry.data)

    def empty_dead(self, live: Sequence[tuple[int, int]], applied: int) -> None:
        """Take the data out of entries up to `applied` that are in none of the [low, high) ranges.

        For a log that no other member follows: what is applied is not read again.  It looks at all
        entries, so not until one in eight is dead.
        """
        held = len(self._entries) - self._emptied
        if held - sum(high - low for low, high in live) <= held // DEAD_SHARE:
            return
        lows = [low for low, _ in live]
        for index, entry in self._entries.items():
            at = bisect_right(lows, index) - 1
            is_live = at >= 0 and index < live[at][1]
            if entry.data and index <= applied and not is_live and entry.kind == _COMMAND:
                self._entries[index] = Entry(index, entry.term, entry.kind, b"")
                self._emptied += 1
