"""A leader's snapshot on its way in: its live entries go to the log as they come.

For wal.py, and for cluster/ by way of it.  A queue's live entries may be far larger than memory, so
they are written chunk by chunk as STAGED records, which count for nothing; the group record that
installs the snapshot names their number, and with it they are the group's.  Whatever comes between
(a lost stream, kill -9, another snapshot) leaves garbage that is collected like any other: there
are no temporary files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from brokerd.raft.messages import Entry, Snapshot
from brokerd.storage import records
from brokerd.storage.collection import Ledger
from brokerd.storage.entry_table import EntryTable
from brokerd.storage.records import GroupState
from brokerd.storage.writer import LogWriter, Record


@dataclass(slots=True)
class Staging:
    """What has come of one snapshot; belongs to the event loop."""

    uid: int
    number: int
    #: The entries that are on disk.
    table: EntryTable = field(default_factory=EntryTable)
    #: Ranges of all that was handed over, on disk or on the way.
    live: list[tuple[int, int]] = field(default_factory=list)
    #: Adopted or given up: what is still on the way is garbage.
    is_over: bool = False


class StagedEntries(Collection[Entry]):
    """Stands for the live entries of a snapshot that are in the log already.

    Shows none of them: code that goes through a snapshot's entries to keep or check them need not
    do so.  A staging that is no longer referred to in this way is given up.
    """

    __slots__ = ("__weakref__", "staging")

    def __init__(self, staging: Staging) -> None:
        self.staging = staging

    def __len__(self) -> int:
        return 0

    def __contains__(self, entry: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Entry]:
        return iter(())


def of(snapshot: Snapshot) -> Staging | None:
    """Return where a snapshot's live entries were staged; None: it carries them."""
    live = snapshot.live
    return live.staging if isinstance(live, StagedEntries) else None


@dataclass(slots=True)
class StagedChunk:
    """Some entries of a staging; the writer fills in where they went."""

    staging: Staging
    entries: list[Entry]
    size: int
    segment: int = 0
    offset: int = 0


def following(number: int) -> int:
    """Return the number of the next staging of a group; 0 stands for none."""
    return number % records.STAGINGS_MAX + 1


def extend(staging: Staging, entries: list[Entry]) -> StagedChunk:
    """Event loop: take over entries that ascend and follow what was taken before."""
    live = staging.live
    size = 0
    for entry in entries:
        index = entry.index
        if live and live[-1][1] == index:
            live[-1] = (live[-1][0], index + 1)
        else:
            assert not live or live[-1][1] < index, "staged entries out of order"
            live.append((index, index + 1))
        size += len(entry.data)
    return StagedChunk(staging, entries, size)


def write(writer: LogWriter, chunks: Sequence[StagedChunk]) -> None:
    """Writer thread: append the chunks, with one sync."""
    with writer.lock:
        batch: list[Record] = []
        heads: list[Record] = []
        for chunk in chunks:
            uid, number = chunk.staging.uid, chunk.staging.number
            if uid not in writer.state.removed:
                writer.state.groups.setdefault(uid, GroupState())
            staged = [
                Record(
                    kind=records.STAGED,
                    uid=uid,
                    index=entry.index,
                    term=entry.term,
                    data=entry.data,
                    entry_kind=entry.kind,
                    birth=0,
                    flags=number,
                )
                for entry in chunk.entries
            ]
            heads.append(staged[0])
            batch += staged
        writer.append(batch)
        for chunk, head in zip(chunks, heads, strict=True):
            chunk.segment, chunk.offset = head.segment, head.offset
            # The event loop takes over one placement per chunk, not one per entry.
            writer.issued[head.segment] -= len(chunk.entries) - 1


def settle(ledger: Ledger, chunk: StagedChunk) -> None:
    """Event loop, after `write`: the chunk's bytes are live unless the staging is over."""
    ledger.note_seen(chunk.segment)
    staging = chunk.staging
    if not staging.is_over:
        size = staging.table.extend(chunk.entries, chunk.segment, chunk.offset)
        ledger.add(staging.uid, chunk.segment, size)


def give_up(ledger: Ledger, staging: Staging) -> None:
    """Event loop: it will not be installed."""
    if not staging.is_over:
        staging.is_over = True
        ledger.free(staging.table.usage(0, len(staging.table)))
