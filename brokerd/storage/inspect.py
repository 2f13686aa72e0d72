"""Reading a log offline: what `brokerctl wal inspect|verify DIR` shows.  Changes nothing.

For brokerd.ctl and tests.  Works while the node runs, too, but then the last write may look torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.storage import records, recovery, snapshots
from brokerd.storage.disk import Disk
from brokerd.storage.errors import CorruptLog, StorageError
from brokerd.storage.scan import BAD, ROW, scan_segment
from brokerd.storage.segments import list_segments

#: Exit codes of `brokerctl wal verify`.
EXIT_INTACT = 0
EXIT_DAMAGED = 1
EXIT_UNUSABLE = 2


@dataclass(slots=True)
class RecordView:
    """One record, without its data."""

    segment: int
    offset: int
    kind: str
    uid: int
    index: int
    term: int
    length: int
    entry_kind: int
    #: Where it was first written, if it was moved: "file+offset".
    birth: str | None
    is_bad: bool


@dataclass(slots=True)
class SegmentView:
    """One segment file."""

    name: str
    segment: int
    node_id: str
    size_bytes: int
    used_bytes: int
    is_sealed: bool
    batches: int
    records: int


@dataclass(slots=True)
class GroupView:
    """What recovery would find of one group."""

    uid: int
    term: int
    vote: str | None
    commit: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    snapshot_index: int
    snapshot_term: int
    first_index: int
    last_index: int
    last_term: int
    entries: int
    live_below_snapshot: int
    entry_bytes: int
    is_damaged: bool


@dataclass(slots=True)
class Verdict:
    """The outcome of `verify`."""

    exit_code: int
    groups: list[GroupView] = field(default_factory=list)
    segments: list[SegmentView] = field(default_factory=list)
    #: What was cut off, is damaged, or keeps the log from being read.
    notes: list[str] = field(default_factory=list)


def iterate(directory: Path) -> Iterator[RecordView]:
    """Yield every record in the order of the files; raises StorageError for an unusable file."""
    segments = list_segments(directory)
    for segment in segments:
        image = (directory / records.segment_name(segment)).read_bytes()
        name = records.segment_name(segment)
        header = records.decode_segment_header(image[: records.SEGMENT_HEADER_BYTES], name)
        rows = scan_segment(image, header, name, is_tail=segment == segments[-1]).rows
        for at in range(0, len(rows), ROW):
            uid, index, term, birth, extent, kinds = rows[at : at + ROW]
            yield RecordView(
                segment=segment,
                offset=extent >> 32,
                kind=records.KIND_NAMES.get(kinds & 0xFF, f"kind {kinds & 0xFF}"),
                uid=uid,
                index=index,
                term=term,
                length=extent & 0xFFFFFFFF,
                entry_kind=kinds >> 8 & 0xFF,
                birth=records.describe(birth) if birth else None,
                is_bad=bool(kinds & BAD),
            )


def verify(directory: Path) -> Verdict:
    """Read everything as recovery would and judge it; never raises StorageError."""
    if not directory.is_dir():
        return Verdict(EXIT_UNUSABLE, notes=[f"{directory} is not a directory"])
    try:
        found = recovery.recover(directory, Disk(), None)
    except (StorageError, OSError) as error:
        return Verdict(EXIT_UNUSABLE, notes=[str(error)])
    groups = [_view(group) for _, group in sorted(found.groups.items())]
    segments = [
        SegmentView(
            name=records.segment_name(segment),
            segment=segment,
            node_id=scan.header.node_id,
            size_bytes=(directory / records.segment_name(segment)).stat().st_size,
            used_bytes=scan.end,
            is_sealed=scan.sealed,
            batches=scan.batches,
            records=len(scan.rows) // ROW,
        )
        for segment, scan in sorted(found.scans.items())
    ]
    is_damaged = bool(found.lost) or any(group.is_damaged for group in groups)
    return Verdict(EXIT_DAMAGED if is_damaged else EXIT_INTACT, groups, segments, found.notes)


def summary(directory: Path) -> list[GroupView]:
    """Return the groups; raises CorruptLog if the log cannot be read."""
    verdict = verify(directory)
    if verdict.exit_code == EXIT_UNUSABLE:
        raise CorruptLog("; ".join(verdict.notes))
    return verdict.groups


def snapshot_files(directory: Path) -> list[tuple[str, str]]:
    """Return (name, "intact" or what is wrong) of every snapshot file."""
    result = []
    for path in sorted(directory.glob("snap-*.snap")):
        try:
            snapshots.read(Disk(), path)
        except (StorageError, OSError) as error:
            result.append((path.name, str(error)))
        else:
            result.append((path.name, "intact"))
    return result


def _view(group: recovery.RecoveredGroup) -> GroupView:
    state, table = group.state, group.table
    configuration = state.configuration
    if group.snapshot is not None:
        configuration = group.snapshot.snapshot.configuration
    last = max(state.snapshot_index, table.last())
    above = max(0, table.last() - state.snapshot_index)
    last_term = state.snapshot_term if last == state.snapshot_index else table.terms.get(last)
    return GroupView(
        uid=group.uid,
        term=state.hard_state.term,
        vote=state.hard_state.vote,
        commit=state.hard_state.commit,
        voters=configuration.voters,
        learners=configuration.learners,
        snapshot_index=state.snapshot_index,
        snapshot_term=state.snapshot_term,
        first_index=state.snapshot_index + 1,
        last_index=last,
        last_term=last_term,
        entries=above,
        live_below_snapshot=len(table) - above,
        entry_bytes=sum(table.lengths),
        is_damaged=bool(group.lost or group.unreadable),
    )
