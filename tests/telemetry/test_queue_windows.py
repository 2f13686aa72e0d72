"""How the rows of queues are shared out to tasks: each row to one, those of a name together."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from brokerd_telemetry import queue_windows, schema
from brokerd_telemetry.columns import deltas, last_rows, queue_rows
from pyspark import TaskContext

NAMES = ("", "a", "aa", "q" * 255, "Z", "z", "\u00e9", "\uffee", "\U0001f600", "q.1", "q-1")


def part(folder: Path, cluster: str, hours: int, rows: int) -> queue_windows.Part:
    """A cluster's files, two for each hour; what one has is not in the order of names."""
    rng = random.Random(rows)
    reported = []
    for hour in range(hours):
        start_us = hour * schema.HOUR_US
        files = []
        for half in range(2):
            lines = [
                {"vhost": "/", "queue": rng.choice(NAMES), "grp": 1, "term": 1, "t0": start_us,
                 "t1": start_us + 1, "seq": number, "node": "n"}
                for number in range(rows // 2)
            ]  # fmt: skip
            file = folder / f"{cluster}-{hour}-{half}.parquet"
            table = pyarrow.Table.from_pylist(lines, deltas.ROWS)
            pyarrow.parquet.write_table(table, file, row_group_size=7)
            files.append(str(file))
        known = queue_rows.Hour(start_us, start_us, start_us + 1, 1.0, 1.0)
        reported.append(queue_windows.Hour(known, tuple(files), rows))
    return queue_windows.Part(cluster, tuple(reported), (), hours * rows)


@pytest.mark.parametrize("count", [1, 2, 5, 50])
def test_each_row_is_in_one_part_and_those_of_a_name_are_in_the_same(
    tmp_path: Path, count: int
) -> None:
    whole = part(tmp_path, "c", 2, 200)
    pieces = queue_windows.divided(whole, count)
    assert len(pieces) <= min(count, len(NAMES))
    seen: dict[str, int] = {}
    rows = 0
    for number, piece in enumerate(pieces):
        for hour in piece.hours:
            names = queue_windows._rows(hour.files, piece, deltas.ROWS)["queue"].to_pylist()
            rows += len(names)
            assert all(seen.setdefault(name, number) == number for name in names)
    assert rows == 400
    assert set(seen) == set(NAMES)


def test_tasks_have_about_as_many_rows_and_small_clusters_share_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_windows, "TASK_ROWS_MIN", 50)
    small = [part(tmp_path, f"s{n}", 1, 10) for n in range(20)]
    large = part(tmp_path, "large", 2, 200)
    assert queue_windows.shared_out([], 2) == []
    assert [len(task) for task in queue_windows.shared_out(small, 2)] == [10, 10]
    tasks = queue_windows.shared_out([*small, large], 2)
    assert 2 <= len(tasks) <= 3
    assert sum(piece.rows for task in tasks for piece in task) == pytest.approx(600, rel=0.05)
    monkeypatch.setattr(queue_windows, "PART_ROWS", 40)
    [own] = queue_windows.shared_out([large], 1)
    # Of the 200 rows of an hour no more than about so many are looked at together.
    assert len(own) >= 4


def contents(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each file below."""
    files = {}
    for path in folder.rglob("*.parquet"):
        with pyarrow.parquet.ParquetFile(path) as file:
            files[path.relative_to(folder).as_posix()] = file.read().to_pylist()
    return files


class Attempts:
    """What Spark says of a task: each has another number."""

    numbers = itertools.count()

    def taskAttemptId(self) -> int:
        return next(self.numbers)


def test_a_task_that_is_tried_again_writes_what_it_would_have_and_a_broken_one_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = part(tmp_path, "c", 2, 100)
    pieces = queue_windows.divided(whole, 3)
    queue_windows._write((pieces, tmp_path / "spans" / "once", "run"))
    again = tmp_path / "again" / "00000"
    monkeypatch.setattr(TaskContext, "get", Attempts)
    put, calls = queue_windows._put, 0

    def failing(rows: pyarrow.Table, file: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise OSError(28, "No space left on device")
        put(rows, file)

    monkeypatch.setattr(queue_windows, "_put", failing)
    with pytest.raises(OSError, match="No space"):
        queue_windows._write((pieces, again, "run"))
    assert not again.exists()
    queue_windows._write((pieces, again, "run"))
    # The attempt before has its remains beside it, which nobody looks at and go with the run.
    assert sorted(path.name for path in again.parent.iterdir()) == ["00000"]
    named = {
        path.replace("part-once-", "part-00000-"): rows
        for path, rows in contents(tmp_path / "spans" / "once").items()
    }
    assert contents(again) == named
    assert len(named) == 5 + 3 * 2 * 3
    frames = queue_windows.adopt(again.parent, tmp_path / "out", "run")
    for table in (queue_windows.MINUTES, queue_windows.HOURS, queue_windows.LASTS):
        # Of each hour one file, of all three pieces.
        assert [len(entries) for entries in frames[table].values()] == [1, 1]


def test_queues_that_fell_silent_are_carried_through_an_hour_without_a_row(tmp_path: Path) -> None:
    """Whoever deletes all queues goes on telling of other things."""
    before = [{"vhost": "/", "queue": "q", "grp": 1, "term": 1, "t0": 0, "t1": 9, "node": "n",
               "first_us": 0}]  # fmt: skip
    carry = tmp_path / "carry.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(before, last_rows.ROWS), carry)
    start_us = schema.HOUR_US
    silent = queue_windows.Hour(
        queue_rows.Hour(start_us, start_us, start_us + schema.HOUR_US, 3600.0, 1.0), (), 0
    )
    [work] = queue_windows.shared_out([queue_windows.Part("c", (silent,), (str(carry),), 0)], 2)
    queue_windows._write((work, tmp_path / "spans" / "00000", "run"))
    frames = queue_windows.adopt(tmp_path / "spans", tmp_path / "out", "run")
    assert (frames[queue_windows.MINUTES], frames[queue_windows.HOURS]) == ({}, {})
    ((entry,),) = frames[queue_windows.LASTS].values()
    with pyarrow.parquet.ParquetFile(tmp_path / "out" / entry["path"]) as file:
        [row] = file.read().to_pylist()
    assert (row["queue"], row["t1"], row["first_us"], row["in_us"]) == ("q", 9, 0, None)
