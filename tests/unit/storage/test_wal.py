"""The write-ahead log as its callers see it: what was written comes back, failures are final."""

from __future__ import annotations

import errno
import multiprocessing
import struct
import threading
from pathlib import Path

import pytest

from brokerd.raft import membership
from brokerd.raft.messages import Configuration, EntryKind, HardState, NodeId
from brokerd.storage import records
from brokerd.storage.config import WalConfig
from brokerd.storage.disk import Disk
from brokerd.storage.errors import (
    CorruptLog,
    DamagedEntry,
    DirectoryLocked,
    StorageFailed,
    UnknownFormat,
    WrongNode,
)
from brokerd.storage.faults import FaultyDisk
from brokerd.storage.wal import GroupWrite, WriteAheadLog
from tests.unit.storage.builders import (
    THREE,
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


def test_new_log_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path / "data")
    assert log.groups() == []
    group = log.log(5)
    assert (group.first_index(), group.last_index(), group.snapshot()) == (1, 0, None)
    assert group.term(0) == 0
    assert group.term(1) is None
    assert group.initial_state() == (HardState(), Configuration(()))
    assert not group.damaged
    log.close()


def test_what_was_written_is_read_back_after_reopening(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.bootstrap([(5, THREE)])
    first = HardState(3, NodeId("b"), 1)
    put(log, 5, entry(1, 1), entry(2, 1), entry(3, 3, size=1000), hard_state=first)
    put(log, 6, entry(1, 2), hard_state=HardState(2, None, 0))
    log.close()
    log = open_log(tmp_path)
    assert log.groups() == [5, 6]
    assert log.log(5).initial_state() == (first, THREE)
    assert log.log(6).initial_state() == (HardState(2, None, 0), Configuration(()))
    assert everything(log, 5) == [entry(1, 1), entry(2, 1), entry(3, 3, size=1000)]
    assert [log.log(5).term(index) for index in range(5)] == [0, 1, 1, 3, None]
    assert log.log(6).entry_data(1) == entry(1, 2).data
    assert log.log(6).entry_data(2) is None
    log.close()


def test_hard_state_alone_is_durable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 5, hard_state=HardState(1, NodeId("a"), 0))
    put(log, 5, hard_state=HardState(2, None, 0))
    log.close()
    log = open_log(tmp_path)
    assert log.log(5).initial_state()[0] == HardState(2, None, 0)
    log.close()


def test_nothing_is_visible_before_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write = GroupWrite(5, HardState(1, None, 0), [entry(1)])
    log.write([write])
    assert log.log(5).last_index() == 0
    assert log.log(5).initial_state()[0] == HardState()
    log.written([write])
    assert log.log(5).last_index() == 1
    log.close()


def test_many_groups_share_one_write_and_one_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, small(segment_bytes=1 << 20), disk=disk)
    before = disk.syncs
    writes = [GroupWrite(uid, HardState(1, None, 0), [entry(1)]) for uid in range(1, 1001)]
    log.write(writes)
    assert disk.syncs == before + 1
    log.written(writes)
    log.close()
    log = open_log(tmp_path, small(segment_bytes=1 << 20))
    assert log.groups() == list(range(1, 1001))
    assert all(log.log(uid).entry_data(1) == entry(1).data for uid in log.groups())
    log.close()


