"""Snapshots: saved beside the log, installed instead of it, checked to the last byte."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest

from brokerd.raft.messages import HardState, NodeId, Snapshot
from brokerd.storage import records, snapshots
from brokerd.storage.disk import Disk
from brokerd.storage.errors import CorruptLog, DamagedEntry, UnknownFormat
from brokerd.storage.faults import FaultyDisk
from tests.unit.storage.builders import (
    THREE,
    collect_all,
    entry,
    everything,
    install,
    open_log,
    put,
    put_range,
    save,
)


def test_file_round_trip(tmp_path: Path) -> None:
    snapshot = Snapshot(7, 3, THREE, b"state" * 100)
    path = snapshots.write(Disk(), tmp_path, 5, snapshot, [(1, 3), (6, 7)])
    found = snapshots.read(Disk(), path)
    assert (found.uid, found.snapshot, found.live) == (5, snapshot, [(1, 3), (6, 7)])
    assert list(tmp_path.iterdir()) == [path]


def test_every_flipped_bit_and_every_length_is_noticed() -> None:
    image = snapshots.encode(5, Snapshot(7, 3, THREE, b"state"), None)
    for at in range(len(image)):
        for bit in range(8):
            broken = bytearray(image)
            broken[at] ^= 1 << bit
            with pytest.raises(CorruptLog):
                snapshots.decode(bytes(broken), "x")
        with pytest.raises(CorruptLog):
            snapshots.decode(image[:at], "x")


def test_unknown_version_is_refused() -> None:
    image = bytearray(snapshots.encode(5, Snapshot(7, 3, THREE, b"state"), None))
    image[8] = 9
    checksum = google_crc32c.value(bytes(image[:-4]))
    with pytest.raises(UnknownFormat, match="version 9"):
        snapshots.decode(bytes(image[:-4]) + checksum.to_bytes(4, "little"), "x")


def test_saving_compacts_the_log_to_what_is_live(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.bootstrap([(5, THREE)])
    put_range(log, 5, 1, 11)
    saved = save(log, 5, 7, [(2, 4)])
    for _ in range(2):
        group = log.log(5)
        assert (group.first_index(), group.last_index()) == (8, 10)
        assert [group.term(index) for index in (6, 7, 8)] == [None, 1, 1]
        assert everything(log, 5) == [entry(8), entry(9), entry(10)]
        assert [group.entry_data(index) for index in (1, 3)] == [None, entry(3).data]
        found = group.snapshot()
        assert found is not None
        assert (found.index, found.data, list(found.live)) == (7, saved.data, [entry(2), entry(3)])
        state = group.snapshot_state()
        assert state is not None
        assert (state.index, state.data, state.live) == (7, saved.data, [])
        log.close()
        log = open_log(tmp_path)
    log.close()


def test_saving_without_live_ranges_keeps_all_until_the_machine_has_spoken(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    save(log, 5, 7, None)
    assert log.log(5).entry_data(1) == entry(1).data
    log.set_live(5, [(4, 5)])
    assert log.log(5).entry_data(1) is None
    assert log.log(5).entry_data(4) == entry(4).data
    log.close()


def test_older_snapshot_is_ignored(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    save(log, 5, 7, [])
    save(log, 5, 5, [])
    assert log.log(5).first_index() == 8
    log.close()
    log = open_log(tmp_path)
    assert log.log(5).first_index() == 8
    log.close()


def test_installing_replaces_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 31)
    live = [entry(3, 4), entry(7, 4), entry(8, 4)]
    install(log, 5, 20, 4, live)
    put(log, 5, entry(21, 4))
    for _ in range(3):
        group = log.log(5)
        assert group.initial_state() == (HardState(4, None, 20), THREE)
        assert (group.first_index(), group.last_index()) == (21, 21)
        assert [group.entry_data(index) for index in (3, 5, 8)] == [
            live[0].data,
            None,
            live[2].data,
        ]
        found = group.snapshot()
        assert found is not None
        assert list(found.live) == live
        collect_all(log)
        log.close()
        log = open_log(tmp_path)
    log.close()


def test_installing_into_an_unknown_group_creates_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    install(log, 5, 20, 4, [])
    assert log.log(5).last_index() == 20
    log.close()
    log = open_log(tmp_path)
    assert log.groups() == [5]
    assert log.log(5).term(20) == 4
    log.close()


def test_crash_between_file_and_record_leaves_the_earlier_state(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    put(log, 5, hard_state=HardState(2, NodeId("b"), 9))
    save(log, 5, 3, [])
    snapshots.write(Disk(), tmp_path, 5, Snapshot(50, 9, THREE, b"late"), [])
    log.close()
    log = open_log(tmp_path)
    assert (log.log(5).first_index(), log.log(5).last_index()) == (4, 10)
    assert len(list(tmp_path.glob("snap-*"))) == 1
    log.close()


def test_snapshot_that_cannot_be_read_back_is_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    save(log, 5, 3, [])
    next(tmp_path.glob("snap-*")).write_bytes(b"nonsense")
    with pytest.raises(DamagedEntry):
        log.log(5).snapshot()
    log.close()


def test_live_entries_are_read_only_while_they_are_iterated(tmp_path: Path) -> None:
    """What is settled and collected while a snapshot is on its way is left out."""
    log = open_log(tmp_path)
    put_range(log, 5, 1, 31)
    save(log, 5, 20, [(2, 4), (8, 9), (15, 17)])
    found = log.log(5).snapshot()
    assert found is not None
    assert len(found.live) == 5
    assert entry(8) in found.live
    assert entry(9) not in found.live
    sent = iter(found.live)
    assert next(sent) == entry(2)
    log.set_live(5, [(2, 4), (15, 17)])
    assert list(sent) == [entry(3), entry(15), entry(16)]
    log.close()


def test_live_entries_are_found_where_cleaning_has_put_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 301, size=100)
    live = [(at, at + 1) for at in range(1, 300, 40)]
    save(log, 5, 300, live)
    found = log.log(5).snapshot()
    assert found is not None
    collect_all(log)
    assert list(found.live) == [entry(low, size=100) for low, _ in live]
    log.close()


def test_live_entry_that_cannot_be_read_is_damage_and_not_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    save(log, 5, 10, [(2, 3), (7, 8)])
    found = log.log(5).snapshot()
    assert found is not None
    for path in tmp_path.glob("wal-*.log"):
        image = path.read_bytes()
        path.write_bytes(image.replace(entry(7).data, b"?" * len(entry(7).data)))
    sent = iter(found.live)
    assert next(sent) == entry(2)
    with pytest.raises(DamagedEntry):
        next(sent)
    log.close()


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
