"""A task of the ingest writes its files all at once, and what a failed attempt left counts for
nothing.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
from brokerd_telemetry import ingest, schema, sources, verify
from brokerd_telemetry.columns import lines

from tests.telemetry import fleet

INTERVALS = 12


@pytest.fixture
def segments(tmp_path: Path) -> list[verify.Segment]:
    """Return segments of two members."""
    for number in range(2):
        node = fleet.Node(tmp_path, "eu/shop ~%", f"n{number}", 0xE0 + number, [])
        for at in range(INTERVALS):
            at_us = fleet.BEGIN_US + at * fleet.INTERVAL_US
            node.collect(at_us, at_us + fleet.INTERVAL_US, [])
            if at % 4 == 3:
                node.seal(fleet.BEGIN_US)
    raw = sources.raw_root(tmp_path)
    return verify.judge(raw, sources.listed(raw), {}, None).fresh


def works(segments: list[verify.Segment], parts: int, staged: Path) -> list[ingest.Work]:
    limits = (fleet.BEGIN_US + fleet.HOUR_US, {"eu/shop ~%": 0})
    shares = ingest._shared_out(segments, limits, parts)
    return [ingest.Work(number, own, staged) for number, own in enumerate(shares)]


def numbers(folder: Path) -> list[tuple[str, int]]:
    """Return member and number of all rows."""
    rows: list[tuple[str, int]] = []
    for path in folder.rglob("*.parquet"):
        assert f"{ingest.KIND}=node/dt=" in path.as_posix()
        with pyarrow.parquet.ParquetFile(path) as file:
            assert file.schema_arrow.equals(lines.silver_schema())
            rows += [(row["node"], row["seq"]) for row in file.read().to_pylist()]
    return sorted(rows)


@pytest.mark.parametrize("parts", [1, 2, 5, 50])
@pytest.mark.parametrize(("pending", "group"), [(1, 1), (5, 3), (1000, 1000)])
def test_each_row_is_written_once_however_the_work_is_shared_out(
    segments: list[verify.Segment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: int,
    pending: int,
    group: int,
) -> None:
    monkeypatch.setattr(ingest, "PENDING_ROWS_MAX", pending)
    monkeypatch.setattr(ingest, "GROUP_ROWS", group)
    staged = tmp_path / "work" / "silver"
    for work in works(segments, parts, staged):
        ingest.write(work)
    assert numbers(staged) == [(f"n{n}", seq) for n in range(2) for seq in range(INTERVALS)]


def test_a_second_attempt_replaces_the_first_and_a_broken_one_leaves_nothing(
    segments: list[verify.Segment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = tmp_path / "work" / "silver"
    (work,) = works(segments, 1, staged)
    last = Path(work.segments[-1][0])
    data = last.read_bytes()
    monkeypatch.setattr(ingest, "PENDING_ROWS_MAX", 1)
    last.write_bytes(data[:-9])
    with pytest.raises(EOFError):
        ingest.write(work)
    assert not staged.exists()
    last.write_bytes(data)
    ingest.write(work)
    # Its answer was lost: the same again.
    ingest.write(work)
    assert numbers(staged) == [(f"n{n}", seq) for n in range(2) for seq in range(INTERVALS)]


def test_a_task_whose_rows_are_all_known_writes_nothing(
    segments: list[verify.Segment], tmp_path: Path
) -> None:
    for segment in segments:
        segment.first_seq = segment.seq1 + 1
    staged = tmp_path / "work" / "silver"
    (work,) = works(segments, 1, staged)
    ingest.write(work)
    assert not list(staged.rglob("*"))
    assert schema.hour_of(work.segments[0][1].hour_us) == "2026-11-20T14"
