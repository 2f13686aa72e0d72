"""What was synced stands in the segment's head too: a cut tail is not taken for a torn write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.raft.messages import HardState
from brokerd.storage import records
from brokerd.storage.records import SEGMENT_DATA_START, SYNC_MARK_AT
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import (
    FaultyDisk,
    entry,
    everything,
    open_log,
    put,
    put_range,
    put_unsynced,
    save,
    segment_paths,
    small,
)

MARKS = slice(SYNC_MARK_AT, SEGMENT_DATA_START)


def files_of(tmp_path: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "LOCK"}


def put_back(tmp_path: Path, files: dict[Path, bytes]) -> None:
    """As they were; files that came since go."""
    for path in files_of(tmp_path):
        if path not in files:
            path.unlink()
    for path, image in files.items():
        path.write_bytes(image)


def written(tmp_path: Path, *, rests: bool = False) -> tuple[Path, int, int]:
    """Ten writes; return the segment, where the last one begins and where it ends."""
    log = open_log(tmp_path)
    put_range(log, 5, 1, 10, size=200)
    start = log._writer.active.end
    put(log, 5, entry(10, size=200))
    end = log._writer.active.end
    if rests:
        log.settle()
    log.close()
    return segment_paths(tmp_path)[-1], start, end


def zero(path: Path, start: int, end: int | None = None) -> None:
    image = bytearray(path.read_bytes())
    end = len(image) if end is None else end
    image[start:end] = bytes(end - start)
    path.write_bytes(image)


def reopened(tmp_path: Path) -> tuple[WriteAheadLog, list[str]]:
    notes: list[str] = []
    return open_log(tmp_path, notes=notes), notes


def test_a_tail_of_whole_records_that_reads_as_zeros_is_damage(tmp_path: Path) -> None:
    """G8: B's disk in the trial; it was taken for the ordinary end of the log."""
    path, start, _ = written(tmp_path)
    intact = files_of(tmp_path)
    for cut in (start, start - 256, SEGMENT_DATA_START + 500):
        put_back(tmp_path, intact)
        zero(path, cut)
        log, notes = reopened(tmp_path)
        assert log.log(5).damaged
        assert any("DAMAGE: what was synced here is gone" in note for note in notes), notes
        assert not any("never acknowledged" in note for note in notes)
        log.close()


def test_a_damaged_log_knows_only_its_snapshot_to_be_committed(tmp_path: Path) -> None:
    """Simulator, profile lies, seed 484: what had replaced its entries was lost with the tail, and
    it took its leader for one that lacks what is committed.
    """
    log = open_log(tmp_path)
    put_range(log, 5, 1, 5)
    save(log, 5, 3, [])
    put(log, 5, entry(5), hard_state=HardState(2, None, 4))
    put(log, 5, entry(6))
    start = log._writer.active.end
    put(log, 5, entry(7), hard_state=HardState(2, None, 6))
    put(log, 5, entry(8))
    log.close()
    zero(segment_paths(tmp_path)[-1], start)
    log, _ = reopened(tmp_path)
    assert log.log(5).hard_state == HardState(2, None, 3)
    log.close()


def test_damage_at_the_tail_is_found_again_at_the_next_start(tmp_path: Path) -> None:
    path, start, _ = written(tmp_path)
    zero(path, start)
    for _ in range(3):
        log, _ = reopened(tmp_path)
        assert log.log(5).damaged
        assert [found.index for found in everything(log, 5)] == list(range(1, 10))
        log.close()
    log, _ = reopened(tmp_path)
    put(log, 5, entry(10, 2))
    log.mark_refilled(5)
    log.refilled(5)
    log.close()
    log, _ = reopened(tmp_path)
    assert not log.log(5).damaged
    assert everything(log, 5)[-1] == entry(10, 2)
    log.close()


def test_a_segment_of_which_only_the_first_page_is_left_was_in_use(tmp_path: Path) -> None:
    path, _, _ = written(tmp_path)
    zero(path, SYNC_MARK_AT)
    log, _ = reopened(tmp_path)
    assert log._lost
    log.close()


@pytest.mark.parametrize("with_tail", [False, True])
def test_an_unreadable_mark_is_damage_whether_or_not_the_tail_is_there(
    tmp_path: Path, with_tail: bool
) -> None:
    """G8: it cannot be known then that nothing is missing."""
    path, start, _ = written(tmp_path)
    zero(path, MARKS.start, MARKS.stop)
    if with_tail:
        zero(path, start)
    log, notes = reopened(tmp_path)
    assert log.log(5).damaged
    assert any("what was synced" in note for note in notes), notes
    log.close()


def test_one_copy_of_the_mark_is_enough(tmp_path: Path) -> None:
    path, start, _ = written(tmp_path, rests=True)
    intact = files_of(tmp_path)
    for copy in (SYNC_MARK_AT, SYNC_MARK_AT + records.SYNC_MARK_COPY):
        for cut, has_file in ((None, True), (start, True), (start, False)):
            put_back(tmp_path, intact)
            zero(path, copy, copy + records.SYNC_MARK_COPY)
            if cut is not None:
                zero(path, cut)
            if not has_file:
                (tmp_path / records.MARK_NAME).unlink()
            log, _ = reopened(tmp_path)
            assert log.log(5).damaged == (cut is not None)
            log.close()


