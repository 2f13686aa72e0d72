"""Segments and folders that cannot be read, and those that can be later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from brokerd_telemetry import commit, job, session, sources
from brokerd_telemetry.manifest import LedgerError
from brokerd_telemetry.sources import SourceError

from tests.telemetry import fleet


def written(raw: Path, name: str = "n0") -> Path:
    """Return a segment of a member."""
    node = fleet.Node(raw, "test/one", name, 0xAB, [])
    node.collect(fleet.BEGIN_US, fleet.BEGIN_US + fleet.INTERVAL_US, [])
    (path,) = node.seal(fleet.BEGIN_US)
    return path


def options_of(raw: Path, out: Path) -> job.Options:
    source = sources.Source(directory=raw)
    return job.Options((source,), out, session.SparkSettings("local[1]", 1, None, None))


def planned(raw: Path, out: Path, said: list[str]) -> list[str]:
    """Return the segments that a run would take, and commit what it refuses."""
    ledger = commit.Ledger(out)
    run = job.Run(options_of(raw, out), ledger, f"run-{len(said)}", said.append)
    run.manifest = ledger.load()
    verdicts = run._plan()
    run._commit(verdicts)
    return [Path(segment.path).name for segment in verdicts.fresh]


def test_a_segment_that_was_seen_half_copied_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    raw, out, said = tmp_path / "raw", tmp_path / "out", list[str]()
    file = written(raw)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert planned(raw, out, said) == []
    ((_, reason),) = commit.Ledger(out).load().run["rejected"].values()
    assert reason == "gzip"
    # As it was: it is not read again.
    count = len(said)
    assert planned(raw, out, said) == []
    assert len(said) == count
    file.write_bytes(whole)
    assert planned(raw, out, said) == [file.name]
    assert commit.Ledger(out).load().run["rejected"] == {}


def test_refused_segments_of_an_earlier_version_are_judged_once_more(tmp_path: Path) -> None:
    raw, out, said = tmp_path / "raw", tmp_path / "out", list[str]()
    file = written(raw)
    ledger = commit.Ledger(out)
    manifest = ledger.load()
    manifest.run_id = "old"
    manifest.run = {"rejected": [file.relative_to(raw / "raw" / "v1").as_posix()]}
    ledger.commit(manifest)
    assert planned(raw, out, said) == [file.name]


def test_a_folder_that_cannot_be_read_ends_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    written(raw)
    folder = written(raw, "n1").parent
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match="hh=14 cannot be read: Permission denied"):
        planned(raw, tmp_path / "out", [])


def run(raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_java", lambda: None)
    job.run(options_of(raw, out), lambda _: None)


def test_a_file_that_cannot_be_read_ends_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    file = written(raw)
    file.unlink()
    # A link to itself is what root cannot read either.
    file.symlink_to(file)
    with pytest.raises(LedgerError, match=r"\.gz: .*\. The tables are as they were"):
        run(raw, tmp_path / "out", monkeypatch)


def test_an_out_that_cannot_be_written_ends_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "ledger").write_text("in the way")
    written(tmp_path / "raw")
    with pytest.raises(LedgerError, match="The tables are as they were"):
        run(tmp_path / "raw", out, monkeypatch)


def test_a_folder_without_segments_is_an_error_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw" / "raw" / "v1").mkdir(parents=True)
    with pytest.raises(SourceError, match="there is no segment that can be read in"):
        run(tmp_path / "raw", tmp_path / "out", monkeypatch)
