"""From segment files to group logs: what is there, what was cut off, what is damaged.

Only wal.py and inspect.py use it.  Reads every segment, then applies all records in the order in
which they were first written (`birth`), so that moved records count where they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.raft.messages import EntryKind, HardState, NodeId
from brokerd.storage import records, snapshots
from brokerd.storage.disk import Disk
from brokerd.storage.entry_table import EntryTable
from brokerd.storage.errors import CorruptLog, UnknownFormat, WrongNode
from brokerd.storage.promises import Promises
from brokerd.storage.records import GroupState, place
from brokerd.storage.scan import BAD, ROW, SegmentScan, scan_segment
from brokerd.storage.segments import list_segments

Row = tuple[int, int, int, int, int, int]


@dataclass(slots=True)
class StagedEntries:
    """Entries that count only if a later record adopts them (staging.py)."""

    table: EntryTable = field(default_factory=EntryTable)
    #: Index -> place of those whose data fails its checksum.
    bad: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class RecoveredGroup:
    """One group as the records tell it."""

    uid: int
    state: GroupState = field(default_factory=GroupState)
    table: EntryTable = field(default_factory=EntryTable)
    config_indexes: list[int] = field(default_factory=list)
    #: Index -> place of entries whose data fails its checksum.
    bad: dict[int, int] = field(default_factory=dict)
    #: Place -> kind of its other records whose data fails its checksum.
    bad_states: dict[int, int] = field(default_factory=dict)
    #: Places where something of the group was lost for good.
    lost: set[int] = field(default_factory=set)
    snapshot: snapshots.SnapshotFile | None = None
    unreadable: dict[int, int] = field(default_factory=dict)
    #: By number of the staging.
    staged: dict[int, StagedEntries] = field(default_factory=dict)
    #: Number of the newest staging, adopted or not.
    last_staging: int = 0


@dataclass(slots=True)
class Recovery:
    """The result of reading a directory."""

    scans: dict[int, SegmentScan] = field(default_factory=dict)
    groups: dict[int, RecoveredGroup] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)
    segment_groups: dict[int, set[int]] = field(default_factory=dict)
    #: Places at which records of unknown groups were lost: any group may be concerned.
    lost: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: The last segment that was written to; None: nothing was.
    tail: int | None = None
    batches: int = 0
    #: Files that the log has given up already (a crash came before they were deleted).
    leftovers: list[int] = field(default_factory=list)
    #: Of `lost`, what an operator has accepted as gone.
    accepted: set[int] = field(default_factory=set)
    promises: Promises = field(default_factory=Promises)


def recover(directory: Path, disk: Disk, node_id: str | None) -> Recovery:
    """Read the log.  Raises CorruptLog, UnknownFormat or WrongNode when it cannot be used."""
    recovery = Recovery()
    _scan_all(recovery, directory, disk, node_id)
    _check_files(recovery)
    for where, row in _in_order_of_birth(recovery):
        _apply(recovery, where, row)
    recovery.lost = [where for where in recovery.lost if where not in recovery.accepted]
    if any(not records.is_suspicion(where) for where in recovery.lost):
        recovery.notes.append(
            "of which groups something is lost is not known: the member has no vote in any of them "
            "until their leaders have refilled it; where no majority is whole nobody can, and "
            "somebody must decide: see 'brokerctl wal accept-loss'"
        )
    for group in recovery.groups.values():
        _finish(recovery, group, directory, disk)
    return recovery


def _scan_all(recovery: Recovery, directory: Path, disk: Disk, node_id: str | None) -> None:
    """Scan from the newest back: the first one that was written to is the tail."""
    marks = directory / records.MARK_NAME
    last_mark = _read_file(disk, marks)[0] if marks.exists() else b""
    for segment in reversed(list_segments(directory)):
        path = directory / records.segment_name(segment)
        image, identity = _read_file(disk, path)
        header = records.decode_segment_header(image[: records.SEGMENT_HEADER_BYTES], path.name)
        if header.segment != segment:
            raise CorruptLog(f"{path.name}: is segment {header.segment}; files were mixed up")
        if node_id is not None and header.node_id != node_id:
            raise WrongNode(f"{path.name} belongs to node {header.node_id!r}, this is {node_id!r}")
        is_tail = recovery.tail is None
        scan = scan_segment(image, header, path.name, is_tail=is_tail, last_mark=last_mark)
        recovery.scans[segment] = scan
        if recovery.tail is None and (scan.batches or scan.rows or scan.lost):
            recovery.tail = segment
            _look_for_copy(recovery, header, identity)


def _look_for_copy(
    recovery: Recovery, header: records.SegmentHeader, identity: tuple[int, int]
) -> None:
    """A file that is not the one that was written may be older than what this member has told
    others since: it is suspected until they have said what they remember (promises.py).
    """
    if any(header.identity) and header.identity != identity:
        where = place(header.segment, records.COPIED)
        recovery.lost.append(where)
        recovery.notes.append(
            f"{records.describe(where)}: the directory was copied or put back: the member has no "
            "vote until all others have said that it is not older than what they remember"
        )


def _read_file(disk: Disk, path: Path) -> tuple[bytes, tuple[int, int]]:
    """Return what stands in a file, and which one it is."""
    descriptor = disk.open(path)
    try:
        return disk.read(descriptor, disk.size(path), 0), disk.identity(descriptor)
    finally:
        disk.close(descriptor)


def _check_files(recovery: Recovery) -> None:
    """Every file that the log says must exist does; files that it has given up do not count."""
    expected: set[int] = set()
    for segment in sorted(recovery.scans):
        scan = recovery.scans[segment]
        if scan.segment_ids is not None:
            expected = set(records.decode_numbers(scan.segment_ids))
            recovery.leftovers = [
                other for other in recovery.scans if other < segment and other not in expected
            ]
        if scan.sealed:
            expected.add(scan.next_segment)
    for segment in recovery.leftovers:
        del recovery.scans[segment]
    for segment in sorted(recovery.scans):
        scan = recovery.scans[segment]
        recovery.notes += scan.notes
        recovery.lost += [place(segment, offset) for offset in scan.lost]
        recovery.batches = max(recovery.batches, scan.last_batch)
    for segment in sorted(expected - set(recovery.scans)):
        recovery.lost.append(place(segment, 0))
        recovery.notes.append(f"{records.segment_name(segment)}: DAMAGE: the file is missing")


def _rows(recovery: Recovery) -> Iterator[tuple[int, Row]]:
    for segment in sorted(recovery.scans):
        base = segment << 32
        numbers = iter(recovery.scans[segment].rows)
        for row in zip(numbers, numbers, numbers, numbers, numbers, numbers, strict=True):
            yield base | row[4] >> 32, row


def _in_order_of_birth(recovery: Recovery) -> Iterator[tuple[int, Row]]:
    """Yield (place, row); a moved record comes right after its original's turn."""
    moved: list[tuple[int, int, Row]] = []
    for segment, scan in recovery.scans.items():
        for at in scan.moved:
            uid, index, term, birth, extent, kinds = scan.rows[at : at + ROW]
            row = (uid, index, term, birth, extent, kinds)
            moved.append((birth, segment << 32 | extent >> 32, row))
    if not moved:
        yield from _rows(recovery)
        return
    moved.sort(reverse=True)
    for where, row in _rows(recovery):
        if row[3]:
            continue
        while moved and moved[-1][0] < where:
            yield moved.pop()[1:]
        yield where, row
    while moved:
        yield moved.pop()[1:]


