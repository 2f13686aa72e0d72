"""Reading a group's log back: bounds, read-ahead, and every way in which a record can be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.raft import membership
from brokerd.raft.messages import Configuration, EntryKind, HardState, NodeId, Snapshot
from brokerd.storage import records, snapshots
from brokerd.storage.errors import DamagedEntry
from brokerd.storage.group_log import NO_ENTRIES, GroupLog
from brokerd.storage.records import HEADER_BYTES, GroupState
from brokerd.storage.wal import coalesce
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

RECORD_BYTES = HEADER_BYTES + 40
OneWrite = tuple[GroupLog, list[tuple[int, int]]]


@pytest.mark.parametrize(("low", "high"), [(3, 3), (2, 4), (4, 3), (3, 11), (0, 3)])
def test_what_the_log_does_not_hold_cannot_be_asked_for(
    tmp_path: Path, low: int, high: int
) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 10)
    save(log, 7, 2, [])
    assert [found.index for found in log.log(7).entries(3, 10, 1 << 20)] == [3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(IndexError, match=rf"group 7: entries {low}\.\.{high} of 3\.\.9"):
        log.log(7).entries(low, high, 1 << 20)
    log.close()


@pytest.fixture
def one_write(tmp_path: Path) -> Iterator[tuple[GroupLog, list[tuple[int, int]]]]:
    """A log of nine entries that lie back to back, and the reads that it makes."""
    log = open_log(tmp_path)
    put(log, 7, *[entry(index) for index in range(1, 10)])
    group = log.log(7)
    reads: list[tuple[int, int]] = []
    read = group._read

    def watched(segment: int, offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return read(segment, offset, size)

    group._read = watched
    yield group, reads
    log.close()


def test_neighbours_are_read_at_once_as_far_as_they_fit(one_write: OneWrite) -> None:
    group, reads = one_write
    assert [found.index for found in group._load(2, 10, 3 * RECORD_BYTES)] == [2, 3, 4]
    assert [found.index for found in group._load(2, 10, 3 * RECORD_BYTES - 1)] == [2, 3]
    assert [found.index for found in group._load(2, 3, 1 << 20)] == [2]
    assert [found.index for found in group._load(2, 10, 0)] == [2]
    assert [size // RECORD_BYTES for _, size in reads] == [3, 2, 1, 1]


def test_reading_ahead_stops_at_what_is_in_memory(one_write: OneWrite) -> None:
    group, reads = one_write
    group._recent[5] = entry(5)
    assert [found.index for found in group.entries(3, 8, 1 << 20)] == [3, 4, 5, 6, 7]
    assert [size // RECORD_BYTES for _, size in reads] == [2, 2]


def test_reading_ahead_stops_where_the_next_record_lies_elsewhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, 7, entry(1), entry(2))
    put(log, 7, entry(3))
    save(log, 7, 2, None)
    assert [found.index for found in log.log(7)._load(1, 4, 1 << 20)] == [1, 2]
    assert log.log(7).entries(3, 4, 1 << 20) == [entry(3)]
    log.close()


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, RECORD_BYTES - 1])
def test_a_record_that_is_cut_short_is_damage_with_its_place(
    one_write: OneWrite, size: int
) -> None:
    group, _ = one_write
    read = group._read
    group._read = lambda segment, offset, wanted: read(segment, offset, wanted)[:size]
    place = records.describe(records.place(1, group.table.offsets[2]))
    with pytest.raises(DamagedEntry) as caught:
        group.entries(3, 4, 1 << 20)
    assert str(caught.value) == f"group 7 entry 3 at {place} cannot be read back"


@pytest.mark.parametrize("field", ["uid", "index", "length", "data"])
def test_another_record_in_its_place_is_damage(one_write: OneWrite, field: str) -> None:
    group, _ = one_write
    data = entry(3).data
    uid, index = (8 if field == "uid" else 7), (4 if field == "index" else 3)
    body = records.encode_record(1, 1, 1, records.ENTRY, uid, index, 1, data)
    if field == "length":
        body = records.encode_record(1, 1, 1, records.ENTRY, uid, index, 1, data[:-1]) + b"x"
    if field == "data":
        body = body[:-1] + b"#"
    group._read = lambda segment, offset, size: body
    place = records.describe(records.place(1, group.table.offsets[2]))
    with pytest.raises(DamagedEntry, match=f"entry 3 at {place.replace('+', '.')} "):
        group._entry(3)


def test_the_first_live_entry_may_be_the_one_that_is_damaged(tmp_path: Path) -> None:
    """G8: a body below the snapshot that is still live and cannot be read."""
    log = open_log(tmp_path)
    put_range(log, 7, 1, 10)
    put(log, 8, entry(1))
    save(log, 7, 8, [(1, 2), (5, 6)])
    log.close()
    path = segment_paths(tmp_path)[0]
    flip(path, find(path, entry(5).data))
    image = path.read_bytes()
    flip(path, image.index(entry(1).data))
    log = open_log(tmp_path)
    group = log.log(7)
    assert sorted(group.unreadable) == [1, 5]
    assert group.damaged
    assert [group.entry_data(index) for index in (1, 5)] == [None, None]
    assert everything(log, 7) == [entry(9)]
    log.close()


def test_a_configuration_entry_at_the_snapshot_gives_way_to_it(tmp_path: Path) -> None:
    two = Configuration((NodeId("a"), NodeId("b")))
    log = open_log(tmp_path)
    put_range(log, 7, 1, 5)
    change = entry(5, kind=EntryKind.CONFIG)
    change.data = membership.encode_configuration(two)
    put(log, 7, change)
    put(log, 7, entry(6))
    assert log.log(7).initial_state()[1] == two
    save(log, 7, 5, [])
    assert log.log(7).config_indexes == ()
    assert log.log(7).initial_state()[1] == THREE
    log.close()
    log = open_log(tmp_path)
    assert log.log(7).initial_state()[1] == THREE
    log.close()


def test_descriptions_on_disk_are_short_and_complete() -> None:
    state = GroupState(
        HardState(3, NodeId("b"), 2),
        Configuration((NodeId("a"), NodeId("b")), (NodeId("c"),)),
        5,
        2,
        9,
        (1 << 40,),
        (2 << 40,),
    )
    for reset in (True, False):
        data = records.encode_group_state(state, reset=reset)
        assert b" " not in data
        assert records.decode_group_state(data) == (state, reset)
    for live in (None, [], [(1, 2), (4, 9)]):
        snapshot = Snapshot(5, 2, state.configuration, b"state")
        image = snapshots.encode(7, snapshot, live)
        assert b" " not in image
        found = snapshots.decode(image, "x")
        assert (found.uid, found.snapshot, found.live) == (7, snapshot, live)


def test_indexes_join_to_ranges() -> None:
    assert coalesce([]) == []
    assert coalesce([3]) == [(3, 4)]
    assert coalesce([1, 2, 3, 5, 6, 9]) == [(1, 4), (5, 7), (9, 10)]


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


def test_a_log_that_was_let_go_is_read_and_written_as_before(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 6)
    group = log.log(7)
    before = [found.data for found in group.entries(1, 6, 1 << 20)]
    group.let_go()
    assert [found.data for found in group.entries(1, 6, 1 << 20)] == before
    put_range(log, 7, 6, 8)
    assert not NO_ENTRIES
    # What was written to stays as it is.
    table = group.table
    group.let_go(again=True)
    assert group.table is table
    group.let_go()
    assert group.last_index() == 7
    log.close()
    assert open_log(tmp_path).log(7).last_index() == 7


def test_a_large_log_is_let_go_without_its_table(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 7, 1, 80)
    table = log.log(7).table
    log.log(7).let_go()
    assert log.log(7).table is table
    log.close()
