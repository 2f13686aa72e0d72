"""The log as one sequence: the persisted part in LogStorage, the newest part in memory.

Entries stay in memory until they are both persisted and applied. Nothing here knows roles or terms
of nodes; node.py is the only user.

    1 .. snapshot | first ..... persisted | offset ...... stable ...... handed ...... last
                    in the storage          in `tail` (memory)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from brokerd.raft.errors import BrokenLogError
from brokerd.raft.messages import Entry, Snapshot, TermStarts
from brokerd.raft.storage import LogStorage


class RaftLog:
    """Invariants: applied <= committed <= last; offset <= stable + 1; stable <= handed <= last;
    urgent <= last.

    `len(tail) == last - offset + 1`; tail[i].index == offset + i.
    """

    __slots__ = (
        "_before_tail_term",
        "_storage",
        "applied",
        "committed",
        "handed",
        "installing",
        "last",
        "offset",
        "stable",
        "tail",
        "terms",
        "urgent",
    )

    def __init__(self, storage: LogStorage, commit: int) -> None:
        self._storage = storage
        snapshot_index = storage.first_index() - 1
        self.last = storage.last_index()
        if self.last < snapshot_index:
            raise BrokenLogError("the log ends before its snapshot", self.last)
        self.tail: list[Entry] = []
        #: Index of tail[0]; last + 1 when the tail is empty.
        self.offset = self.last + 1
        #: Term at offset - 1, the most frequent question to the storage.
        self._before_tail_term = self._stored_term(self.last)
        #: Highest index that this member's disk is known to hold.
        self.stable = self.last
        #: Highest index that was given out to be written.
        self.handed = self.last
        #: What is above it may reach this member's disk late (replication.py: lazy commands).
        self.urgent = self.last
        self.applied = snapshot_index
        self.committed = max(snapshot_index, min(commit, self.last))
        #: A snapshot on its way to the disk; the storage still holds what it replaces.
        self.installing: Snapshot | None = None
        #: Where the newest terms begin, as the newest snapshot has it; see `terms_to`.
        self.terms: TermStarts = ()

    def _stored_term(self, index: int) -> int:
        if index == 0:
            return 0
        term = self._storage.term(index)
        if term is None:
            raise BrokenLogError("the storage has no term where it has an entry", index)
        return term

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self.tail[-1].term if self.tail else self._before_tail_term

    @property
    def first(self) -> int:
        """Lowest index that can be replicated entry by entry."""
        if self.installing is not None:
            return self.installing.index + 1
        return self._storage.first_index()

    def term(self, index: int) -> int | None:
        """Return the term at `index`; None if it is compacted away or not there yet."""
        offset = self.offset
        if index >= offset:
            return self.tail[index - offset].term if index <= self.last else None
        if index == offset - 1:
            return self._before_tail_term
        if index <= 0:
            return 0 if index == 0 and self.first == 1 else None
        if self.installing is not None:
            return None
        return self._storage.term(index)

    def entries(self, low: int, high: int, bytes_max: int, count_max: int) -> list[Entry]:
        """Return entries from `low`, below `high`: at least one, then within the bounds.

        An empty list means that `low` has been compacted away.
        """
        if low >= self.offset:
            start = low - self.offset
            if high - low == 1:
                return [self.tail[start]]
            found = self.tail[start : min(high - self.offset, start + count_max)]
        else:
            if low < self.first:
                return []
            stop = min(high, self.offset, low + count_max)
            found = self._storage.entries(low, stop, bytes_max)
            if not found or found[0].index != low:
                raise BrokenLogError("the storage lacks an entry that it should have", low)
        total = 0
        for count, entry in enumerate(found):
            total += len(entry.data)
            if total > bytes_max and count:
                return found[:count]
        return found

    def append(self, entries: list[Entry], *, may_be_late: bool = False) -> None:
        """Put new entries behind the last one."""
        if entries[0].index != self.last + 1:
            raise BrokenLogError("entries do not follow the last one", entries[0].index)
        self.tail.extend(entries)
        self.last = entries[-1].index
        if not may_be_late:
            self.urgent = self.last

    def truncate(self, first: int) -> None:
        """Remove the entries from index `first` on; they contradict the leader's (§3.5)."""
        if first <= self.committed:
            raise BrokenLogError("a committed entry would be removed", first)
        if first >= self.offset:
            del self.tail[first - self.offset :]
        else:
            self._before_tail_term = self._stored_term(first - 1)
            self.tail.clear()
            self.offset = first
        self.last = first - 1
        self.stable = min(self.stable, self.last)
        self.handed = min(self.handed, self.last)
        self.urgent = min(self.urgent, self.last)

    def install(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot that is still on its way to the disk."""
        self.installing = snapshot
        self.terms = snapshot.terms
        self.tail.clear()
        self._before_tail_term = snapshot.term
        self.last = self.stable = self.handed = self.committed = snapshot.index
        self.urgent = self.last
        self.offset = snapshot.index + 1

    def installed(self) -> Snapshot:
        """The snapshot is on disk; return it for the machine."""
        snapshot = self.installing
        if snapshot is None:
            raise BrokenLogError("no snapshot is being installed", self.last)
        self.installing = None
        self.applied = snapshot.index
        return snapshot

    def handed_out(self) -> list[Entry]:
        """Return the entries that were not yet given out to be written, and note them as given
        out.
        """
        found = self.tail[self.handed + 1 - self.offset :]
        self.handed = self.last
        return found

    def persisted_to(self, index: int) -> None:
        """Take note that the disk holds everything up to `index`."""
        if index > self.stable:
            self.stable = index
            self._trim()

    def applied_to(self, index: int) -> None:
        """Take note that everything up to `index` has been applied."""
        if not self.applied <= index <= self.committed:
            raise BrokenLogError("applied beyond the commit index", index)
        self.applied = index
        self._trim()

    def _trim(self) -> None:
        low = min(self.stable, self.applied)
        count = low - self.offset + 1
        if count > 0:
            self._before_tail_term = self.tail[count - 1].term
            del self.tail[:count]
            self.offset = low + 1

    def terms_to(self, index: int, count_max: int) -> TermStarts:
        """Return where the newest terms up to `index`, which is in the log, begin."""
        found = list(self.terms)
        known = found[-1][1] if found else 0
        low = self.first - 1
        while (last := self.term(index)) is not None and known < last:
            # Terms never fall along a log.
            low = bisect_right(range(index + 1), known, low, key=self._known_term)
            known = self._known_term(low)
            found.append((low, known))
        return tuple(found[-count_max:])

    def _known_term(self, index: int) -> int:
        return self.term(index) or 0

    def known_term(self, index: int) -> int | None:
        """Return the term at `index`, even of what is compacted away where its snapshot tells."""
        own = self.term(index)
        return _term_of(self.terms, index) if own is None and index < self.first else own

    def first_difference(self, terms: TermStarts, end: int) -> int | None:
        """Return the lowest committed index at which another log, whose terms begin so and are
        known up to `end`, differs; None: as far as can be known they agree.
        """
        last = min(self.committed, end)

        def differs(index: int) -> bool:
            own, other = self.known_term(index), _term_of(terms, index)
            return own is not None and other is not None and own != other

        if not differs(last):
            return None
        own_start = self.terms[0][0] if self.terms else self.first - 1
        low = max(terms[0][0], own_start, 1)
        # Logs that agree at an index agree below it (Raft thesis §3.5).
        found = bisect_left(range(last), True, low, key=differs)
        # Where it begins as far back as is known, it may have begun before.
        return found if found > low else 1

    def is_up_to_date(self, last: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as complete as this one (Raft thesis §3.6.1)."""
        own = self.last_term
        return last_term > own or (last_term == own and last >= self.last)

    def find_conflict(self, entries: list[Entry]) -> int:
        """Return the position of the first entry that this log does not hold; len(entries) if it
        holds all.
        """
        if entries[0].index > self.last:
            return 0
        for position, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                return position
        return len(entries)

    def find_conflict_by_term(self, index: int, term: int) -> int:
        """Return the highest index <= `index` whose term is at most `term`, or unknown
        (compacted).
        """
        index = min(index, self.last)
        while index > 0:
            own = self.term(index)
            if own is None or own <= term:
                return index
            index -= 1
        return 0


def _term_of(terms: TermStarts, index: int) -> int | None:
    position = bisect_right(terms, index, key=lambda start: start[0])
    return terms[position - 1][1] if position else None
