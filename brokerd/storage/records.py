"""The bytes of the write-ahead log: segment headers, records, group state.  Pure functions.

For wal.py, recovery.py and inspect.py.  Knows nothing of files; see scan.py for reading a segment.

A record is a 56-byte header and its data.  Two checksums: the header's own (seeded with the
segment's, so that leftovers of a recycled file never pass) and the data's, which the header covers.
With one checksum over both, a flipped bit in the data would also make the length and the group
untrustworthy, and one bad body would cost the whole log instead of one group.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import google_crc32c

from brokerd.raft.messages import Configuration, HardState, NodeId, configuration_of
from brokerd.storage.errors import CorruptLog, UnknownFormat

MAGIC = b"BRKDWAL\n"
#: Rises with each change that an earlier build cannot read, or that reads an earlier build's data
#: otherwise; versions 1 to 3 were of commits before the first release.
FORMAT_VERSION = 4

#: Record kinds.
BATCH = 1  # starts every write: index = its number, birth = bytes of the write
ENTRY = 2
LIVE = 3  # an entry at or below a snapshot that came with it
HARD_STATE = 4  # term = term, index = commit, data = vote
GROUP = 5  # all a group has besides entries, see GroupState
REMOVE = 6
SEGMENTS = 7  # data = ids of the segment files that must exist
SEAL = 8  # nothing follows in this file; index = id of the next segment
LOST = 9  # data = places where records of unknown groups were lost; index 1: accepted as gone
#: An entry of a snapshot that is on its way; flags = number of the staging (staging.py).
STAGED = 10
PROMISES = 11  # data = how far this log and others' were synced, see promises.py
#: Largest number of a staging of a group; after it the numbers begin again.
STAGINGS_MAX = 0xFFFF
#: Records whose data is an entry's.
ENTRY_KINDS = frozenset((ENTRY, LIVE, STAGED))

KIND_NAMES = {
    BATCH: "batch",
    ENTRY: "entry",
    LIVE: "live",
    HARD_STATE: "hard_state",
    GROUP: "group",
    REMOVE: "remove",
    SEGMENTS: "segments",
    SEAL: "seal",
    LOST: "lost",
    STAGED: "staged",
    PROMISES: "promises",
}

#: marker, header checksum | data checksum, length, uid, index, term, birth, offset, kind,
#: entry kind, flags.  `birth` 0: this is where the record was first written; otherwise the place
#: (segment << 32 | offset) from which it was moved.  `offset` is its own: misplaced writes show.
FRONT = struct.Struct("<II")
BODY = struct.Struct("<IIQQQQIBBH")
HEADER = struct.Struct("<IIIIQQQQIBBH")
HEADER_BYTES = HEADER.size
assert FRONT.size + BODY.size == HEADER_BYTES == 56

#: The segment header stands twice, in two disk sectors.
SEGMENT_HEADER = struct.Struct("<8sIIQIIH200sQQ")
SEGMENT_HEADER_COPY = 512
SEGMENT_HEADER_BYTES = 2 * SEGMENT_HEADER_COPY
#: What was synced stands twice too, in two sectors of a page of its own: it is rewritten with each
#: sync, and a device that spoils a page in a power cut must not spoil the header.
SYNC_MARK_AT = 4096
MARK_EVERY_BATCHES = 32
MARK_NAME = "synced.mark"
SYNC_MARK_COPY = 512
SEGMENT_DATA_START = 8192
#: Of segments of version 2 and before, which have no such page.

SECOND_MARK_AT = SYNC_MARK_AT + SYNC_MARK_COPY

#: salt, checksum | number of the write, offset behind it.
SYNC_MARK_FRONT = struct.Struct("<II")
SYNC_MARK_BODY = struct.Struct("<QQ")

crc: Callable[[bytes], int] = google_crc32c.value
crc_extend: Callable[[int, bytes], int] = google_crc32c.extend


@dataclass(slots=True)
class SegmentHeader:
    """The first bytes of a segment file."""

    segment: int
    size: int
    #: First four bytes of every record of this use of the file; random.
    salt: int
    #: True: behind the last record there are zeros, not leftovers of an earlier use.
    fresh: bool
    node_id: str
    #: Which file this was when it was written (Disk.identity): a copy of it is another one.
    identity: tuple[int, int] = (0, 0)
    #: Seed of the record checksums (derived).
    seed: int = 0
    #: False: one of the two copies was unreadable.
    both_copies: bool = True


@dataclass(slots=True)
class SyncMark:
    """What is known to be synced, apart from the records themselves.

    Behind each sync, before it is reported, one goes to a file of its own (MARK_NAME), which is not
    synced: it survives the process.  One that survives the machine goes to the head of the
    segment with every MARK_EVERY_BATCHES-th write, and when the log comes to rest.  A segment
    begins with one, so none is never right.
    """

    #: Number of the last write that was synced.
    batch: int
    #: Where the log ended behind it.
    end: int


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the SEGMENT_HEADER_BYTES first bytes of a segment."""
    node = header.node_id.encode()
    body = SEGMENT_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        header.size,
        header.segment,
        header.salt,
        int(header.fresh),
        len(node),
        node,
        *header.identity,
    ).ljust(SEGMENT_HEADER_COPY - 4, b"\0")
    checksum = crc(body)
    header.seed = checksum
    return (body + checksum.to_bytes(4, "little")) * 2


