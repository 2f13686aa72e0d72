"""MemoryLog: the same contract as a log on disk, without one."""

from __future__ import annotations

import pytest

from brokerd.raft import membership
from brokerd.raft.messages import Configuration, Entry, EntryKind, HardState, NodeId, Snapshot
from brokerd.raft.storage import LogStorage
from brokerd.storage.memory import MemoryLog
from tests.unit.storage.builders import THREE, entry


def filled(count: int) -> MemoryLog:
    log = MemoryLog(THREE)
    log.append(HardState(1, None, 0), [entry(index) for index in range(1, count + 1)])
    return log


def test_empty_log_has_first_index_one() -> None:
    log: LogStorage = MemoryLog(THREE)
    assert (log.first_index(), log.last_index(), log.snapshot()) == (1, 0, None)
    assert log.initial_state() == (HardState(), THREE)
    assert [log.term(0), log.term(1)] == [0, None]


def test_append_cuts_off_what_stood_there_and_behind() -> None:
    log = filled(10)
    log.append(None, [entry(4, 2)])
    assert log.last_index() == 4
    assert [log.term(index) for index in (3, 4, 5)] == [1, 2, None]
    assert log.entry_data(5) is None


def test_entries_are_limited_by_bytes() -> None:
    log = filled(10)
    assert [found.index for found in log.entries(2, 11, 0)] == [2]
    assert [found.index for found in log.entries(2, 11, 90)] == [2, 3]
    with pytest.raises(IndexError):
        log.entries(0, 3, 10)


def test_newest_configuration_entry_wins() -> None:
    two = Configuration((NodeId("a"), NodeId("b")))
    changed = entry(2, kind=EntryKind.CONFIG)
    changed.data = membership.encode_configuration(two)
    log = MemoryLog(THREE)
    log.append(None, [entry(1), changed, entry(3)])
    assert log.initial_state()[1] == two
    log.append(None, [entry(2, 2)])
    assert log.initial_state()[1] == THREE


def test_snapshot_keeps_live_entries_only() -> None:
    log = filled(10)
    log.save_snapshot(Snapshot(7, 1, THREE, b"state"), [(2, 3), (6, 20)])
    assert (log.first_index(), log.last_index()) == (8, 10)
    assert [log.entry_data(index) is not None for index in (1, 2, 6, 7, 8)] == [
        False,
        True,
        True,
        True,
        True,
    ]
    state = log.snapshot_state()
    assert state is not None
    assert state.live == []
    found = log.snapshot()
    assert found is not None
    assert [live.index for live in found.live] == [2, 6, 7]
    assert [log.term(index) for index in (6, 7, 8)] == [None, 1, 1]


def test_installed_snapshot_replaces_everything() -> None:
    log = filled(10)
    log.install_snapshot(Snapshot(20, 3, THREE, b"state", [entry(5, 3)]), HardState(3, None, 20))
    assert (log.first_index(), log.last_index()) == (21, 20)
    assert log.entry_data(5) == entry(5, 3).data
    assert log.entry_data(6) is None
    assert log.initial_state()[0] == HardState(3, None, 20)


def test_a_group_that_is_gone_holds_nothing() -> None:
    """Deleted volatile queues kept their messages until the garbage collector came by."""
    log = filled(10)
    log.clear()
    assert log.entry_data(5) is None
    assert (log.first_index(), log.last_index(), log.snapshot_state()) == (1, 0, None)


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


def test_what_is_dead_loses_its_data_before_a_snapshot_comes() -> None:
    """A volatile queue that was emptied kept its bodies, and an alarm with them."""
    log = filled(20)
    log.empty_dead([(1, 20)], 20)
    assert log.entry_data(20) == entry(20).data, "one of twenty is not worth a look"
    log.empty_dead([(3, 5), (9, 10), (19, 20)], 18)
    kept = [index for index in range(1, 21) if log.entry_data(index)]
    assert kept == [3, 4, 9, 19, 20], "20 is not applied yet"
    assert [log.term(index) for index in (1, 20)] == [1, 1]
    log.empty_dead([(3, 5), (9, 10), (19, 20)], 20)
    assert not log.entry_data(20)
    log.save_snapshot(Snapshot(10, 1, THREE, b"state"), [(3, 4)])
    log.append(None, [entry(21), entry(22)])
    log.empty_dead([], 22)
    assert not any(log.entry_data(index) for index in range(1, 23))
    log.clear()
    log.empty_dead([], 0)


def test_who_belongs_to_the_group_stays() -> None:
    log = MemoryLog(THREE)
    data = membership.encode_configuration(Configuration((NodeId("a"),)))
    log.append(None, [entry(1), Entry(2, 1, EntryKind.CONFIG, data)])
    log.empty_dead([], 2)
    assert log.initial_state()[1] == Configuration((NodeId("a"),))
