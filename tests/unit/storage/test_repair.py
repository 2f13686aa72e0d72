"""An operator accepts a loss: what is readable counts again, the rest is gone, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.storage import repair
from brokerd.storage.errors import DirectoryLocked
from tests.unit.storage.builders import (
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


@pytest.mark.parametrize("distance", [0, -20], ids=["body", "header"])
def test_accepted_loss_is_no_damage_any_more(tmp_path: Path, distance: int) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    put_range(log, 6, 1, 11, term=2)
    log.close()
    path = segment_paths(tmp_path)[-1]
    flip(path, find(path, entry(4).data) + distance)
    assert repair.accept_loss(tmp_path, small()) == ([5] if not distance else [5, 6])
    for _ in range(3):
        log = open_log(tmp_path)
        assert [log.log(5).entry_data(index) for index in (1, 2)] == [
            entry(1).data,
            entry(2).data,
        ]
        assert [log.log(uid).damaged for uid in (5, 6, 77)] == [False] * 3
        assert log.log(6).last_index() == 10
        put_range(log, 5, log.log(5).last_index() + 1, log.log(5).last_index() + 40, size=700)
        save(log, 5, log.log(5).last_index(), [(1, 3)])
        collect_all(log)
        log.close()


def test_accepted_loss_of_a_live_entry_leaves_the_others(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put_range(log, 5, 1, 11)
    save(log, 5, 8, [(2, 5)])
    log.close()
    path = segment_paths(tmp_path)[-1]
    flip(path, find(path, entry(3).data))
    assert repair.accept_loss(tmp_path, small()) == [5]
    log = open_log(tmp_path)
    assert not log.log(5).damaged
    assert [log.log(5).entry_data(index) for index in (2, 3, 4)] == [
        entry(2).data,
        None,
        entry(4).data,
    ]
    snapshot = log.log(5).snapshot()
    assert snapshot is not None
    assert [live.index for live in snapshot.live] == [2, 4]
    assert everything(log, 5) == [entry(9), entry(10)]
    log.close()


def test_nothing_is_accepted_beside_a_running_node(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(DirectoryLocked):
        repair.accept_loss(tmp_path, small())
    log.close()
    assert repair.accept_loss(tmp_path, small()) == []