def _apply(recovery: Recovery, where: int, row: Row) -> None:
    uid, index, term, _, extent, kinds = row
    if kinds == records.ENTRY and (group := recovery.groups.get(uid)) is not None:
        table = group.table
        if table.indexes and table.indexes[-1] + 1 == index:
            # The ordinary case: an intact command that follows the one before.
            table.append(index, term, where >> 32, extent >> 32, extent & 0xFFFFFFFF)
            if uid not in recovery.segment_groups.get(where >> 32, ()):
                recovery.segment_groups.setdefault(where >> 32, set()).add(uid)
            return
    kind = kinds & 0xFF
    if not uid:
        _apply_to_all(recovery, where, row)
        return
    if kind == records.REMOVE:
        recovery.removed[uid] = where >> 32
        recovery.groups.pop(uid, None)
    else:
        recovery.segment_groups.setdefault(where >> 32, set()).add(uid)
    if uid in recovery.removed:
        return
    group = recovery.groups.get(uid)
    if group is None:
        group = recovery.groups[uid] = RecoveredGroup(uid)
    if kind in (records.ENTRY, records.LIVE):
        _cut(group, index)
        group.table.append(index, term, where >> 32, extent >> 32, extent & 0xFFFFFFFF)
        if kinds & BAD:
            group.bad[index] = where
        if kinds >> 8 & 0xFF == EntryKind.CONFIG:
            group.config_indexes.append(index)
    elif kind == records.STAGED:
        _stage(group, where, row)
    elif kinds & BAD:
        group.bad_states[where] = kind
    elif kind == records.HARD_STATE:
        # A later record says all that an unreadable earlier one said.
        group.bad_states = {
            at: bad for at, bad in group.bad_states.items() if bad != records.HARD_STATE
        }
        vote = recovery.scans[where >> 32].payloads[where & 0xFFFFFFFF].decode()
        has_vote = bool(kinds >> 8 & 0xFF)
        group.state.hard_state = HardState(term, NodeId(vote) if has_vote else None, index)
    elif kind == records.GROUP:
        group.bad_states.clear()
        payload = recovery.scans[where >> 32].payloads[where & 0xFFFFFFFF]
        group.state, reset = records.decode_group_state(payload)
        _cut(group, 0 if reset else group.state.tail + 1)
        number, most = group.state.staging, records.STAGINGS_MAX
        if (number - group.last_staging) % most < most // 2:
            group.last_staging = number
        staged = group.staged.pop(number, None)
        if staged is not None:
            _adopt(group, staged)


