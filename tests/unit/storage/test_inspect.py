"""`brokerctl wal inspect|verify` without a running node: records, groups, snapshots, verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.raft.messages import HardState, NodeId
from brokerd.storage import inspect
from brokerd.storage.errors import CorruptLog
from tests.unit.storage.builders import (
    THREE,
    entry,
    open_log,
    put,
    put_range,
    save,
    segment_paths,
)


def build(directory: Path) -> None:
    log = open_log(directory)
    log.bootstrap([(5, THREE)])
    put(log, 5, entry(1), entry(2), hard_state=HardState(1, NodeId("b"), 1))
    put_range(log, 5, 3, 6, term=2)
    save(log, 5, 4, [(2, 3)])
    log.close()


def test_records_are_listed_in_order(tmp_path: Path) -> None:
    build(tmp_path)
    found = list(inspect.iterate(tmp_path))
    entries = [view for view in found if view.kind == "entry"]
    assert [(view.uid, view.index, view.term) for view in entries] == [
        (5, 1, 1),
        (5, 2, 1),
        (5, 3, 2),
        (5, 4, 2),
        (5, 5, 2),
    ]
    assert {view.kind for view in found} >= {"entry", "hard_state", "group", "segments"}
    assert not any(view.is_bad for view in found)


def test_groups_are_summed_up(tmp_path: Path) -> None:
    build(tmp_path)
    (view,) = inspect.summary(tmp_path)
    assert (view.uid, view.term, view.vote, view.commit) == (5, 1, "b", 1)
    assert (view.snapshot_index, view.first_index, view.last_index, view.last_term) == (4, 5, 5, 2)
    assert (view.entries, view.live_below_snapshot, view.is_damaged) == (1, 1, False)
    assert view.voters == THREE.voters


def test_reading_changes_nothing(tmp_path: Path) -> None:
    build(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    inspect.verify(tmp_path)
    list(inspect.iterate(tmp_path))
    inspect.snapshot_files(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_snapshot_files_are_judged(tmp_path: Path) -> None:
    build(tmp_path)
    ((name, verdict),) = inspect.snapshot_files(tmp_path)
    assert verdict == "intact"
    (tmp_path / name).write_bytes(b"nonsense")
    ((_, verdict),) = inspect.snapshot_files(tmp_path)
    assert "not a snapshot file" in verdict


def test_unusable_log_has_no_summary(tmp_path: Path) -> None:
    build(tmp_path)
    segment_paths(tmp_path)[0].write_bytes(b"nonsense")
    with pytest.raises(CorruptLog, match="segment header"):
        inspect.summary(tmp_path)
