"""Recovery: an unfinished write is cut off, anything else that is unreadable is reported (G8)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.raft.messages import HardState, NodeId
from brokerd.storage import records, recovery
from brokerd.storage.disk import Disk
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
    install,
    open_log,
    put,
    put_range,
    put_unsynced,
    save,
    segment_paths,
    small,
)


def entry_at(directory: Path, index: int, term: int = 1, size: int = 40) -> tuple[Path, int]:
    """Return where the entry's data stands."""
    data = entry(index, term, size).data
    for path in segment_paths(directory):
        if data in path.read_bytes():
            return path, find(path, data)
    raise AssertionError("the entry is nowhere")


def reopened(log: WriteAheadLog, directory: Path) -> tuple[WriteAheadLog, list[str]]:
    log.close()
    notes: list[str] = []
    return open_log(directory, notes=notes), notes


def test_unfinished_write_is_cut_off_and_said_so(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put(log, 5, entry(1))
    end = put_unsynced(log, disk, 5, entry(2, size=3000))
    path = segment_paths(tmp_path)[-1]
    log.close()
    image = bytearray(path.read_bytes())
    image[end - 1500 :] = bytes(len(image) - end + 1500)
    path.write_bytes(image)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert everything(log, 5) == [entry(1)]
    assert not log.log(5).damaged
    assert any("cut off" in note for note in notes)
    put(log, 5, entry(2, 2))
    log, notes = reopened(log, tmp_path)
    assert everything(log, 5) == [entry(1), entry(2, 2)]
    assert notes == []
    log.close()


@pytest.mark.parametrize("is_recycled", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_power_cut_loses_any_part_of_unsynced_writes_and_nothing_else(
    tmp_path: Path, seed: int, is_recycled: bool
) -> None:
    """Sectors of one write reach the disk in any order; what was synced stays whole."""
    chance = random.Random(seed)
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    if is_recycled:
        put_range(log, 6, 1, 40, size=700)
        save(log, 6, 39, [])
        collect_all(log)
        put_range(log, 6, 40, 48, size=700)
        assert not log._writer.active.header.fresh
    for index in range(1, chance.randrange(2, 12)):
        size = chance.choice((30, 300, 700, 2000))
        put(log, 5, entry(index, size=size), hard_state=HardState(1, NodeId("a"), index))
    before = everything(log, 5)
    hard_state = log.log(5).initial_state()[0]
    unsynced = [entry(len(before) + 1 + n, size=chance.choice((30, 300, 2000))) for n in range(4)]
    disk.faults.sync_fails_at = 1
    with pytest.raises(StorageFailed, match="Input/output error"):
        log.write([GroupWrite(5, HardState(2, None, 0), unsynced)])
    log.close()
    fate = {sector: chance.random() < 0.5 for sector in range(0, 1 << 20, 512)}
    disk.crash(lambda _path, offset: fate.get(offset, True))
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    found = everything(log, 5)
    assert found[: len(before)] == before
    assert found == (before + unsynced)[: len(found)]
    assert not log.log(5).damaged, notes
    assert log.log(5).initial_state()[0] in (hard_state, HardState(2, None, 0))
    log.close()


def test_a_seal_without_its_sync_is_synced_by_the_next_start(tmp_path: Path) -> None:
    """G8: a process is killed between a seal and its sync, and the power fails after the next
    start; the end of that segment would be missing in the middle of the log (seed 17000043 of the
    cluster world).
    """
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    count = 1
    while log._writer.active.end + 1000 < log._writer.active.header.size:
        put(log, 5, entry(count, size=700))
        count += 1
    # The next segment is filled and gets its header; the third sync is the seal's.
    disk.faults.sync_fails_at = 3
    with pytest.raises(StorageFailed, match="Input/output error"):
        log.write([GroupWrite(5, None, [entry(count, size=700)])])
    log.close()
    assert len(segment_paths(tmp_path)) == 2
    log = open_log(tmp_path, disk=disk)
    put(log, 5, entry(count, size=700))
    log.close()
    disk.crash(lambda _path, _offset: True)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert notes == []
    assert not log.log(5).damaged
    assert everything(log, 5) == [entry(index, size=700) for index in range(1, count + 1)]
    log.close()


def test_damaged_body_concerns_its_group_only(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for index in range(1, 11):
        put(log, 5, entry(index))
        put(log, 6, entry(index, 2))
    path, offset = entry_at(tmp_path, 4)
    log.close()
    flip(path, offset + 7)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert log.log(5).damaged
    assert everything(log, 5) == [entry(1), entry(2), entry(3)]
    assert log.log(5).entry_data(4) is None
    assert not log.log(6).damaged
    assert len(everything(log, 6)) == 10
    assert any("group 5" in note and "gives up its vote" in note for note in notes)
    log.close()


def test_damage_is_remembered_until_the_leader_has_refilled_the_group(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    path, offset = entry_at(tmp_path, 4)
    log.close()
    flip(path, offset)
    for _ in range(3):
        log = open_log(tmp_path)
        assert log.log(5).damaged
        assert log.log(5).last_index() == 3
        log.close()
    log = open_log(tmp_path)
    put_range(log, 5, 4, 12)
    assert log.log(5).damaged
    log, _ = reopened(log, tmp_path)
    assert log.log(5).damaged
    assert log.log(5).last_index() == 11
    log.mark_refilled(5)
    log.refilled(5)
    assert not log.log(5).damaged
    log, _ = reopened(log, tmp_path)
    assert not log.log(5).damaged
    assert everything(log, 5) == [entry(index) for index in range(1, 12)]
    log.close()


def test_new_damage_after_a_refill_is_damage_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    path, offset = entry_at(tmp_path, 4)
    log.close()
    flip(path, offset)
    log = open_log(tmp_path)
    put_range(log, 5, 4, 11)
    log.mark_refilled(5)
    log.refilled(5)
    path, offset = entry_at(tmp_path, 2)
    log.close()
    flip(path, offset)
    log = open_log(tmp_path)
    assert log.log(5).damaged
    assert log.log(5).last_index() == 1
    log.close()


def test_damage_to_what_was_overwritten_later_is_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    path, offset = entry_at(tmp_path, 7)
    put(log, 5, entry(6, 2))
    put(log, 5, entry(7, 2))
    log.close()
    flip(path, offset)
    log = open_log(tmp_path)
    assert not log.log(5).damaged
    assert log.log(5).last_index() == 7
    log.close()


@pytest.mark.parametrize("is_live", [True, False])
def test_damage_below_the_snapshot_counts_only_where_the_entry_is_live(
    tmp_path: Path, is_live: bool
) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    path, offset = entry_at(tmp_path, 4)
    save(log, 5, 8, [(2, 3), (4, 5)] if is_live else [(2, 3)])
    log.close()
    flip(path, offset)
    log = open_log(tmp_path)
    assert log.log(5).damaged == is_live
    assert log.log(5).entry_data(2) == entry(2).data
    assert log.log(5).entry_data(4) is None
    assert everything(log, 5) == [entry(9), entry(10)]
    log.set_live(5, [(2, 3)])
    assert not log.log(5).damaged
    log.close()


def test_unreadable_record_header_makes_every_group_doubtful(tmp_path: Path) -> None:
    """The group of the record is not known, so no group may vote until it is refilled."""
    log = open_log(tmp_path)
    for index in range(1, 11):
        put(log, 5, entry(index))
        put(log, 6, entry(index, 2))
    path, offset = entry_at(tmp_path, 4)
    log.close()
    flip(path, offset - 20)
    log = open_log(tmp_path)
    assert log.log(5).last_index() == 3
    assert log.log(6).last_index() == 10
    assert log.log(5).damaged
    assert log.log(6).damaged
    assert log.log(77).damaged, "a group that is not known may have been in the lost record"
    log.mark_refilled(6)
    log.refilled(6)
    log, _ = reopened(log, tmp_path)
    assert log.log(5).damaged
    assert not log.log(6).damaged
    log.close()


def test_damage_in_the_last_synced_write_is_not_taken_for_an_unfinished_one(
    tmp_path: Path,
) -> None:
    """FAST'18: one flipped bit at the end of the log must not cut off what was acknowledged."""
    log = open_log(tmp_path)
    put(log, 5, entry(1))
    put(log, 5, entry(2))
    path, offset = entry_at(tmp_path, 2)
    log.close()
    for place in (offset, offset - 30, offset - records.HEADER_BYTES - 20):
        flip(path, place)
        log = open_log(tmp_path)
        assert log.log(5).damaged
        log.close()
        # The opening sealed the segment; what it found stays known even if the bit turns back.
        flip(path, place)
        log = open_log(tmp_path)
        assert log.log(5).damaged
        log.close()


def test_damage_that_later_writes_prove_synced_is_never_cut_off(tmp_path: Path) -> None:
    """A body of zeros looks like a sector that was never written; the next write says it was."""
    log = open_log(tmp_path)
    zeros = entry(1)
    zeros.data = b"start" + bytes(3000) + b"end"
    put(log, 5, zeros)
    put(log, 6, entry(1))
    path = segment_paths(tmp_path)[-1]
    offset = find(path, b"start")
    log.close()
    flip(path, offset)
    log = open_log(tmp_path)
    assert log.log(5).damaged
    assert everything(log, 6) == [entry(1)]
    assert not log.log(6).damaged
    log.close()


def test_damaged_hard_state_is_damage_unless_a_later_one_stands(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 5, hard_state=HardState(7, NodeId("first-candidate"), 0))
    put(log, 5, hard_state=HardState(8, NodeId("second-candidate"), 0))
    put_range(log, 6, 1, 3)
    path = segment_paths(tmp_path)[-1]
    first, second = find(path, b"first-candidate"), find(path, b"second-candidate")
    log.close()
    flip(path, first)
    log = open_log(tmp_path)
    assert not log.log(5).damaged
    assert log.log(5).initial_state()[0] == HardState(8, NodeId("second-candidate"), 0)
    log.close()
    flip(path, second)
    log = open_log(tmp_path)
    assert log.log(5).damaged
    assert not log.log(6).damaged
    log.close()


def test_missing_segment_file_is_noticed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 40, size=700)
    log.close()
    segment_paths(tmp_path)[1].unlink()
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert log.log(5).damaged
    assert any("the file is missing" in note for note in notes)
    log.close()


def test_missing_newest_segment_file_is_noticed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 40, size=700)
    log.close()
    segment_paths(tmp_path)[-1].unlink()
    log = open_log(tmp_path)
    assert log.log(5).damaged
    log.close()


def test_truncated_segment_file_is_noticed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 40, size=700)
    log.close()
    for path in segment_paths(tmp_path)[:1]:
        path.write_bytes(path.read_bytes()[:4000])
    log = open_log(tmp_path)
    assert log.log(5).damaged
    log.close()


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_lost_snapshot_empties_and_damages_its_group_only(tmp_path: Path, how: str) -> None:
    log = open_log(tmp_path)
    for uid in (5, 6):
        put_range(log, uid, 1, 11)
    put(log, 5, hard_state=HardState(4, NodeId("b"), 10))
    save(log, 5, 6, [(2, 3)])
    save(log, 6, 6, [(2, 3)])
    log.close()
    path = next(tmp_path.glob("snap-0000000000000005*"))
    path.unlink() if how == "missing" else flip(path, 60)
    for _ in range(2):
        log = open_log(tmp_path)
        group = log.log(5)
        assert group.damaged
        assert (group.first_index(), group.last_index()) == (1, 0)
        assert group.initial_state()[0] == HardState(4, NodeId("b"), 10)
        assert not log.log(6).damaged
        log.close()
    log = open_log(tmp_path)
    install(log, 5, 20, 4, [entry(3)])
    log.mark_refilled(5)
    log.refilled(5)
    assert not log.log(5).damaged
    log, _ = reopened(log, tmp_path)
    assert not log.log(5).damaged
    assert log.log(5).first_index() == 21
    log.close()


def test_a_snapshot_that_is_lost_again_is_damage_again(tmp_path: Path) -> None:
    """G8: what was made good was an earlier file of the same index (seed 17004296 of the cluster
    world): the group was empty and counted as whole.
    """
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    save(log, 5, 6, [(2, 3)])
    for _ in range(2):
        log.close()
        flip(next(tmp_path.glob("snap-*")), 60)
        for _ in range(2):
            log = open_log(tmp_path)
            assert log.log(5).damaged
            assert log.log(5).last_index() == 0
            log.close()
        log = open_log(tmp_path)
        install(log, 5, 6, 1, [entry(3)])
        put_range(log, 5, 7, 11)
        log.mark_refilled(5)
        log.refilled(5)
        log, _ = reopened(log, tmp_path)
        assert not log.log(5).damaged
        assert log.log(5).last_index() == 10
    log.close()


def test_damage_outlives_an_installed_snapshot_until_the_leader_has_refilled_the_rest(
    tmp_path: Path,
) -> None:
    """G8: the leader's newest snapshot may be older than what was acknowledged here and lost."""
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    path, offset = entry_at(tmp_path, 4)
    log.close()
    flip(path, offset - 20)
    log = open_log(tmp_path)
    assert log.log(5).damaged
    install(log, 5, 6, 4, [entry(3)])
    assert log.log(5).damaged
    for _ in range(2):
        log, _ = reopened(log, tmp_path)
        assert log.log(5).damaged
        assert log.log(5).last_index() == 6
    put_range(log, 5, 7, 11, term=4)
    log.mark_refilled(5)
    log.refilled(5)
    assert not log.log(5).damaged
    log, _ = reopened(log, tmp_path)
    assert not log.log(5).damaged
    assert log.log(5).last_index() == 10
    assert log.log(5).entry_data(3) == entry(3).data
    log.close()


def test_damage_is_not_forgotten_when_its_segment_is_collected(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.bootstrap([(5, THREE)])
    put_range(log, 5, 1, 40, size=700)
    path, offset = entry_at(tmp_path, 2, size=700)
    log.close()
    flip(path, offset)
    log = open_log(tmp_path)
    put_range(log, 5, 2, 60, size=700)
    save(log, 5, 58, [])
    collect_all(log)
    log, _ = reopened(log, tmp_path)
    assert log.log(5).damaged
    log.close()


def test_recycled_segment_does_not_bring_back_its_earlier_content(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(recycled_segments_max=4))
    put_range(log, 5, 1, 60, size=700)
    save(log, 5, 59, [])
    collect_all(log)
    assert list(tmp_path.glob("*.free"))
    put_range(log, 5, 60, 75, size=300)
    expected = [entry(index, size=300) for index in range(60, 75)]
    for _ in range(3):
        log.close()
        notes: list[str] = []
        log = open_log(tmp_path, small(recycled_segments_max=4), notes)
        assert everything(log, 5) == expected
        assert not log.log(5).damaged
        assert notes == []
    log.close()


def test_unfinished_write_into_a_recycled_segment_is_cut_off(tmp_path: Path) -> None:
    config = small(recycled_segments_max=4)
    disk = FaultyDisk()
    log = open_log(tmp_path, config, disk=disk)
    put_range(log, 5, 1, 60, size=700)
    save(log, 5, 59, [])
    collect_all(log)
    put_range(log, 5, 60, 75, size=300)
    assert not log._writer.active.header.fresh
    before = everything(log, 5)
    disk.faults.sync_fails_at = 1
    with pytest.raises(StorageFailed, match="cannot write the log"):
        log.write([GroupWrite(5, None, [entry(75, size=1500)])])
    log.close()
    disk.crash(lambda _path, offset: offset % 1024 == 0)
    notes: list[str] = []
    log = open_log(tmp_path, config, notes)
    assert everything(log, 5) == before
    assert not log.log(5).damaged, notes
    log.close()


@pytest.mark.parametrize("distance", [4, 24, 48, 52])
def test_a_flipped_bit_beside_a_sector_border_is_not_taken_for_an_unfinished_write(
    tmp_path: Path, distance: int
) -> None:
    """The part of a header behind the border may have one bit only: without it, it is zeros."""
    log = open_log(tmp_path)
    put(log, 5, entry(1))
    # The next write's first record begins so many bytes before a sector.
    border = -(log._writer.active.end + 2 * 56 + distance) % 512
    put(log, 5, entry(2, size=border + 512))
    start = log._writer.active.end
    assert (start + distance) % 512 == 0
    put(log, 5, entry(3))
    log.close()
    path = segment_paths(tmp_path)[-1]
    for offset in range(start, start + 56):
        for bit in range(8):
            flip(path, offset, bit)
            found = recovery.recover(tmp_path, Disk(), "a")
            assert found.lost or found.groups[5].lost, (offset, bit)
            flip(path, offset, bit)


def test_a_lost_sector_that_held_one_set_bit_of_a_record_is_an_unfinished_write(
    tmp_path: Path,
) -> None:
    """A sector of zeros looks like a flipped bit to it, but not to the record that began behind it
    in the same sector (cluster seed 22003529).
    """
    log = open_log(tmp_path, disk=(disk := FaultyDisk()))
    put(log, 7, entry(1))
    # The next write's first entry ends 14 bytes behind a sector's begin.
    before = log._writer.active.end + 2 * HEADER_BYTES
    size = 512 + -before % 512
    border = before + size
    first = replace(entry(2), data=b"x" * size + b"\0" * 13 + b"\1")
    put_unsynced(log, disk, 7, first, entry(3))
    log.close()
    path = segment_paths(tmp_path)[0]
    image = bytearray(path.read_bytes())
    image[border : border + 512] = bytes(512)
    path.write_bytes(image)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert [found.index for found in everything(log, 7)] == [1]
    assert not log.log(7).damaged, notes
    log.close()


def test_what_is_cut_off_is_counted_to_the_byte(tmp_path: Path) -> None:
    """From the first torn record to the end of its write."""
    log = open_log(tmp_path, disk=(disk := FaultyDisk()))
    put(log, 7, entry(1))
    start = log._writer.active.end
    end = put_unsynced(log, disk, 7, entry(2), entry(3))
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