def _apply_to_all(recovery: Recovery, where: int, row: Row) -> None:
    """A record that belongs to no group."""
    kind, is_bad = row[5] & 0xFF, row[5] & BAD
    if is_bad or kind not in (records.LOST, records.PROMISES):
        return
    payload = recovery.scans[where >> 32].payloads[where & 0xFFFFFFFF]
    if kind == records.PROMISES:
        recovery.promises = Promises.decode(payload)
        return
    places = records.decode_numbers(payload)
    if row[1]:
        recovery.accepted.update(places)
    recovery.lost = sorted({*recovery.lost, *places})


def _stage(group: RecoveredGroup, where: int, row: Row) -> None:
    _, index, term, _, extent, kinds = row
    number = kinds >> 16 & 0xFFFF
    staged = group.staged.get(number)
    if staged is None:
        staged = group.staged[number] = StagedEntries()
        group.last_staging = number
    # A copy that cleaning has made comes right behind its original while that is still there: as
    # with other entries the newest copy counts, and an index stands in the table once.
    staged.table.cut(index)
    staged.bad.pop(index, None)
    staged.table.append(index, term, where >> 32, extent >> 32, extent & 0xFFFFFFFF)
    if kinds & BAD:
        staged.bad[index] = where


def _adopt(group: RecoveredGroup, staged: StagedEntries) -> None:
    """The snapshot that these entries belong to is installed.

    The record that said so first may be gone with its segment, and another repeats it: then
    entries that came behind the snapshot are here already.
    """
    border, later = staged.table.last(), group.table
    for position, index in enumerate(later.indexes):
        if index > border:
            staged.table.append(
                index,
                later.terms.get(index),
                later.segments.get(index),
                later.offsets[position],
                later.lengths[position],
            )
    group.table = staged.table
    group.bad = staged.bad | {at: place for at, place in group.bad.items() if at > border}