def decode_segment_header(image: bytes, name: str) -> SegmentHeader:
    """Parse a segment's header, from whichever copy is intact."""
    good: list[SegmentHeader] = []
    unknown: int | None = None
    for start in (0, SEGMENT_HEADER_COPY):
        copy = image[start : start + SEGMENT_HEADER_COPY]
        if len(copy) < SEGMENT_HEADER_COPY or copy[:8] != MAGIC:
            continue
        checksum = crc(copy[:-4])
        if checksum != int.from_bytes(copy[-4:], "little"):
            continue
        (_, version, size, segment, salt, fresh, length, node, file, born) = (
            SEGMENT_HEADER.unpack_from(copy)
        )
        if version != FORMAT_VERSION:
            unknown = version
            continue
        node_id = node[:length].decode()
        good.append(
            SegmentHeader(segment, size, salt, bool(fresh), node_id, (file, born), checksum)
        )
    if not good and unknown is not None:
        raise UnknownFormat(
            f"{name}: log format version {unknown}; this build reads version {FORMAT_VERSION}. "
            "Start the build that wrote it, or begin with an empty data_dir and import its "
            "definitions; nothing was changed"
        )
    if not good:
        raise CorruptLog(f"{name}: both copies of the segment header are unreadable")
    good[0].both_copies = len(good) == 2
    return good[0]


def encode_sync_mark(header: SegmentHeader, mark: SyncMark) -> bytes:
    """Return one copy of a mark."""
    body = SYNC_MARK_BODY.pack(mark.batch, mark.end)
    return SYNC_MARK_FRONT.pack(header.salt, crc_extend(header.seed, body)) + body


def twice(copy: bytes) -> bytes:
    """Return both copies of a mark, to be written at SYNC_MARK_AT."""
    return copy.ljust(SYNC_MARK_COPY, b"\0") + copy


def decode_sync_mark(
    image: bytes, header: SegmentHeader, starts: Sequence[int] = (SYNC_MARK_AT, SECOND_MARK_AT)
) -> SyncMark | None:
    """Return the newest readable copy out of a segment's first bytes, or of the file of marks;
    None: none is readable, or of this segment.
    """
    marks = []
    for start in starts:
        body_start = start + SYNC_MARK_FRONT.size
        body = bytes(image[body_start : body_start + SYNC_MARK_BODY.size])
        if len(body) < SYNC_MARK_BODY.size:
            continue
        salt, checksum = SYNC_MARK_FRONT.unpack_from(image, start)
        if salt == header.salt and crc_extend(header.seed, body) == checksum:
            marks.append(SyncMark(*SYNC_MARK_BODY.unpack(body)))
    return max(marks, key=lambda mark: mark.batch, default=None)


