"""Every single-bit flip and every truncation of a small log: nothing is accepted in silence.

An image either gives back all that had been synced, or the log refuses to open, or the groups that
are concerned are marked damaged (replication.md §1, §5; G8).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.raft.messages import Entry, HardState, NodeId
from brokerd.storage import inspect, records, recovery
from brokerd.storage.disk import Disk
from brokerd.storage.errors import CorruptLog, UnknownFormat, WrongNode
from brokerd.storage.scan import scan_segment
from brokerd.storage.wal import GroupWrite, WriteAheadLog
from tests.unit.storage.builders import (
    THREE,
    collect_all,
    entry,
    everything,
    install,
    open_log,
    put_range,
    save,
    segment_paths,
    small,
)

#: Bits per byte that are tried; 8 for a full run.
BITS = int(os.environ.get("BROKERD_TEST_WAL_BITS", "1"))
REFUSED = (CorruptLog, UnknownFormat, WrongNode)


class Expected:
    """What was synced, by group."""

    def __init__(self, log: WriteAheadLog) -> None:
        self.entries: dict[int, list[Entry]] = {}
        self.hard_states: dict[int, HardState] = {}
        self.live: dict[int, dict[int, bytes | None]] = {}
        for uid in log.groups():
            group = log.log(uid)
            self.entries[uid] = everything(log, uid)
            self.hard_states[uid] = group.initial_state()[0]
            self.live[uid] = {
                index: group.entry_data(index) for index in range(1, group.first_index())
            }


def build(directory: Path, *, recycled: bool) -> Expected:
    """Write a log with a bit of everything; the last write is one of two groups."""
    config = small(recycled_segments_max=4 if recycled else 0)
    log = open_log(directory, config)
    if recycled:
        put_range(log, 9, 1, 30, size=900)
        save(log, 9, 29, [])
        collect_all(log)
        put_range(log, 9, 30, 34, size=900)
        assert not log._writer.active.header.fresh
    log.bootstrap(5, THREE)
    writes = [
        GroupWrite(5, HardState(1, NodeId("a"), 0), [entry(1), entry(2)]),
        GroupWrite(6, HardState(2, NodeId("b"), 0), [entry(1, 2, size=100)]),
    ]
    log.write(writes)
    log.written(writes)
    put_range(log, 5, 3, 6)
    save(log, 5, 3, [(2, 3)])
    install(log, 6, 9, 3, [entry(4, 2)])
    writes = [
        GroupWrite(5, HardState(3, NodeId("c"), 5), [entry(5, 3), entry(6, 3)]),
        GroupWrite(6, HardState(3, None, 9), [entry(10, 3, size=90)]),
    ]
    log.write(writes)
    log.written(writes)
    expected = Expected(log)
    log.close()
    return expected


def judge(directory: Path, expected: Expected) -> str:
    """Return "refused", "damaged" or "whole"; fail on anything accepted in silence."""
    try:
        found = recovery.recover(directory, Disk(), "a")
    except REFUSED:
        return "refused"
    verdict = "whole"
    for uid, entries in expected.entries.items():
        group = found.groups.get(uid)
        if group is None:
            assert found.lost, f"group {uid} vanished in silence"
            return "damaged"
        if group.lost or group.unreadable or found.lost:
            verdict = "damaged"
            continue
        table = group.table
        base = group.state.snapshot_index
        assert [index for index in table.indexes if index > base] == [e.index for e in entries]
        assert [table.terms.get(e.index) for e in entries] == [e.term for e in entries]
        assert group.state.hard_state == expected.hard_states[uid]
        for index, data in expected.live[uid].items():
            assert (table.find(index) >= 0) == (data is not None), (uid, index)
    return verdict


@pytest.fixture(params=[False, True], ids=["fresh", "recycled"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Expected, Path, bytes]:
    expected = build(tmp_path, recycled=request.param)
    assert judge(tmp_path, expected) == "whole"
    path = segment_paths(tmp_path)[-1]
    return tmp_path, expected, path, path.read_bytes()


@pytest.mark.timeout(600)
def test_every_flipped_byte_is_harmless_or_reported(
    image: tuple[Path, Expected, Path, bytes],
) -> None:
    directory, expected, path, whole = image
    end = inspect.verify(directory).segments[-1].used_bytes
    counts = {"refused": 0, "damaged": 0, "whole": 0}
    with path.open("r+b") as file:
        for offset in range(end):
            for bit in range(BITS):
                file.seek(offset)
                file.write(bytes((whole[offset] ^ 1 << (offset + bit) % 8,)))
                file.flush()
                counts[judge(directory, expected)] += 1
            file.seek(offset)
            file.write(whole[offset : offset + 1])
    assert sum(counts.values()) == end * BITS
    # Only what is there twice (the header) or superseded may be flipped without consequence.
    assert counts["damaged"] > (end - 1024) * BITS // 2


@pytest.mark.timeout(600)
def test_every_truncated_length_is_reported(image: tuple[Path, Expected, Path, bytes]) -> None:
    directory, expected, path, whole = image
    end = inspect.verify(directory).segments[-1].used_bytes
    for length in [*range(end + 100), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert judge(directory, expected) != "whole", length


@pytest.mark.timeout(600)
def test_every_prefix_of_the_last_write_gives_back_what_was_synced_before(
    image: tuple[Path, Expected, Path, bytes],
) -> None:
    """A process is killed inside a write: what follows in the file is what stood there before."""
    directory, _, path, whole = image
    name, header = path.name, whole[:1024]
    scan = scan_segment(whole, records.decode_segment_header(header, name), name, is_tail=True)
    start, end = scan.last_batch_start, scan.end
    before: list[int] | None = None
    for length in range(end - start):
        path.write_bytes(whole[: start + length] + bytes(end - start - length) + whole[end:])
        found = recovery.recover(directory, Disk(), "a")
        group = found.groups[5]
        if before is None:
            before = list(group.table.indexes)
            assert not group.lost
            assert before == [2, 4, 5]
        if not (group.lost or found.lost):
            assert list(group.table.indexes)[: len(before)] == before
            assert group.table.terms.get(4) == 1


def test_verify_tells_intact_damaged_and_unusable_apart(tmp_path: Path) -> None:
    build(tmp_path, recycled=False)
    assert inspect.verify(tmp_path).exit_code == inspect.EXIT_INTACT
    path = segment_paths(tmp_path)[-1]
    image = bytearray(path.read_bytes())
    image[image.index(entry(5, 3).data)] ^= 1
    path.write_bytes(image)
    verdict = inspect.verify(tmp_path)
    assert verdict.exit_code == inspect.EXIT_DAMAGED
    assert [view.uid for view in verdict.groups if view.is_damaged] == [5]
    path.write_bytes(b"nonsense")
    assert inspect.verify(tmp_path).exit_code == inspect.EXIT_UNUSABLE
    assert inspect.verify(tmp_path / "nowhere").exit_code == inspect.EXIT_UNUSABLE