def test_an_entry_cuts_off_what_stood_there_and_behind(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    put(log, 5, entry(4, 2), entry(5, 2))
    expected = [entry(1), entry(2), entry(3), entry(4, 2), entry(5, 2)]
    assert everything(log, 5) == expected
    assert log.log(5).last_index() == 5
    log.close()
    log = open_log(tmp_path)
    assert everything(log, 5) == expected
    assert [log.log(5).term(index) for index in (3, 4, 6)] == [1, 2, None]
    log.close()


def test_several_writes_of_one_group_in_one_batch_apply_in_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    writes = [GroupWrite(5, None, [entry(1), entry(2)]), GroupWrite(5, None, [entry(2, 2)])]
    log.write(writes)
    log.written(writes)
    assert everything(log, 5) == [entry(1), entry(2, 2)]
    log.close()
    log = open_log(tmp_path)
    assert everything(log, 5) == [entry(1), entry(2, 2)]
    log.close()


def test_newest_configuration_entry_wins_and_is_undone_by_truncation(tmp_path: Path) -> None:
    two = Configuration((NodeId("a"), NodeId("b")))
    data = membership.encode_configuration(two)
    log = open_log(tmp_path)
    log.bootstrap([(5, THREE)])
    changed = entry(2, kind=EntryKind.CONFIG)
    changed.data = data
    put(log, 5, entry(1), changed)
    assert log.log(5).initial_state()[1] == two
    log.close()
    log = open_log(tmp_path)
    assert log.log(5).initial_state()[1] == two
    put(log, 5, entry(2, 2))
    assert log.log(5).initial_state()[1] == THREE
    log.close()
    log = open_log(tmp_path)
    assert log.log(5).initial_state()[1] == THREE
    log.close()


def test_bootstrap_does_not_replace_a_configuration(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.bootstrap([(5, THREE)])
    log.bootstrap([(5, Configuration((NodeId("x"),)))])
    assert log.log(5).initial_state()[1] == THREE
    log.close()
    log = open_log(tmp_path)
    assert log.log(5).initial_state()[1] == THREE
    log.close()


def test_entries_are_limited_by_bytes_but_at_least_one_comes(tmp_path: Path) -> None:
    for cache_bytes in (0, 1 << 20):
        log = open_log(tmp_path / str(cache_bytes), small(cache_bytes=cache_bytes))
        put(log, 5, *(entry(index, size=100) for index in range(1, 11)))
        group = log.log(5)
        assert [found.index for found in group.entries(3, 11, 0)] == [3]
        assert [found.index for found in group.entries(3, 11, 250)] == [3, 4]
        assert [found.index for found in group.entries(3, 6, 1 << 20)] == [3, 4, 5]
        with pytest.raises(IndexError):
            group.entries(0, 3, 100)
        with pytest.raises(IndexError):
            group.entries(5, 12, 100)
        log.close()


def test_cache_is_bounded_over_all_groups_and_old_entries_come_from_disk(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(cache_bytes=3000, segment_bytes=1 << 16))
    for index in range(1, 51):
        for uid in (5, 6):
            put(log, uid, entry(index, size=300))
    assert 0 < log.stats.cached_bytes <= 3000
    assert everything(log, 5) == [entry(index, size=300) for index in range(1, 51)]
    assert log.log(6).entry_data(1) == entry(1, size=300).data
    log.close()


def test_segments_rotate_and_a_large_entry_gets_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 40, size=700)
    put(log, 5, entry(40, size=50_000))
    put_range(log, 5, 41, 45, size=700)
    assert log.stats.segments > 4
    expected = [entry(index, size=50_000 if index == 40 else 700) for index in range(1, 45)]
    assert everything(log, 5) == expected
    log.close()
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert everything(log, 5) == expected
    assert notes == []
    log.close()


def test_next_segment_is_prepared_in_the_background(tmp_path: Path) -> None:
    log = WriteAheadLog.open(tmp_path, small(in_background=True))
    put_range(log, 5, 1, 100, size=700)
    log.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "wal-spare"]
    log = WriteAheadLog.open(tmp_path, small())
    assert everything(log, 5) == [entry(index, size=700) for index in range(1, 100)]
    log.close()


def test_reopening_many_times_does_not_pile_up_space(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 5, entry(1), hard_state=HardState(1, None, 0))
    log.close()
    for _ in range(30):
        log = open_log(tmp_path)
        assert everything(log, 5) == [entry(1)]
        log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 400_000


def test_groups_that_begin_or_end_together_take_one_sync(tmp_path: Path) -> None:
    """A vhost that went with 10,000 queues held the log up for seconds."""
    log = open_log(tmp_path, WalConfig())
    before = log.stats.syncs
    log.bootstrap([(uid, THREE) for uid in range(1, 1001)])
    log.bootstrap([(1, THREE)])
    log.remove_groups(range(1, 1000))
    assert log.stats.syncs == before + 2
    log.close()
    log = open_log(tmp_path, WalConfig())
    assert log.groups() == [1000]
    assert log.log(1000).initial_state()[1] == THREE
    log.close()