def _cut(group: RecoveredGroup, index: int) -> None:
    if group.table.last() < index:
        return
    group.table.cut(index)
    while group.config_indexes and group.config_indexes[-1] >= index:
        group.config_indexes.pop()
    if group.bad:
        group.bad = {at: where for at, where in group.bad.items() if at < index}


def _finish(recovery: Recovery, group: RecoveredGroup, directory: Path, disk: Disk) -> None:
    """Bring table, snapshot and damage together."""
    state = group.state
    _load_snapshot(recovery, group, directory, disk)
    base = state.snapshot_index
    live = group.snapshot.live if group.snapshot is not None else None
    if live is not None:
        group.table.retain(base, live)
    group.config_indexes = [index for index in group.config_indexes if index > base]
    gone: list[int] = []
    for index, where in sorted(group.bad.items()):
        if index > base:
            # What stands behind it cannot be offered without it; the leader sends all of it again.
            _damage(recovery, group, where, f"entry {index}")
            _cut(group, index)
            break
        if group.table.find(index) >= 0:
            if where not in state.healed:
                group.unreadable[index] = where
            else:
                gone.append(index)
    if gone:
        # The loss was accepted: these entries are simply not there any more.
        kept = [index for index in group.table.indexes if index <= base and index not in gone]
        group.table.retain(base, [(index, index + 1) for index in kept])
    _check_gaps(recovery, group, base)
    for where in group.bad_states:
        _damage(recovery, group, where, "its state (term, vote, configuration)")
    state.tail = max(base, group.table.last())
    group.lost.update(recovery.lost, state.lost)
    group.lost.difference_update(state.healed)
    state.lost = tuple(sorted(group.lost))
    if any(not records.is_suspicion(where) for where in group.lost):
        # What replaced these entries may be among what is lost: that they are committed is not
        # known any more, and a leader that has others contradicts nothing.
        known = state.hard_state
        state.hard_state = HardState(known.term, known.vote, min(known.commit, base))


def _check_gaps(recovery: Recovery, group: RecoveredGroup, base: int) -> None:
    """Above the snapshot every index must be there."""
    table = group.table
    above = table.last() - base
    if above <= 0:
        return
    position = len(table) - above
    if position >= 0 and table.indexes[position] == base + 1:
        return
    expected = base + 1
    for index in table.indexes:
        if index == expected:
            expected += 1
        elif index > expected:
            break
    segment = table.segments.get(index)
    _damage(recovery, group, place(segment, 0), f"entry {expected}, missing,")
    _cut(group, expected)


def _load_snapshot(recovery: Recovery, group: RecoveredGroup, directory: Path, disk: Disk) -> None:
    state = group.state
    if not state.snapshot_index:
        return
    path = snapshots.path_of(directory, group.uid, state.snapshot_index, state.snapshot_term)
    try:
        group.snapshot = snapshots.read(disk, path)
    except UnknownFormat:
        raise
    except CorruptLog as error:
        where = place(0, state.snapshot_index & 0xFFFFFFFF)
        # What was made good was an earlier file of that index: a leader has sent this one since.
        state.healed = tuple(healed for healed in state.healed if healed != where)
        _damage(recovery, group, where, f"{error}; it")
        # Without the state the entries behind it are of no use.
        state.snapshot_index = state.snapshot_term = 0
        _cut(group, 0)


def _damage(recovery: Recovery, group: RecoveredGroup, where: int, what: str) -> None:
    group.lost.add(where)
    recovery.notes.append(
        f"{records.describe(where)}: group {group.uid:x} is damaged: {what} cannot be read; "
        "the member gives up its vote until the leader has refilled it"
    )


def report_all(recovery: Recovery, report: Callable[[str], None]) -> None:
    for note in recovery.notes:
        report(note)
