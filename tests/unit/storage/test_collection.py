"""Space comes back, and nothing that is gone comes back with it (design/replication.md §2.8)."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.raft.messages import HardState, NodeId
from brokerd.storage import records
from brokerd.storage.errors import StorageFailed
from brokerd.storage.faults import FaultyDisk
from brokerd.storage.records import HEADER_BYTES
from brokerd.storage.wal import GroupWrite, WriteAheadLog
from tests.unit.storage.builders import (
    THREE,
    collect_all,
    entry,
    everything,
    find,
    flip,
    open_log,
    put,
    put_range,
    save,
    segment_paths,
    small,
)


def reopened(log: WriteAheadLog, directory: Path) -> WriteAheadLog:
    log.close()
    notes: list[str] = []
    log = open_log(directory, small(recycled_segments_max=0), notes)
    assert notes == []
    return log


def segments_without_recycling(directory: Path) -> WriteAheadLog:
    return open_log(directory, small(recycled_segments_max=0))


def test_dead_segments_are_deleted(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 80, size=700)
    assert len(segment_paths(tmp_path)) > 7
    save(log, 5, 79, [])
    collect_all(log)
    assert len(segment_paths(tmp_path)) == 1
    log = reopened(log, tmp_path)
    assert (log.log(5).first_index(), log.log(5).last_index()) == (80, 79)
    log.close()


def test_live_entries_survive_and_their_segments_are_rewritten(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 80, size=700)
    live = [(3, 4), (30, 32), (77, 78)]
    save(log, 5, 79, live)
    collect_all(log)
    assert len(segment_paths(tmp_path)) <= 2
    for _ in range(3):
        for index in range(1, 80):
            kept = any(low <= index < high for low, high in live)
            expected = entry(index, size=700).data if kept else None
            assert log.log(5).entry_data(index) == expected
        snapshot = log.log(5).snapshot()
        assert snapshot is not None
        assert [found.index for found in snapshot.live] == [3, 30, 31, 77]
        log = reopened(log, tmp_path)
    log.set_live(5, [(30, 31)])
    collect_all(log)
    assert log.log(5).entry_data(30) == entry(30, size=700).data
    assert log.log(5).entry_data(31) is None
    log.close()


def test_well_used_segments_are_left_alone(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 80, size=700)
    before = segment_paths(tmp_path)
    save(log, 5, 79, [(1, 80)])
    assert log.collect() is None
    assert segment_paths(tmp_path) == before
    log.close()


def test_one_call_moves_a_bounded_amount(tmp_path: Path) -> None:
    config = small(segment_bytes=1 << 16, collect_bytes_max=2000, recycled_segments_max=0)
    log = open_log(tmp_path, config)
    put_range(log, 5, 1, 200, size=700)
    save(log, 5, 199, [(index, index + 1) for index in range(1, 200, 4)])
    work = log.collect()
    assert work is not None
    assert 1 <= sum(len(move.indexes) for move in work.moves) <= 4
    log.collect_write(work)
    log.collected(work)
    assert collect_all(log) > 3
    assert log.log(5).entry_data(5) == entry(5, size=700).data
    log.close()


def test_votes_and_configurations_outlive_their_segment(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    log.bootstrap([(7, THREE)])
    put(log, 7, entry(1), hard_state=HardState(9, NodeId("c"), 1))
    save(log, 7, 1, [])
    put_range(log, 5, 1, 80, size=700)
    save(log, 5, 79, [])
    collect_all(log)
    assert len(segment_paths(tmp_path)) == 1
    log = reopened(log, tmp_path)
    assert log.log(7).initial_state() == (HardState(9, NodeId("c"), 1), THREE)
    assert (log.log(7).first_index(), log.log(7).last_index()) == (2, 1)
    log.close()


def test_truncated_entries_do_not_come_back_when_the_truncation_is_collected(
    tmp_path: Path,
) -> None:
    """The stale suffix stands in a segment that stays, its truncation in one that goes."""
    log = segments_without_recycling(tmp_path)
    put_range(log, 6, 1, 9, size=900)  # keeps the first segment well used
    put_range(log, 5, 1, 5, size=40)
    put_range(log, 7, 1, 5, size=900)
    put(log, 5, entry(2, 2))  # 3 and 4 are gone from here on
    save(log, 5, 2, [], term=2)
    put_range(log, 7, 5, 30, size=900)
    save(log, 7, 29, [])
    collect_all(log)
    assert log.log(5).last_index() == 2
    log = reopened(log, tmp_path)
    assert (log.log(5).first_index(), log.log(5).last_index()) == (3, 2)
    assert log.log(5).term(2) == 2
    log.close()


def test_copies_that_were_overtaken_by_an_overwrite_lose(tmp_path: Path) -> None:
    """Entries are moved while a new leader's entries for the same indexes are being written."""
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 6, size=300)
    put_range(log, 7, 1, 30, size=900)
    save(log, 7, 29, [])
    work = log.collect()
    assert work is not None
    assert [list(move.indexes) for move in work.moves] == [[1, 2, 3, 4, 5]]
    late = GroupWrite(5, None, [entry(3, 2)])
    log.write([late])
    log.collect_write(work)
    log.written([late])
    log.collected(work)
    expected = [entry(1, size=300), entry(2, size=300), entry(3, 2)]
    assert everything(log, 5) == expected
    collect_all(log)
    for _ in range(2):
        log = reopened(log, tmp_path)
        assert everything(log, 5) == expected
    log.close()