def test_removed_group_stays_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 5)
    put_range(log, 6, 1, 5)
    save(log, 5, 2, [])
    log.remove_groups([5])
    assert log.groups() == [6]
    late = GroupWrite(5, HardState(9, None, 0), [entry(5)])
    log.write([late])
    log.written([late])
    assert log.groups() == [6]
    log.close()
    log = open_log(tmp_path)
    assert log.groups() == [6]
    assert list(tmp_path.glob("snap-*")) == []
    log.close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(DirectoryLocked, match="in use by another process"):
        open_log(tmp_path)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(_try_to_open, (tmp_path,)) == "locked"
    log.close()
    open_log(tmp_path).close()


def _try_to_open(directory: Path) -> str:
    try:
        open_log(directory).close()
    except DirectoryLocked:
        return "locked"
    return "opened"


def test_unknown_format_version_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 5, entry(1))
    log.close()
    path = segment_paths(tmp_path)[-1]
    image = bytearray(path.read_bytes())
    for start in (0, records.SEGMENT_HEADER_COPY):
        end = start + records.SEGMENT_HEADER_COPY
        struct.pack_into("<I", image, start + 8, 99)
        struct.pack_into("<I", image, end - 4, records.crc(bytes(image[start : end - 4])))
    path.write_bytes(image)
    before = {file.name: file.read_bytes() for file in segment_paths(tmp_path)}
    with pytest.raises(UnknownFormat, match="version 99"):
        open_log(tmp_path)
    assert {file.name: file.read_bytes() for file in segment_paths(tmp_path)} == before


def test_log_of_another_node_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    with pytest.raises(WrongNode, match="belongs to node 'a'"):
        open_log(tmp_path, small(node_id="b"))


def test_one_unreadable_header_copy_is_reported_and_survived(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 5, entry(1))
    log.close()
    path = segment_paths(tmp_path)[-1]
    flip(path, 20)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert everything(log, 5) == [entry(1)]
    assert not log.log(5).damaged
    assert any("one copy of the segment header" in note for note in notes)
    log.close()
    flip(path, 512 + 20)
    with pytest.raises(CorruptLog, match="both copies"):
        open_log(tmp_path)


