"""Segment files: sealed whole, cut when torn, bounded, never in the broker's way (6.1-6.3)."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.config import TelemetryConfig
from brokerd.telemetry import segment_files, segments
from brokerd.telemetry.segments import Identity, SegmentWriter

IDENTITY = Identity("default/orders", "orders-0", "9f3c" * 8, "0.1.0")


def read(directory: Path, path: str) -> list[dict[str, Any]]:
    text = gzip.decompress((directory / segment_files.RAW / path).read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SegmentWriter]:
    made = SegmentWriter(tmp_path, IDENTITY, TelemetryConfig())
    made.start()
    yield made
    made.close()


def test_a_sealed_segment_names_and_proves_what_is_in_it(writer: SegmentWriter) -> None:
    writer.emit("sample", [{"k": "queue", "n": i, "empty": None} for i in range(5)])
    found = {item.path.split("/")[-1].split(".")[0]: item for item in writer.seal_now()}
    path = found["sample"].path
    assert path.startswith("cluster=default+orders/node=orders-0/dt=")
    assert path.endswith(f"/sample.{IDENTITY.boot}.000000.0-4.5.jsonl.gz")
    data = (writer.directory / segment_files.RAW / path).read_bytes()
    assert found["sample"].sha256 == hashlib.sha256(data).hexdigest()
    header, *rows, seal = read(writer.directory, path)
    assert header["cluster"] == "default/orders"
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["v"] == 1 and "empty" not in row for row in rows)
    body = gzip.decompress(data)
    body = body[: body.rindex(b'{"k":"_seal"')]
    assert seal["sha256"] == hashlib.sha256(body).hexdigest()
    assert seal["rows"] == seal["seq1"] - seal["seq0"] + 1 == 5


def test_sequence_numbers_go_on_over_segments(writer: SegmentWriter) -> None:
    for _ in range(3):
        writer.emit("sample", [{"k": "node"}, {"k": "node"}])
        writer.seal_now()
    names = [item.path for item in writer.sealed() if "/sample." in item.path]
    assert [name.split(".")[2:4] for name in sorted(names)] == [
        ["000000", "0-1"], ["000001", "2-3"], ["000002", "4-5"],
    ]  # fmt: skip


def test_rows_say_by_how_much_their_clock_is_ahead(writer: SegmentWriter) -> None:
    writer.emit("sample", [{"k": "node"}])
    writer.skew_ms = -4
    writer.emit("sample", [{"k": "node"}])
    writer.skew_ms = 0
    (path,) = (item.path for item in writer.seal_now() if "/sample." in item.path)
    rows = read(writer.directory, path)[1:-1]
    assert [row.get("skew_ms") for row in rows] == [None, -4]


def test_a_full_segment_is_rotated_and_no_row_is_split(tmp_path: Path) -> None:
    config = TelemetryConfig(segment_bytes=4096)
    writer = SegmentWriter(tmp_path, IDENTITY, config)
    writer.start()
    writer.emit("sample", [{"k": "queue", "text": "x" * 1000} for _ in range(20)])
    paths = [item.path for item in writer.seal_now() if "/sample." in item.path]
    writer.close()
    assert len(paths) >= 5
    rows = [row for path in paths for row in read(tmp_path, path)[1:-1]]
    assert sorted(row["seq"] for row in rows) == list(range(20))


def test_the_hour_and_the_age_end_a_segment(tmp_path: Path) -> None:
    now = [segments.HOUR_US * 10 - 1_000_000]
    writer = SegmentWriter(tmp_path, IDENTITY, TelemetryConfig(), lambda: now[0])
    writer._write(segments._Batch("sample", [{"k": "node"}], 0))
    now[0] += 2_000_000
    writer._write(segments._Batch("sample", [{"k": "node"}], 1))
    now[0] += 301_000_000
    writer._seal_due(False)
    first, second = segment_files.sealed_paths(tmp_path)
    assert "hh=09" in first
    assert "hh=10" in second


def test_a_clean_end_is_told_and_leaves_nothing_open(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, IDENTITY, TelemetryConfig())
    writer.start()
    writer.close()
    (path,) = segment_files.sealed_paths(tmp_path)
    states = [row["state"] for row in read(tmp_path, path)[1:-1]]
    assert states == ["start", "end"]
    assert not list((tmp_path / "open").iterdir())


def left_open(tmp_path: Path, tail: bytes) -> Path:
    segment = segment_files.open_segment(tmp_path, IDENTITY, "sample", 3, 7_200_000_000, 10_000)
    lines = [segment_files.encode({"k": "queue", "seq": 40 + i}) for i in range(3)]
    segment.write(lines, 40, 42)
    segment.close()
    with segment.path.open("ab") as file:
        file.write(tail)
    return segment.path


@pytest.mark.parametrize("tail", [b"", b'{"k":"que', b"\xff\x00\n", b"[]\n", b'{"k":"queue"}\n'])
def test_what_a_killed_process_left_is_cut_at_its_last_good_line(
    tmp_path: Path, tail: bytes
) -> None:
    path = left_open(tmp_path, tail)
    sealed = segment_files.recover(tmp_path, path)
    assert sealed is not None
    assert sealed.name == f"sample.{IDENTITY.boot}.000003.40-42.3.jsonl.gz"
    *_, seal = read(tmp_path, sealed.relative_to(tmp_path / segment_files.RAW).as_posix())
    assert seal["recovered"] is True
    assert seal["rows"] == 3
    assert not path.exists()


@pytest.mark.parametrize("data", [b"", b"garbage", b'{"k":"_open"}\n', b'{"k":"_open","seg":1}\n'])
def test_an_open_file_without_rows_or_header_is_removed(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "open").mkdir()
    path = tmp_path / "open" / "sample.aa.000000.jsonl"
    path.write_bytes(data)
    assert segment_files.recover(tmp_path, path) is None
    assert not path.exists()
    assert segment_files.sealed_paths(tmp_path) == []


def test_recovery_after_a_crash_between_rename_and_unlink_changes_nothing(tmp_path: Path) -> None:
    path = left_open(tmp_path, b"")
    open_bytes = path.read_bytes()
    sealed = segment_files.recover(tmp_path, path)
    assert sealed is not None
    before = sealed.read_bytes()
    path.write_bytes(open_bytes)
    assert segment_files.recover(tmp_path, path) == sealed
    assert sealed.read_bytes() == before


def test_a_sealed_segment_is_not_replaced_by_its_own_recovery(tmp_path: Path) -> None:
    """A job may have it already: the same name with other bytes would be a conflict."""
    segment = segment_files.open_segment(tmp_path, IDENTITY, "sample", 0, 7_200_000_000, 10_000)
    segment.write([segment_files.encode({"k": "queue", "seq": 0})], 0, 0)
    open_bytes = segment.path.read_bytes()
    sealed = segment_files.seal(tmp_path, IDENTITY, segment)
    assert sealed is not None
    before = sealed.read_bytes()
    segment.path.write_bytes(open_bytes)
    segment_files.recover(tmp_path, segment.path)
    assert sealed.read_bytes() == before


def test_a_full_buffer_drops_the_oldest_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "BUFFER_ROWS_MAX", 10)
    writer = SegmentWriter(tmp_path, IDENTITY, TelemetryConfig())
    for start in range(0, 30, 6):
        writer.emit("sample", [{"k": "queue", "n": start + i} for i in range(6)])
    writer.start()
    rows = [row for item in writer.seal_now() for row in read(tmp_path, item.path)[1:-1]]
    writer.close()
    kept = [row["n"] for row in rows if row["k"] == "queue"]
    assert kept == list(range(30 - len(kept), 30))
    gaps = {row["kind"]: row["rows"] for row in rows if row["k"] == "gap"}
    assert gaps == {"queue": 30 - len(kept)}


def test_retention_deletes_the_oldest_and_tells(tmp_path: Path) -> None:
    config = TelemetryConfig(retention_bytes=1024 * 1024)
    writer = SegmentWriter(tmp_path, IDENTITY, config)
    writer.start()
    noise = [os.urandom(600_000).hex() for _ in range(3)]
    for text in noise:
        writer.emit("sample", [{"k": "queue", "text": text}])
        writer.seal_now()
    writer.close()
    paths = segment_files.sealed_paths(tmp_path)
    numbers = [path.split(".")[2] for path in paths if "/sample." in path]
    assert numbers == ["000002"]
    events = [row for path in paths if "/event." in path for row in read(tmp_path, path)]
    lost = sum(row["rows"] for row in events if row["k"] == "gap" and row["kind"] == "sample")
    assert lost == 2


def test_a_broken_disk_is_a_gap_and_not_an_error_of_the_broker(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, IDENTITY, TelemetryConfig())
    (tmp_path / "open").write_text("in the way")
    writer.start()
    writer.emit("sample", [{"k": "queue"}])
    assert writer.seal_now() == []
    (tmp_path / "open").unlink()
    writer.emit("sample", [{"k": "queue"}])
    rows = [row for item in writer.seal_now() for row in read(tmp_path, item.path)[1:-1]]
    writer.close()
    gaps = [row for row in rows if row["k"] == "gap"]
    assert sum(row["rows"] for row in gaps) >= 1


CHILD = """
import sys
from pathlib import Path
from brokerd.config import TelemetryConfig
from brokerd.telemetry.segments import Identity, SegmentWriter
writer = SegmentWriter(Path(sys.argv[1]), Identity("c", "n", "ab" * 16), TelemetryConfig())
writer.start()
number = 0
while True:
    writer.emit("sample", [{"k": "queue", "n": number + i, "text": "y" * 200} for i in range(50)])
    number += 50
    if number == 2000:
        print("going", flush=True)