def test_a_write_whose_sync_did_not_come_through_is_still_torn(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put_range(log, 5, 1, 10)
    start = log._writer.active.end
    put_unsynced(log, disk, 5, entry(10, size=2000))
    path = segment_paths(tmp_path)[-1]
    log.close()
    zero(path, start + 600)
    log, notes = reopened(tmp_path)
    assert not log.log(5).damaged
    assert any("never acknowledged" in note for note in notes), notes
    log.close()


@pytest.mark.parametrize(
    "lost",
    [
        lambda offset: offset == SYNC_MARK_AT - SYNC_MARK_AT % 512,
        lambda offset: SYNC_MARK_AT <= offset < SEGMENT_DATA_START,
        lambda offset: offset >= SEGMENT_DATA_START,
        lambda offset: True,
    ],
    ids=["one-copy", "both-copies", "records", "everything"],
)
def test_a_power_cut_within_a_write_leaves_a_whole_log(
    tmp_path: Path, lost: Callable[[int], bool]
) -> None:
    """The mark of the write before is not synced yet: that it is old must not count as damage."""
    for count in range(1, 6):
        directory = tmp_path / str(count)
        disk = FaultyDisk()
        log = open_log(directory, disk=disk)
        put_range(log, 5, 1, count)
        put_unsynced(log, disk, 5, entry(count, size=700))
        log.close()
        disk.crash(lambda path, offset: lost(offset))
        log, notes = reopened(directory)
        assert not log.log(5).damaged, notes
        assert everything(log, 5)[: count - 1] == [entry(index) for index in range(1, count)]
        log.close()


def test_a_log_at_rest_makes_its_mark_durable_once(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put_range(log, 5, 1, 4)
    start = log._writer.active.end
    put(log, 5, entry(4))
    syncs = disk.syncs
    log.settle()
    log.settle()
    assert disk.syncs == syncs + 1
    log.close()
    disk.crash(lambda path, offset: True)
    zero(segment_paths(tmp_path)[-1], start)
    log, _ = reopened(tmp_path)
    assert log.log(5).damaged
    log.close()


def test_a_copied_directory_is_suspected_until_it_is_trusted(tmp_path: Path) -> None:
    """Its checksums are right; whether it is older than what others remember only they can say."""
    original, copy = tmp_path / "a", tmp_path / "b"
    log = open_log(original)
    put_range(log, 5, 1, 4)
    log.close()
    shutil.copytree(original, copy)
    for _ in range(2):
        log, notes = reopened(copy)
        assert log.log(5).damaged
        assert len(log.regressions.places()) == 1
        log.close()
    log, notes = reopened(copy)
    assert not any("copied" in note for note in notes), "said once"
    suspected_regressions = log.regressions.places()
    log.regressions.write_end(suspected_regressions)
    log.regressions.ended(suspected_regressions)
    assert not log.log(5).damaged
    put(log, 8, entry(1))
    assert not log.log(8).damaged
    log.close()
    log, _ = reopened(copy)
    assert not log.log(5).damaged
    assert not log.regressions.places()
    log.close()
    log = open_log(original)
    assert not log.log(5).damaged
    log.close()


def test_a_suspicion_lasts_until_each_group_is_refilled(tmp_path: Path) -> None:
    log = open_log(tmp_path, small())
    put(log, 5, entry(1))
    put(log, 6, entry(1))
    where = log.regressions.begin()
    log.regressions.write(where, log.regressions.promises())
    assert log.log(5).damaged
    log.mark_refilled(5)
    log.refilled(5)
    log.close()
    log, _ = reopened(tmp_path)
    assert not log.log(5).damaged
    assert log.log(6).damaged
    assert log.log(7).damaged, "an unknown group may have been there"
    log.accept_loss()
    log.close()
    log, _ = reopened(tmp_path)
    assert not any(log.log(uid).damaged for uid in (5, 6, 7))
    log.close()


def test_the_head_is_marked_now_and_then_and_not_with_each_write(tmp_path: Path) -> None:
    """It costs a page of the disk's sync; the file of marks costs none."""
    log = open_log(tmp_path, small(segment_bytes=1 << 17))
    path = segment_paths(tmp_path)[0]
    header = log._writer.active.header
    seen = set()
    for index in range(1, 3 * records.MARK_EVERY_BATCHES):
        put(log, 5, entry(index))
        mark = records.decode_sync_mark(path.read_bytes(), header)
        assert mark is not None
        seen.add(mark.batch)
        last = records.decode_sync_mark((tmp_path / records.MARK_NAME).read_bytes(), header, (0,))
        assert last == records.SyncMark(log._writer.state.batches, log._writer.active.end)
    every = records.MARK_EVERY_BATCHES
    assert seen == {0, every, 2 * every, 3 * every}
    log.close()
    head = bytearray(path.read_bytes())
    first = records.SyncMark(0, SEGMENT_DATA_START)
    stale = records.twice(records.encode_sync_mark(header, first))
    head[SYNC_MARK_AT : SYNC_MARK_AT + len(stale)] = stale
    path.write_bytes(head)
    log, notes = reopened(tmp_path)
    assert log.log(5).damaged, "older than it can be"
    assert any("unreadable or old" in note for note in notes)
    log.close()
