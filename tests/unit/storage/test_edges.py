"""The last record, the exact byte, the second of two: what a mutation run found unguarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.raft.messages import HardState, NodeId, Snapshot
from brokerd.storage import records, snapshots
from brokerd.storage.errors import CorruptLog, StorageFailed
from brokerd.storage.faults import FaultyDisk
from brokerd.storage.memory import MemoryLog
from brokerd.storage.records import HEADER_BYTES
from tests.unit.storage.builders import (
    THREE,
    collect_all,
    entry,
    everything,
    find,
    flip,
    install,
    open_log,
    put,
    put_range,
    save,
    segment_paths,
    small,
)

# ---- collection ---------------------------------------------------------------------------------


def test_segments_of_an_earlier_run_are_collected_as_well(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 300)
    log.close()
    log = open_log(tmp_path)
    before = len(segment_paths(tmp_path))
    save(log, 7, 290, [])
    collect_all(log)
    assert len(segment_paths(tmp_path)) < before - 2
    log.close()


def test_a_segment_with_an_unreadable_entry_is_left_for_inspection(tmp_path: Path) -> None:
    """replication.md §1: no silent loss; neither dropped nor rewritten."""
    log = open_log(tmp_path)
    put_range(log, 7, 1, 300)
    save(log, 7, 290, [(5, 6), (100, 101)])
    group = log.log(7)
    first = log._files.path(group.table.segments.get(5)).name
    group.unreadable = {5: records.place(group.table.segments.get(5), 2000)}
    collect_all(log)
    assert first in [path.name for path in segment_paths(tmp_path)]
    group.unreadable = {}
    collect_all(log)
    assert first not in [path.name for path in segment_paths(tmp_path)]
    log.close()


@pytest.mark.parametrize(("percent", "is_worth_it"), [(0.995, False), (1.005, True)])
def test_a_segment_is_rewritten_below_the_share_and_not_above(
    tmp_path: Path, percent: float, is_worth_it: bool
) -> None:
    log = open_log(tmp_path, small(rewrite_below_percent=1))
    put_range(log, 7, 1, 100)
    save(log, 7, 90, [(5, 15)])
    live = 10 * (HEADER_BYTES + 40)
    log._config.rewrite_below_percent = 100 * live / 8192 * percent  # type: ignore[assignment]
    collect_all(log)
    assert (log.log(7).table.segments.get(5) != 1) == is_worth_it
    log.close()


def test_one_entry_moves_however_small_the_bound(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(collect_bytes_max=1))
    put_range(log, 7, 1, 300)
    save(log, 7, 290, [(5, 8)])
    work = log.collect()
    assert work is not None
    assert [len(move.indexes) for move in work.moves] == [1]
    log.collect_write(work)
    log.collected(work)
    assert collect_all(log) >= 2
    assert [log.log(7).entry_data(index) for index in (5, 6, 7)] == [
        entry(index).data for index in (5, 6, 7)
    ]
    log.close()


def test_an_unreadable_entry_does_not_keep_the_next_one_from_being_moved(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 300)
    save(log, 7, 290, [(5, 7)])
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(5).data))
    work = log.collect()
    assert work is not None
    log.collect_write(work)
    log.collected(work)
    group = log.log(7)
    assert (group.damaged, group.table.segments.get(5), group.entry_data(6)) == (
        True,
        1,
        entry(6).data,
    )
    assert group.table.segments.get(6) > 1
    log.close()


def test_an_entry_that_the_device_refuses_does_not_keep_the_next_one_from_being_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 300)
    save(log, 7, 290, [(5, 7)])
    group = log.log(7)
    bad = group.table.offsets[group.table.find(5)]
    read = log._files.disk.read

    def refusing(descriptor: int, size: int, offset: int) -> bytes:
        if offset == bad:
            raise OSError("cannot be read")
        return read(descriptor, size, offset)

    work = log.collect()
    assert work is not None
    monkeypatch.setattr(log._files.disk, "read", refusing)
    log.collect_write(work)
    log.collected(work)
    assert group.table.segments.get(5) == 1
    assert group.table.segments.get(6) > 1
    assert group.damaged
    log.close()


def test_a_segment_that_cannot_be_retired_is_fatal_and_says_why(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put_range(log, 7, 1, 300)
    save(log, 7, 290, [])
    work = log.collect()
    assert work is not None
    assert work.drop
    disk.faults.rename_fails_at = 1
    with pytest.raises(StorageFailed, match="Input/output error"):
        log.collect_write(work)
    with pytest.raises(StorageFailed):
        put(log, 7, entry(300))
    log.close()


def test_a_removal_is_repeated_as_long_as_the_group_stands_in_any_segment(tmp_path: Path) -> None:
    """Its own segment is collected, the one with the group's entries is held by another group."""
    log = open_log(tmp_path, small(rewrite_below_percent=1))
    put(log, 7, entry(1), hard_state=HardState(3, None, 0))
    put_range(log, 8, 1, 50)
    put_range(log, 9, 1, 120)
    log.remove_groups([7])
    put_range(log, 9, 120, 300)
    save(log, 9, 290, [])
    removal = log._writer.state.removed[7]
    collect_all(log)
    assert not log._files.path(removal).exists()
    assert log._files.path(1).exists()
    log.close()
    log = open_log(tmp_path)
    assert log.groups() == [8, 9]
    log.close()