def test_segment_with_writes_that_are_not_yet_visible_is_not_collected(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    writes = [GroupWrite(5, None, [entry(index, size=700)]) for index in range(1, 40)]
    for write in writes:
        log.write([write])
    assert log.collect() is None
    for write in writes:
        log.written([write])
    assert everything(log, 5) == [entry(index, size=700) for index in range(1, 40)]
    log.close()


def test_removed_group_does_not_come_back_when_its_removal_is_collected(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 6, 1, 9, size=850)  # keeps the first segment well used
    put(log, 5, entry(1))
    put_range(log, 7, 1, 5, size=900)
    log.remove_groups([5])
    put_range(log, 7, 5, 30, size=900)
    save(log, 7, 29, [])
    collect_all(log)
    log = reopened(log, tmp_path)
    assert 5 not in log.groups()
    put_range(log, 6, 9, 40, size=900)
    save(log, 6, 39, [])
    collect_all(log)
    log = reopened(log, tmp_path)
    assert 5 not in log.groups()
    assert not log._writer.state.removed, "nothing of the group is left: it is forgotten"
    log.close()


@pytest.mark.plain
def test_nothing_holds_the_number_of_a_removed_group(tmp_path: Path) -> None:
    """Ten thousand that stay would keep the memory that the groups lay in (ADR 34)."""
    log = open_log(tmp_path, small())
    uid = int("9" * 18)
    put_range(log, uid, 1, 5)
    put_range(log, 7, 1, 5)
    assert any(type(holder) is set for holder in gc.get_referrers(uid))
    log.remove_groups([uid])
    assert log.groups() == [7]
    holders = gc.get_referrers(uid)
    assert [holder for holder in holders if type(holder) in (set, dict, list)] == []
    log.close()


def test_crash_after_the_copies_before_the_deletion_changes_nothing(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 6, size=300)
    put_range(log, 7, 1, 30, size=900)
    save(log, 7, 29, [])
    work = log.collect()
    assert work is not None
    work.drop = []
    log.collect_write(work)
    log = reopened(log, tmp_path)
    assert everything(log, 5) == [entry(index, size=300) for index in range(1, 6)]
    collect_all(log)
    log = reopened(log, tmp_path)
    assert everything(log, 5) == [entry(index, size=300) for index in range(1, 6)]
    log.close()


def test_segment_that_was_given_up_but_not_yet_deleted_does_not_count(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 20, size=700)
    kept = {path: path.read_bytes() for path in segment_paths(tmp_path)}
    save(log, 5, 19, [])
    collect_all(log)
    log.close()
    gone = {path: image for path, image in kept.items() if not path.exists()}
    assert gone
    for path, image in gone.items():
        path.write_bytes(image)
    log = segments_without_recycling(tmp_path)
    assert (log.log(5).first_index(), log.log(5).last_index()) == (20, 19)
    assert not log.log(5).damaged
    log.close()
    assert not set(gone) & set(segment_paths(tmp_path))


def test_unreadable_entry_is_not_moved_and_its_segment_stays(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 6, size=300)
    put_range(log, 7, 1, 30, size=900, term=2)
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(3, size=300).data))
    save(log, 7, 29, [])
    collect_all(log)
    assert log.log(5).damaged
    assert path.exists()
    assert log.log(5).entry_data(2) == entry(2, size=300).data
    log.close()


def test_old_snapshot_files_are_deleted(tmp_path: Path) -> None:
    log = segments_without_recycling(tmp_path)
    put_range(log, 5, 1, 30)
    for index in (5, 10, 15):
        save(log, 5, index, [])
    collect_all(log)
    assert [path.name for path in tmp_path.glob("snap-*")] == [
        "snap-0000000000000005-000000000000000f-0000000000000001.snap"
    ]
    log.close()


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
    """design/replication.md §1: no silent loss; neither dropped nor rewritten."""
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


@pytest.mark.parametrize(("rounded", "is_worth_it"), [(math.floor, False), (math.ceil, True)])
def test_a_segment_is_rewritten_below_the_share_and_not_above(
    tmp_path: Path, rounded: Callable[[float], int], is_worth_it: bool
) -> None:
    log = open_log(tmp_path, small(rewrite_below_percent=1))
    put_range(log, 7, 1, 100)
    save(log, 7, 90, [(5, 15)])
    live = 10 * (HEADER_BYTES + 40)
    log._config.rewrite_below_percent = rounded(100 * live / 8192)
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
    (removal,) = (
        segment for segment in log._files.sizes if log._writer.state.removed.said_in([segment])
    )
    collect_all(log)
    assert not log._files.path(removal).exists()
    assert log._files.path(1).exists()
    log.close()
    log = open_log(tmp_path)
    assert log.groups() == [8, 9]
    log.close()
