"""Builders for tests of the storage room: a small log, writes, and what must come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.raft.messages import Configuration, Entry, HardState, NodeId, Snapshot
from brokerd.storage.config import WalConfig
from brokerd.storage.disk import Disk
from brokerd.storage.errors import StorageFailed
from brokerd.storage.faults import FaultyDisk
from brokerd.storage.records import HEADER_BYTES
from brokerd.storage.wal import GroupWrite, WriteAheadLog

THREE = Configuration((NodeId("a"), NodeId("b"), NodeId("c")))


def small(**changes: object) -> WalConfig:
    """Small segments, no background thread, nothing cached: every read goes to the file."""
    config = WalConfig(node_id="a", segment_bytes=16384, in_background=False, cache_bytes=0)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def open_log(
    directory: Path,
    config: WalConfig | None = None,
    notes: list[str] | None = None,
    disk: Disk | None = None,
) -> WriteAheadLog:
    """Open with a disk that does not really sync, which keeps the tests fast."""
    report = notes.append if notes is not None else None
    return WriteAheadLog.open(directory, config or small(), report, disk=disk or FaultyDisk())


def entry(index: int, term: int = 1, size: int = 40, kind: int = 0) -> Entry:
    """An entry whose data names it, so that a mix-up shows."""
    text = b"%d/%d." % (index, term)
    return Entry(index, term, kind, (text * (size // len(text) + 1))[:size])


def put(
    log: WriteAheadLog, uid: int, *entries: Entry, hard_state: HardState | None = None
) -> GroupWrite:
    """Write and show one group's entries."""
    write = GroupWrite(uid, hard_state, list(entries))
    log.write([write])
    log.written([write])
    return write


def put_unsynced(log: WriteAheadLog, disk: FaultyDisk, uid: int, *entries: Entry) -> int:
    """Write and have the sync fail, as in a power cut; return where the write ends."""
    disk.faults.sync_fails_at = 1
    with pytest.raises(StorageFailed):
        log.write([GroupWrite(uid, None, list(entries))])
    return log._writer.active.end + sum(
        HEADER_BYTES + size for size in (0, *(len(entry.data) for entry in entries))
    )


def put_range(log: WriteAheadLog, uid: int, low: int, high: int, **how: int) -> None:
    """One write per entry [low, high)."""
    for index in range(low, high):
        put(log, uid, entry(index, **how))


def save(
    log: WriteAheadLog, uid: int, index: int, live: list[tuple[int, int]] | None, term: int = 1
) -> Snapshot:
    snapshot = Snapshot(index, term, THREE, b"state at %d" % index)
    log.save_snapshot(uid, snapshot, live)
    log.snapshot_saved(uid, snapshot, live)
    return snapshot


def install(
    log: WriteAheadLog, uid: int, index: int, term: int, live: list[Entry], commit: int = 0
) -> Snapshot:
    snapshot = Snapshot(index, term, THREE, b"state at %d" % index, live)
    hard_state = HardState(term, None, commit or index)
    log.install_snapshot(uid, snapshot, hard_state)
    log.snapshot_installed(uid, snapshot, hard_state)
    return snapshot


def collect_all(log: WriteAheadLog, rounds_max: int = 200) -> int:
    """Collect until nothing is worth it; return the number of rounds."""
    for done in range(rounds_max):
        work = log.collect()
        if work is None:
            return done
        log.collect_write(work)
        log.collected(work)
    raise AssertionError("collection does not come to an end")


def everything(log: WriteAheadLog, uid: int) -> list[Entry]:
    """All entries above the snapshot."""
    group = log.log(uid)
    first, last = group.first_index(), group.last_index()
    return group.entries(first, last + 1, 1 << 30) if first <= last else []


def segment_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("wal-*.log"))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file."""
    image = bytearray(path.read_bytes())
    image[offset] ^= 1 << bit
    path.write_bytes(image)


def find(path: Path, needle: bytes) -> int:
    """Return the offset of bytes that stand in the file exactly once."""
    image = path.read_bytes()
    assert image.count(needle) == 1, "ambiguous"
    return image.index(needle)