# ---- a group's log ------------------------------------------------------------------------------


def test_recent_entries_are_not_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, small(cache_bytes=1 << 20))
    put_range(log, 7, 1, 6)
    group = log.log(7)
    reads: list[int] = []

    def read(segment: int, offset: int, size: int) -> bytes:
        reads.append(offset)
        return b""

    monkeypatch.setattr(group, "_read", read)
    assert group.load_live(3, 5) == [entry(3)]
    assert group._entry(4) == entry(4)
    assert group.entry_data(5) == entry(5).data
    assert group.entries(1, 6, 1 << 20) == [entry(index) for index in range(1, 6)]
    assert reads == []
    log.close()


def test_what_is_cut_off_leaves_the_cache(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(cache_bytes=1 << 20))
    put_range(log, 7, 1, 8)
    put(log, 7, entry(4, term=2))
    assert sorted(log.log(7)._recent) == [1, 2, 3, 4]
    log.close()


def test_healing_keeps_the_live_entries_that_can_be_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 10)
    save(log, 7, 8, [(2, 3), (4, 6)])
    group = log.log(7)
    group.unreadable = {4: records.place(1, 2000)}
    group.heal()
    assert [group.entry_data(index) for index in (2, 4, 5)] == [entry(2).data, None, entry(5).data]
    assert [found.index for found in everything(log, 7)] == [9]
    assert not group.damaged
    log.close()


def test_a_leaders_live_entries_are_read_back_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = install(log, 7, 20, 2, [entry(3), entry(4), entry(9, term=2)])
    log.close()
    log = open_log(tmp_path)
    found = log.log(7).snapshot()
    assert found is not None
    assert (found.index, found.term, found.data) == (20, 2, sent.data)
    assert list(found.live) == [entry(3), entry(4), entry(9, term=2)]
    log.close()


# ---- the log in memory --------------------------------------------------------------------------


def test_memory_gives_back_what_it_was_given() -> None:
    log = MemoryLog()
    hard_state = HardState(3, NodeId("b"), 2)
    log.append(hard_state, [entry(1), entry(2), entry(3)])
    assert log.initial_state()[0] == hard_state
    snapshot = Snapshot(2, 1, THREE, b"state")
    log.save_snapshot(snapshot, [(1, 2)])
    assert log.snapshot_state() == snapshot
    assert log.snapshot() == Snapshot(2, 1, THREE, b"state", [entry(1)])
    assert log.entries(3, 4, 1) == [entry(3)]


# ---- files --------------------------------------------------------------------------------------


def test_a_snapshot_file_of_any_length_is_refused_by_name(tmp_path: Path) -> None:
    image = snapshots.encode(7, Snapshot(5, 2, THREE, b""), None)
    assert snapshots.decode(image, "x").snapshot.index == 5
    for length in range(len(image)):
        with pytest.raises(CorruptLog, match="the-name"):
            snapshots.decode(image[:length], "the-name")
    # Too short for its head, though the checksum fits.
    short = image[: snapshots.HEAD.size - 6]
    short += records.crc(short).to_bytes(4, "little")
    with pytest.raises(CorruptLog, match="the-name"):
        snapshots.decode(short, "the-name")
    path = tmp_path / "short.snap"
    path.write_bytes(image[:60])
    with pytest.raises(CorruptLog, match=r"short\.snap"):
        snapshots.read(FaultyDisk(), path)


def test_what_is_cut_off_is_counted_to_the_byte(tmp_path: Path) -> None:
    """From the first torn record to the end of its write."""
    log = open_log(tmp_path)
    put(log, 7, entry(1))
    start = log._writer.active.end
    put(log, 7, entry(2), entry(3))
    end = log._writer.active.end
    log.close()
    path = segment_paths(tmp_path)[0]
    image = bytearray(path.read_bytes())
    # Two sectors' worth of zeros where the second write should have gone.
    image[start + HEADER_BYTES : end] = bytes(end - start - HEADER_BYTES)
    path.write_bytes(image)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    torn = end - start - HEADER_BYTES
    assert any(f"{torn} bytes cut off" in note for note in notes), notes
    assert [found.index for found in everything(log, 7)] == [1]
    log.close()


def test_a_prepared_segment_is_used(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(prepare_ahead=True, recycled_segments_max=0))
    files = log._files
    files._join_preparation()
    assert files._spare_ready
    assert files.bytes_on_disk() == 2 * 8192
    assert files._source(8192) == (tmp_path / "spare.tmp", True)
    assert not files._spare_ready
    log.close()
