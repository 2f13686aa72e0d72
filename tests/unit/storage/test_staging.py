"""A leader's snapshot that comes in pieces: nothing of it counts before all of it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.raft.messages import HardState, NodeId, Snapshot
from brokerd.storage import inspect, records, staging
from brokerd.storage.errors import StorageFailed
from brokerd.storage.faults import FaultyDisk
from brokerd.storage.staging import StagedEntries, Staging
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import (
    THREE,
    collect_all,
    entry,
    everything,
    find,
    flip,
    open_log,
    put_range,
    save,
    segment_paths,
    small,
)

UID = 5


def stage(log: WriteAheadLog, *indexes: int, size: int = 40, term: int = 1) -> Staging:
    """Stage these entries, each in a chunk and a write of its own."""
    staged = log.begin_staging(UID)
    more(log, staged, *indexes, size=size, term=term)
    return staged


def more(log: WriteAheadLog, staged: Staging, *indexes: int, size: int = 40, term: int = 1) -> None:
    for index in indexes:
        chunk = staging.extend(staged, [entry(index, term, size)])
        log.stage([chunk])
        log.staged([chunk])


def install(log: WriteAheadLog, staged: Staging, index: int) -> None:
    snapshot = Snapshot(index, 1, THREE, b"state", StagedEntries(staged))
    hard_state = HardState(1, NodeId("b"), index)
    log.install_snapshot(UID, snapshot, hard_state)
    log.snapshot_installed(UID, snapshot, hard_state)


def live(log: WriteAheadLog) -> dict[int, bytes]:
    """Return what is there at or below the snapshot."""
    group = log.log(UID)
    found = {index: group.entry_data(index) for index in range(1, group.first_index())}
    return {index: data for index, data in found.items() if data is not None}


def test_staged_entries_become_the_groups_with_the_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, UID, 1, 4)
    staged = stage(log, 2, 3, 7)
    assert [found.index for found in everything(log, UID)] == [1, 2, 3]
    install(log, staged, 9)
    put_range(log, UID, 10, 12)
    for _ in range(2):
        group = log.log(UID)
        assert (group.first_index(), group.last_index()) == (10, 11)
        assert live(log) == {index: entry(index).data for index in (2, 3, 7)}
        assert group.initial_state() == (HardState(1, NodeId("b"), 9), THREE)
        snapshot = group.snapshot()
        assert snapshot is not None
        assert [found.index for found in snapshot.live] == [2, 3, 7]
        log.close()
        log = open_log(tmp_path)
    log.close()


def test_a_process_that_is_killed_before_the_snapshot_is_whole_has_what_it_had(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    put_range(log, UID, 1, 4)
    stage(log, 2, 3, 7, size=3_000)
    log.close()
    for _ in range(2):
        log = open_log(tmp_path)
        assert [found.index for found in everything(log, UID)] == [1, 2, 3]
        assert not log.log(UID).damaged
        log.close()


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_disk_that_fails_in_the_middle_leaves_what_was_there(
    tmp_path: Path, fails_at: int
) -> None:
    """Power is lost as well: what was not synced is gone."""
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put_range(log, UID, 1, 4)
    disk.faults.sync_fails_at = fails_at
    with pytest.raises(StorageFailed):
        install(log, stage(log, 2, 7), 9)
    log.close()
    disk.crash(lambda path, offset: True)
    log = open_log(tmp_path)
    assert [found.index for found in everything(log, UID)] == [1, 2, 3]
    staged = stage(log, 2, 7)
    install(log, staged, 9)
    log.close()
    log = open_log(tmp_path)
    assert set(live(log)) == {2, 7}
    log.close()


def test_another_attempt_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = stage(log, 1, 2, 3)
    log.give_up(first)
    log.give_up(first)
    late = staging.extend(first, [entry(4)])
    log.stage([late])
    log.staged([late])
    log.close()
    log = open_log(tmp_path)
    staged = stage(log, 2, 6, term=2)
    assert staged.number != first.number
    install(log, staged, 9)
    for _ in range(2):
        assert live(log) == {index: entry(index, 2).data for index in (2, 6)}
        log.close()
        log = open_log(tmp_path)
    log.close()


def test_space_of_what_was_given_up_comes_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(recycled_segments_max=0))
    put_range(log, 6, 1, 3)
    staged = stage(log, *range(1, 30), size=3_000)
    assert collect_all(log) == 0
    assert log.stats.segments > 10
    log.give_up(staged)
    collect_all(log)
    assert log.stats.segments <= 2
    assert [found.index for found in everything(log, 6)] == [1, 2]
    log.close()


def test_installed_entries_stay_wherever_cleaning_puts_them(tmp_path: Path) -> None:
    """The record that adopted them goes with its segment; what is repeated adopts them again."""
    config = small(recycled_segments_max=0, rewrite_below_percent=90)
    log = open_log(tmp_path, config)
    staged = stage(log, *range(1, 30, 3), size=300)
    put_range(log, 6, 1, 40, size=300)
    install(log, staged, 30)
    put_range(log, UID, 31, 90, size=300)
    save(log, 6, 39, [])
    save(log, UID, 80, [(1, 8), (60, 61)])
    for turn in range(3):
        collect_all(log)
        put_range(log, 6, 40 + 20 * turn, 60 + 20 * turn, size=300)
        save(log, 6, 59 + 20 * turn, [])
    collect_all(log)
    assert min(log._files.sizes) > 5
    for _ in range(2):
        assert set(live(log)) == {1, 4, 7, 60}
        assert live(log)[4] == entry(4, 1, 300).data
        assert [found.index for found in everything(log, UID)] == list(range(81, 90))
        assert not log.log(UID).damaged
        log.close()
        log = open_log(tmp_path, config)
    log.close()


@pytest.mark.parametrize("is_flipped", [False, True])
def test_installed_entries_that_stand_in_two_segments_are_found(
    tmp_path: Path, is_flipped: bool
) -> None:
    """The process ends between moving them and dropping the segment they came from.

    What happens to the original afterwards is nobody's concern any more.
    """
    config = small(rewrite_below_percent=90)
    log = open_log(tmp_path, config)
    install(log, stage(log, 4, 5, 8, size=300), 9)
    put_range(log, UID, 10, 60, size=300)
    origin = log.log(UID).table.segments.get(4)
    work = log.collect()
    assert work is not None
    assert [(move.segment, list(move.indexes)[:3]) for move in work.moves] == [(origin, [4, 5, 8])]
    log.collect_write(work)
    log.close()
    path = segment_paths(tmp_path)[0]
    if is_flipped:
        flip(path, find(path, entry(5, 1, 300).data))
    for _ in range(2):
        log = open_log(tmp_path, config)
        group = log.log(UID)
        assert list(group.table.indexes) == [4, 5, 8, *range(10, 60)]
        assert live(log) == {index: entry(index, 1, 300).data for index in (4, 5, 8)}
        assert not group.damaged
        log.close()
    log = open_log(tmp_path)
    collect_all(log)
    assert origin not in log._files.sizes
    assert set(live(log)) == {4, 5, 8}
    log.close()


def test_a_flipped_bit_in_a_staged_entry_is_damage_once_it_counts(tmp_path: Path) -> None:
    """G8"""
    log = open_log(tmp_path)
    staged = stage(log, 2, 7)
    install(log, staged, 9)
    put_range(log, UID, 10, 12)
    log.close()
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(7).data))
    assert inspect.verify(tmp_path).exit_code == inspect.EXIT_DAMAGED
    log = open_log(tmp_path)
    assert log.log(UID).damaged
    assert set(live(log)) == {2}
    staged = stage(log, 2, 7)
    install(log, staged, 12)
    assert not log.log(UID).damaged
    log.close()
    log = open_log(tmp_path)
    assert not log.log(UID).damaged
    assert set(live(log)) == {2, 7}
    log.close()


def test_a_flipped_bit_in_what_never_was_installed_harms_nobody(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, UID, 1, 4)
    stage(log, 7)
    put_range(log, UID, 4, 5)
    log.close()
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(7).data))
    log = open_log(tmp_path)
    assert not log.log(UID).damaged
    assert [found.index for found in everything(log, UID)] == [1, 2, 3, 4]
    log.close()


def test_a_group_that_is_removed_meanwhile_stays_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(recycled_segments_max=0))
    staged = stage(log, *range(1, 9), size=3_000)
    log.remove_groups([UID])
    more(log, staged, 9)
    install(log, staged, 9)
    assert UID not in log.groups()
    collect_all(log)
    assert log.stats.segments <= 2
    log.close()
    log = open_log(tmp_path)
    assert UID not in log.groups()
    log.close()


def test_numbers_of_stagings_begin_again_and_are_never_nought() -> None:
    assert staging.following(0) == 1
    assert staging.following(records.STAGINGS_MAX) == 1


def test_what_stands_for_staged_entries_shows_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    shown = StagedEntries(stage(log, 1, 2))
    assert (len(shown), list(shown), entry(1) in shown) == (0, [], False)
    log.close()


def test_staged_records_are_listed_by_inspect(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    stage(log, 2, 7)
    log.close()
    staged = [view for view in inspect.iterate(tmp_path) if view.kind == "staged"]
    assert [(view.uid, view.index, view.is_bad) for view in staged] == [
        (UID, 2, False),
        (UID, 7, False),
    ]