def test_failed_write_is_final(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put(log, 5, entry(1))
    disk.faults.write_fails_at = 1
    with pytest.raises(StorageFailed, match="cannot write the log"):
        log.write([GroupWrite(5, None, [entry(2)])])
    with pytest.raises(StorageFailed):
        log.write([GroupWrite(5, None, [entry(2)])])
    with pytest.raises(StorageFailed):
        log.bootstrap([(6, THREE)])
    log.close()
    log = open_log(tmp_path)
    assert everything(log, 5) == [entry(1)]
    log.close()


def test_failed_sync_is_never_retried(tmp_path: Path) -> None:
    """design/replication.md §1: the kernel may report success afterwards without having written."""
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    disk.faults.sync_fails_at = 1
    with pytest.raises(StorageFailed):
        log.write([GroupWrite(5, None, [entry(1)])])
    syncs = disk.syncs
    with pytest.raises(StorageFailed):
        log.write([GroupWrite(5, None, [entry(1)])])
    assert disk.syncs == syncs
    log.close()


def test_start_after_a_failed_sync_writes_the_last_batch_again(tmp_path: Path) -> None:
    """Pages that a failed sync left clean in memory would not reach the disk by a sync alone."""
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put(log, 5, entry(1))
    disk.faults.sync_fails_at = 1
    with pytest.raises(StorageFailed):
        log.write([GroupWrite(5, None, [entry(2, size=500)])])
    log.close()
    path = segment_paths(tmp_path)[-1]
    where = find(path, entry(2, size=500).data)
    watching = _WatchingDisk()
    log = open_log(tmp_path, disk=watching)
    assert everything(log, 5) == [entry(1), entry(2, size=500)]
    assert any(
        written == path and start <= where < start + size
        for written, start, size in watching.written
    )
    log.close()


class _WatchingDisk(FaultyDisk):
    """Remembers every range that was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[Path, int, int]] = []

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self.written.append((self.paths[descriptor], offset, len(data)))
        return super().write_some(descriptor, data, offset)


def test_full_disk_fails_cleanly_and_the_log_opens_again_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    disk.faults.space_bytes = 20_000
    with pytest.raises(StorageFailed, match="No space left"):
        put_range(log, 5, 1, 1000, size=700)
    done = log.log(5).last_index()
    log.close()
    assert done > 5
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert not log.log(5).damaged
    assert everything(log, 5)[:done] == [entry(index, size=700) for index in range(1, done + 1)]
    put(log, 5, entry(log.log(5).last_index() + 1))
    log.close()


def test_full_disk_while_opening_is_reported_as_such(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.faults.space_bytes = 100
    with pytest.raises(StorageFailed, match="cannot open the log"):
        open_log(tmp_path, disk=disk)
    open_log(tmp_path).close()


@pytest.mark.parametrize("kind", ["save", "install"])
def test_failing_snapshot_write_is_final_and_the_old_state_survives(
    tmp_path: Path, kind: str
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    put_range(log, 5, 1, 6)
    save(log, 5, 2, [])
    disk.faults.rename_fails_at = 1
    change = {"save": lambda: save(log, 5, 4, []), "install": lambda: install(log, 5, 9, 1, [])}
    with pytest.raises(StorageFailed, match="snapshot of group 5"):
        change[kind]()
    log.close()
    log = open_log(tmp_path)
    assert log.log(5).first_index() == 3
    assert everything(log, 5) == [entry(3), entry(4), entry(5)]
    log.close()


def test_short_writes_are_completed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    disk.faults.write_bytes_max = 7
    put(log, 5, entry(1, size=300), entry(2, size=300))
    disk.faults.write_bytes_max = 0
    log.close()
    log = open_log(tmp_path)
    assert everything(log, 5) == [entry(1, size=300), entry(2, size=300)]
    log.close()


def test_read_back_checks_the_checksum(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 5, entry(1, size=300), entry(2, size=300))
    path = segment_paths(tmp_path)[-1]
    flip(path, find(path, entry(2, size=300).data) + 50)
    assert log.log(5).entry_data(1) == entry(1, size=300).data
    with pytest.raises(DamagedEntry) as caught:
        log.log(5).entry_data(2)
    assert (caught.value.uid, caught.value.index) == (5, 2)
    log.close()


def test_real_disk_reports_its_errors(tmp_path: Path) -> None:
    disk = Disk()
    with pytest.raises(OSError, match="No such file") as caught:
        disk.open(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 100),
        ("segment_bytes", 1 << 40),
        ("node_id", ""),
        ("node_id", "x" * 201),
        ("rewrite_below_percent", 95),
        ("cache_bytes", -1),
        ("collect_bytes_max", 0),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: object) -> None:
    config = WalConfig()
    config.validate()
    setattr(config, name, value)
    with pytest.raises(ValueError, match=r"\w"):
        config.validate()


def test_stats_count_syncs_and_space(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    before = log.stats
    put(log, 5, entry(1))
    after = log.stats
    assert after.syncs == before.syncs + 1
    assert after.bytes_written > before.bytes_written
    assert after.segments == 1
    assert after.bytes_on_disk == 16384
    assert after.last_sync_ms >= 0
    log.close()


def test_a_prepared_segment_is_used(tmp_path: Path) -> None:
    log = open_log(tmp_path, small(in_background=True, recycled_segments_max=0))
    files = log._files
    files._join_preparation()
    assert files._spare_ready
    assert files.bytes_on_disk() == 2 * 16384
    assert files._source(16384) == (tmp_path / "spare.tmp", True, 0)
    assert not files._spare_ready
    log.close()