def encode_record(
    seed: int,
    salt: int,
    offset: int,
    kind: int,
    uid: int,
    index: int = 0,
    term: int = 0,
    data: bytes = b"",
    entry_kind: int = 0,
    birth: int = 0,
    flags: int = 0,
) -> bytes:
    """Return one record; the hot path in wal.py has this unrolled."""
    body = BODY.pack(crc(data), len(data), uid, index, term, birth, offset, kind, entry_kind, flags)
    return FRONT.pack(salt, crc_extend(seed, body)) + body + data


@dataclass(slots=True)
class GroupState:
    """A group apart from its entries, as the writer last knew it; the content of GROUP records."""

    hard_state: HardState = field(default_factory=HardState)
    #: The configuration the group was created with, until a snapshot or entry has a newer one.
    configuration: Configuration = field(default_factory=lambda: configuration_of(()))
    snapshot_index: int = 0
    snapshot_term: int = 0
    #: Index of the last entry at this point of the log: what is behind it has been cut off.
    tail: int = 0
    #: Places of damage that the leader has made good since.
    healed: tuple[int, ...] = ()
    #: Places of damage that still stand.
    lost: tuple[int, ...] = ()
    #: Number of the staging whose entries came with the snapshot; 0: none.
    staging: int = 0


class _GroupJson(TypedDict):
    #: term, vote (str or None), commit
    hard_state: list[Any]
    voters: list[str]
    learners: list[str]
    snapshot: list[int]
    tail: int
    healed: list[int]
    lost: list[int]
    staging: NotRequired[int]
    reset: bool


def encode_group_state(state: GroupState, *, reset: bool) -> bytes:
    """`reset`: the group's earlier entries are void (a leader's snapshot replaced them)."""
    hard = state.hard_state
    value: _GroupJson = {
        "hard_state": [hard.term, hard.vote, hard.commit],
        "voters": list(state.configuration.voters),
        "learners": list(state.configuration.learners),
        "snapshot": [state.snapshot_index, state.snapshot_term],
        "tail": state.tail,
        "healed": list(state.healed),
        "lost": list(state.lost),
        "staging": state.staging,
        "reset": reset,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_group_state(data: bytes) -> tuple[GroupState, bool]:
    """Return the state and whether it resets the group."""
    value: _GroupJson = json.loads(data)
    term, vote, commit = value["hard_state"]
    state = GroupState(
        hard_state=HardState(term, None if vote is None else NodeId(vote), commit),
        configuration=configuration_of(
            tuple(NodeId(name) for name in value["voters"]),
            tuple(NodeId(name) for name in value["learners"]),
        ),
        snapshot_index=value["snapshot"][0],
        snapshot_term=value["snapshot"][1],
        tail=value["tail"],
        healed=tuple(value["healed"]),
        lost=tuple(value["lost"]),
        staging=value.get("staging", 0),
    )
    return state, value["reset"]


def encode_numbers(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}Q", *ids)


def decode_numbers(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def place(segment: int, offset: int) -> int:
    """Return segment and offset as one number; places order as the log does."""
    return segment << 32 | offset


#: In the place of an offset, since no record stands there: the file is a copy; its log has
#: forgotten what it had promised (the first time in this segment; one more for each time after).
COPIED, BEHIND = 1, 2


def is_suspicion(where: int) -> bool:
    """Tell whether a place stands for a suspicion rather than for something that cannot be read."""
    return COPIED <= where & 0xFFFFFFFF < SEGMENT_HEADER_COPY


def is_copy(where: int) -> bool:
    """Tell whether a place stands for a copied file."""
    return where & 0xFFFFFFFF == COPIED


def describe(where: int) -> str:
    """Return a place for messages: file name and offset."""
    if is_suspicion(where):
        return segment_name(where >> 32)
    return f"{segment_name(where >> 32)}+{where & 0xFFFFFFFF:#x}"


def segment_name(segment: int) -> str:
    return f"wal-{segment:016x}.log"
