"""One group's log as the Raft core reads it, and the memory that recent entries may take.

For wal.py, which fills it, and for the Raft core and the driver, which read it.  Everything here
belongs to the event loop: no lock, no write to disk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    configuration_of,
)
from brokerd.storage import records
from brokerd.storage.entry_table import EntryTable, Freed
from brokerd.storage.errors import DamagedEntry, NoDescriptor

#: Reads raw bytes: (segment, offset, size).
ReadSegment = Callable[[int, int, int], bytes]
DecodeConfiguration = Callable[[bytes], Configuration]

#: What an entry in memory costs beside its data.
ENTRY_OVERHEAD_BYTES = 200
#: Of nearly every group; one for all of them.
NOTHING_LOST: frozenset[int] = frozenset()
NOTHING_UNREADABLE: Mapping[int, int] = MappingProxyType({})
#: Of groups to which nothing was written for long; nothing is put into it.
NO_ENTRIES: dict[int, Entry] = {}
#: Records that lie back to back are fetched with one read of at most this size.
READ_AHEAD_BYTES = 1 << 20
#: Names of entries that are gone which the cache may hold beside as many as it has entries.
STALE_MAX = 64
#: The catalog's entries, apart from the others: they serve only members that are a little behind,
#: and what each declared queue leaves there would hold on to the memory around it.
CATALOG_CACHE_BYTES = 64 << 10


class EntryCache:
    """Bounds the memory of recent entries over all groups: first in, first out.

    State: `order` names every entry that is kept, and some that are gone already; those never
    outnumber the others by much.  What is dropped is free at once, not when its turn comes: a
    deleted queue leaves nothing here.
    """

    __slots__ = ("bytes_max", "count", "order", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.count = 0
        self.order: deque[tuple[dict[int, Entry], int]] = deque()

    def add(self, recent: dict[int, Entry], entries: Sequence[Entry]) -> None:
        order = self.order
        for entry in entries:
            index = entry.index
            if index in recent:
                self.drop(recent, index)
            recent[index] = entry
            order.append((recent, index))
            self.used_bytes += len(entry.data) + ENTRY_OVERHEAD_BYTES
        self.count += len(entries)
        self._shrink()

    def drop(self, recent: dict[int, Entry], index: int) -> None:
        """Forget one entry of a group, if it is here."""
        entry = recent.pop(index, None)
        if entry is not None:
            self.used_bytes -= len(entry.data) + ENTRY_OVERHEAD_BYTES
            self.count -= 1

    def drop_all(self, recent: dict[int, Entry]) -> None:
        """Forget all entries of a group."""
        for index in list(recent):
            self.drop(recent, index)
        self._shrink()

    def limit(self, bytes_max: int) -> None:
        """Keep no more than this from now on."""
        self.bytes_max = bytes_max
        self._shrink()

    def _shrink(self) -> None:
        order = self.order
        while self.used_bytes > self.bytes_max and order:
            self.drop(*order.popleft())
        if len(order) > 2 * self.count + STALE_MAX:
            self.order = deque(named for named in order if named[1] in named[0])


class GroupLog:
    """LogStorage of one group on disk.

    Invariant: above `snapshot_index` the table has every index up to `last_index()`.
    """

    __slots__ = (
        "_cache",
        "_decode",
        "_read",
        "_read_snapshot",
        "_recent",
        "_table",
        "config_indexes",
        "configuration",
        "hard_state",
        "live",
        "lost",
        "snapshot_index",
        "snapshot_term",
        "uid",
        "unreadable",
    )

    def __init__(
        self,
        uid: int,
        read: ReadSegment,
        read_snapshot: Callable[[int, int, int], Snapshot],
        cache: EntryCache,
        decode: DecodeConfiguration,
    ) -> None:
        self.uid = uid
        #: Packed while it has not been asked for since `let_go`.
        self._table: EntryTable | bytes = EntryTable()
        self.hard_state = HardState()
        #: Of the snapshot, or what the group was created with.
        self.configuration = configuration_of(())
        #: Indexes of CONFIG entries above the snapshot, ascending.
        self.config_indexes: tuple[int, ...] = ()
        self.snapshot_index = 0
        self.snapshot_term = 0
        #: Ranges that the machine refers to, None until it has said so.
        self.live: list[tuple[int, int]] | None = None
        #: Entries at or below the snapshot whose record is unreadable, and its place.
        self.unreadable = NOTHING_UNREADABLE
        #: Places at which something of this group may have been lost.
        self.lost = NOTHING_LOST
        self._read = read
        self._read_snapshot = read_snapshot
        self._cache = cache
        self._decode = decode
        self._recent = NO_ENTRIES

    @property
    def table(self) -> EntryTable:
        """Where the entries lie."""
        table = self._table
        if isinstance(table, bytes):
            table = self._table = EntryTable.unpacked(table)
        return table

    @table.setter
    def table(self, table: EntryTable) -> None:
        self._table = table

    @property
    def damaged(self) -> bool:
        """True: this member must not vote or lead until its leader has refilled it (G8)."""
        return bool(self.lost or self.unreadable)

    # ---- LogStorage -----------------------------------------------------------------------------

    def initial_state(self) -> tuple[HardState, Configuration]:
        configuration = self.configuration
        if self.config_indexes:
            configuration = self._decode(self._entry(self.config_indexes[-1]).data)
        return self.hard_state, configuration

    def first_index(self) -> int:
        return self.snapshot_index + 1

    def last_index(self) -> int:
        return max(self.snapshot_index, self.table.last())

    def term(self, index: int) -> int | None:
        if index == self.snapshot_index:
            return self.snapshot_term
        if index < self.snapshot_index or index > self.table.last():
            return None
        return self.table.terms.get(index)

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        if not self.snapshot_index < low < high <= self.last_index() + 1:
            raise IndexError(
                f"group {self.uid:x}: entries {low}..{high} of "
                f"{self.first_index()}..{self.last_index()}"
            )
        found: list[Entry] = []
        size = 0
        recent = self._recent
        while low < high:
            entry = recent.get(low)
            batch = [entry] if entry is not None else self._load(low, high, bytes_max - size)
            for entry in batch:
                size += len(entry.data)
                if found and size > bytes_max:
                    return found
                found.append(entry)
            low += len(batch)
        return found

    def entry_data(self, index: int) -> bytes | None:
        entry = self._recent.get(index)
        if entry is not None:
            return entry.data
        if index in self.unreadable or self.table.find(index) < 0:
            return None
        return self._entry(index).data

    def snapshot_state(self) -> Snapshot | None:
        if not self.snapshot_index:
            return None
        return self._read_snapshot(self.uid, self.snapshot_index, self.snapshot_term)

    def snapshot(self) -> Snapshot | None:
        try:
            snapshot = self.snapshot_state()
        except NoDescriptor:
            # The leader asks again with its next heartbeat.
            return None
        if snapshot is None:
            return None
        indexes = self.table.indexes
        snapshot.live = LiveEntries(self, indexes[: bisect_right(indexes, snapshot.index)])
        return snapshot

    def holds(self, live: Iterable[tuple[int, int]]) -> bool:
        """Tell whether all entries in the [low, high) ranges are there, and none is unreadable.

        A record whose header is damaged leaves no trace of the entry that it was: only who refers
        to the entry can miss it.
        """
        find = self.table.find
        return not self.unreadable and all(
            0 <= find(low) == find(high - 1) - (high - 1 - low) for low, high in live if low < high
        )

    # ---- reading --------------------------------------------------------------------------------

    def load_live(self, index: int, border: int) -> list[Entry]:
        """Return entry `index` and some that lie right behind it, none above `border`; nothing if
        it is gone.
        """
        entry = self._recent.get(index)
        if entry is not None:
            return [entry]
        if self.table.find(index) < 0:
            return []
        return self._load(index, border + 1, READ_AHEAD_BYTES)

    def _entry(self, index: int) -> Entry:
        return self._recent.get(index) or self._load(index, index + 1, 0)[0]

    def _load(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Read `low` from disk, and what lies right behind it while it fits."""
        table = self.table
        first = position = table.find(low)
        segment = table.segments.get(low)
        start = end = table.offsets[position]
        limit = min(bytes_max, READ_AHEAD_BYTES)
        while position < len(table.indexes):
            index = table.indexes[position]
            size = records.HEADER_BYTES + table.lengths[position]
            is_next = table.offsets[position] == end and index == low + position - first
            if not is_next or index >= high or table.segments.get(index) != segment:
                break
            if position > first and (end - start + size > limit or index in self._recent):
                break
            end += size
            position += 1
        image = self._read(segment, start, end - start)
        return [self._parse(image, start, segment, number) for number in range(first, position)]

    def _parse(self, image: bytes, base: int, segment: int, position: int) -> Entry:
        index = self.table.indexes[position]
        offset = self.table.offsets[position]
        at = offset - base
        where = records.describe(records.place(segment, offset))
        if at + records.HEADER_BYTES > len(image):
            raise DamagedEntry(self.uid, index, where)
        (_, _, checksum, length, uid, found, term, _, _, _, entry_kind, _) = (
            records.HEADER.unpack_from(image, at)
        )
        data = image[at + records.HEADER_BYTES : at + records.HEADER_BYTES + length]
        is_ours = uid == self.uid and found == index and length == self.table.lengths[position]
        # The header's own checksum was verified at recovery or written by this process; here the
        # table says what must stand there, and the data's checksum covers the rest.
        if not is_ours or len(data) != length or records.crc(data) != checksum:
            raise DamagedEntry(self.uid, index, where)
        return Entry(index, term, entry_kind, data)

    # ---- changes, by wal.py on the event loop ---------------------------------------------------

    def put(self, entries: Sequence[Entry], segment: int, offset: int) -> tuple[Freed, int]:
        """Make synced entries visible; return what they pushed out, and their own bytes."""
        first = entries[0].index
        freed: Freed = []
        if first <= self.last_index():
            freed = self.cut(first)
        size = self.table.extend(entries, segment, offset)
        for entry in entries:
            if entry.kind == EntryKind.CONFIG:
                self.config_indexes += (entry.index,)
        if self._recent is NO_ENTRIES:
            self._recent = {}
        self._cache.add(self._recent, entries)
        return freed, size

    def cut(self, index: int) -> Freed:
        """Remove everything from `index` on; 0: the group is gone."""
        if index:
            for gone in range(index, self.table.last() + 1):
                self._cache.drop(self._recent, gone)
        else:
            self._cache.drop_all(self._recent)
        if self.config_indexes:
            self.config_indexes = tuple([at for at in self.config_indexes if at < index])
        return self.table.cut(index)

    def compact(self, snapshot: Snapshot, live: Sequence[tuple[int, int]] | None) -> Freed:
        """The snapshot is on disk: entries up to its index stay only where they are live."""
        self.snapshot_index = snapshot.index
        self.snapshot_term = snapshot.term
        self.configuration = snapshot.configuration
        if self.config_indexes:
            self.config_indexes = tuple([at for at in self.config_indexes if at > snapshot.index])
        return self.set_live(self.live if live is None else live)

    def set_live(self, live: Sequence[tuple[int, int]] | None) -> Freed:
        if live is None:
            return []
        self.live = list(live)
        if self.unreadable:
            self.unreadable = {
                index: where
                for index, where in self.unreadable.items()
                if any(low <= index < high for low, high in live)
            }
        return self.table.retain(self.snapshot_index, live)

    def let_go(self, *, again: bool = False) -> None:
        """No reads follow for a while: the newest entries leave the memory, the table is made
        small.  again: if nothing was written since it was.
        """
        if again and self._recent is not NO_ENTRIES:
            return
        self._cache.drop_all(self._recent)
        self._recent = NO_ENTRIES
        self._table = self.table.packed() or self.table

    def heal(self) -> Freed:
        """What was lost is made good or accepted: forget the entries that cannot be read."""
        self.lost = NOTHING_LOST
        gone, self.unreadable = self.unreadable, NOTHING_UNREADABLE
        if not gone:
            return []
        border = self.snapshot_index
        kept = [index for index in self.table.indexes if index <= border and index not in gone]
        return self.table.retain(border, [(index, index + 1) for index in kept])

    def reset(self, snapshot: Snapshot, hard_state: HardState) -> Freed:
        """Replace everything by a leader's snapshot; its live entries follow by `put_live`."""
        freed = self.clear(snapshot.configuration, hard_state)
        self.snapshot_index = snapshot.index
        self.snapshot_term = snapshot.term
        self.live = [(entry.index, entry.index + 1) for entry in snapshot.live]
        return freed

    def clear(self, configuration: Configuration, hard_state: HardState) -> Freed:
        """Begin anew: nothing is here but who belongs to the group."""
        freed = self.table.usage(0, len(self.table))
        self._table = EntryTable()
        self._cache.drop_all(self._recent)
        self.config_indexes = ()
        self.unreadable = NOTHING_UNREADABLE
        self.snapshot_index = self.snapshot_term = 0
        self.configuration = configuration
        self.hard_state = hard_state
        self.live = None
        return freed


class LiveEntries(Collection[Entry]):
    """The live entries of a snapshot, read piece by piece while somebody iterates.

    All bodies of a queue together may exceed the memory.  What has been settled and collected
    since is left out: its settlement stands in the log behind the snapshot, and a member that
    gets the snapshot applies that before it can lead.
    """

    __slots__ = ("_indexes", "_log")

    def __init__(self, log: GroupLog, indexes: array[int]) -> None:
        self._log = log
        self._indexes = indexes

    def __len__(self) -> int:
        return len(self._indexes)

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, Entry) and entry.index in self._indexes

    def __iter__(self) -> Iterator[Entry]:
        indexes, position = self._indexes, 0
        while position < len(indexes):
            found = self._log.load_live(indexes[position], indexes[-1])
            if not found:
                position += 1
            for entry in found:
                if position == len(indexes) or entry.index != indexes[position]:
                    break
                yield entry
                position += 1
