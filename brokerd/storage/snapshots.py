"""Snapshot files: a machine's state at an index, one file each, never changed once named.

For wal.py, recovery.py and inspect.py.  A file counts only if a GROUP record of the log names its
index and term: it is written first (temporary name, fsync, rename, fsync of the directory), the
record after it.  Bodies of live messages are not in it, they stay in the log.
"""

from __future__ import annotations

import contextlib
import errno
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from brokerd.raft.messages import NodeId, Snapshot, configuration_of
from brokerd.storage.descriptors import SHORTAGES
from brokerd.storage.disk import Disk
from brokerd.storage.errors import CorruptLog, NoDescriptor, NoRoom, UnknownFormat

MAGIC = b"BRKDSNP\n"
FORMAT_VERSION = 1
#: magic, version, group uid, index, term, bytes of the description, bytes of the state.
HEAD = struct.Struct("<8sIQQQIQ")

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))

LiveRanges = Sequence[tuple[int, int]]


@dataclass(slots=True)
class SnapshotFile:
    """A decoded file."""

    uid: int
    snapshot: Snapshot
    #: Ranges [low, high) of entries at or below the index that the state refers to; None: unknown.
    live: list[tuple[int, int]] | None


def path_of(directory: Path, uid: int, index: int, term: int) -> Path:
    return directory / f"snap-{uid:016x}-{index:016x}-{term:016x}.snap"


def encode(uid: int, snapshot: Snapshot, live: LiveRanges | None) -> bytes:
    """Return the file's bytes: head, description, state, checksum over all of it."""
    configuration = snapshot.configuration
    description = json.dumps(
        {
            "voters": configuration.voters,
            "learners": configuration.learners,
            "live": None if live is None else [list(pair) for pair in live],
            "terms": snapshot.terms,
        },
        separators=(",", ":"),
    ).encode()
    head = HEAD.pack(
        MAGIC,
        FORMAT_VERSION,
        uid,
        snapshot.index,
        snapshot.term,
        len(description),
        len(snapshot.data),
    )
    image = head + description + snapshot.data
    checksum: int = google_crc32c.value(image)
    return image + checksum.to_bytes(4, "little")


def decode(image: bytes, name: str) -> SnapshotFile:
    """Raise CorruptLog unless every byte is as written, UnknownFormat for another version."""
    if len(image) < HEAD.size + 4 or image[:8] != MAGIC:
        raise CorruptLog(f"{name}: not a snapshot file")
    if google_crc32c.value(image[:-4]) != int.from_bytes(image[-4:], "little"):
        raise CorruptLog(f"{name}: checksum failure in the snapshot file")
    _, version, uid, index, term, description_bytes, data_bytes = HEAD.unpack_from(image)
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"{name}: snapshot format version {version}; this build reads {FORMAT_VERSION}"
        )
    start = HEAD.size + description_bytes
    if start + data_bytes + 4 != len(image):
        raise CorruptLog(f"{name}: snapshot file has a wrong length")
    description = json.loads(image[HEAD.size : start])
    configuration = configuration_of(
        tuple(NodeId(name) for name in description["voters"]),
        tuple(NodeId(name) for name in description["learners"]),
    )
    live = description["live"]
    # The releases before wrote none.
    terms = tuple((first, number) for first, number in description.get("terms", ()))
    return SnapshotFile(
        uid,
        Snapshot(index, term, configuration, image[start:-4], terms=terms),
        None if live is None else [(low, high) for low, high in live],
    )


def write(
    disk: Disk, directory: Path, uid: int, snapshot: Snapshot, live: LiveRanges | None
) -> Path:
    """Write a snapshot file durably; raises OSError, and NoRoom where it can be tried again."""
    path = path_of(directory, uid, snapshot.index, snapshot.term)
    temporary = path.with_suffix(".tmp")
    if temporary.exists():
        disk.unlink(temporary)
    try:
        disk.write_new(temporary, encode(uid, snapshot, live))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # Whatever there is of it takes room that the log needs.
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise NoRoom(f"{path.name}, {len(snapshot.data)} bytes: {error.strerror}") from error
    disk.rename(temporary, path)
    disk.sync_directory(directory)
    return path


def read(disk: Disk, path: Path) -> SnapshotFile:
    """Read and check a file; raises CorruptLog, also when it is missing, NoDescriptor, OSError."""
    try:
        descriptor = disk.open_now(path)
    except FileNotFoundError as missing:
        raise CorruptLog(f"{path.name}: the snapshot file is missing") from missing
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise
        raise NoDescriptor(f"no descriptor to read {path.name}") from error
    try:
        return decode(disk.read(descriptor, disk.size(path), 0), path.name)
    finally:
        disk.close(descriptor)