"""


def written(directory: Path) -> bool:
    """Say whether more than a header has reached the open file."""
    return any(path.stat().st_size > 4096 for path in (directory / "open").glob("sample.*"))


@pytest.mark.slow
def test_sigkill_while_writing_loses_no_complete_line_and_repeats_none(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "going\n"
        deadline = time.monotonic() + 60
        while not written(tmp_path) and time.monotonic() < deadline:
            process.poll()
        process.send_signal(signal.SIGKILL)
        process.wait()
    writer = SegmentWriter(tmp_path, IDENTITY, TelemetryConfig())
    writer.start()
    found = [item.path for item in writer.seal_now()]
    writer.close()
    rows = [
        row for path in found if f"sample.{'ab' * 16}" in path for row in read(tmp_path, path)[1:-1]
    ]
    numbers = [row["seq"] for row in rows]
    assert len(numbers) == len(set(numbers)) > 0
    assert not list((tmp_path / "open").glob(f"*.{'ab' * 16}.*"))


def test_only_paths_of_segments_lead_to_files(writer: SegmentWriter) -> None:
    for path in ("../../etc/passwd", "/etc/passwd", "cluster=a/node=../x", "", "open/sample"):
        with pytest.raises(ValueError, match="no path of a segment"):
            writer.path_of(path)


def test_release_deletes_once(writer: SegmentWriter) -> None:
    writer.emit("sample", [{"k": "node"}])
    path = next(item.path for item in writer.seal_now() if "/sample." in item.path)
    assert writer.release(path) is True
    assert writer.release(path) is False
    assert path not in [item.path for item in writer.sealed()]


def test_odd_names_become_safe_path_components() -> None:
    assert segment_files.safe_name("default/orders") == "default+orders"
    assert "/" not in segment_files.safe_name("../../x y\n%")
    assert segment_files.safe_name("") == "_"


def test_a_row_is_a_line_whatever_is_in_it() -> None:
    """AMQP's names are octets, and what is none of UTF-8 must not end the writer."""
    odd = {"k": "queue", "queue": '\u00e4\n"', "none": None, "flag": True, "parts": {"a": [1, 0.5]}}
    for name, told in (("q\udcff", "q?"), (1 << 70, 1 << 70), ("\u2028", "\u2028")):
        line = segment_files.encode({**odd, "dlx": name})
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        assert json.loads(line) == {
            name: value for name, value in odd.items() if value is not None
        } | {"dlx": told}
