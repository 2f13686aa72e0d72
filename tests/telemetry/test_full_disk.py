"""A disk that is full ends a run in words, leaves nothing of it, and the next one goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.telemetry import load
from tests.telemetry.test_job import environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 10_000
#: Mounts a small disk, runs, looks what is there, makes the disk larger, and so on.
SCRIPT = """
set -u
mount -t tmpfs -o size=1m none "$1"
for size in $2; do
  mount -o remount,size=$size "$1"
  "$3" -m brokerd_telemetry run --raw "$4" --out "$1/out"
  echo "exit $?, $(find "$1/out" -name '*.parquet' | wc -l) files" >&2
done
"""


def test_a_run_without_room_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Full while rows are written, then while tables are; Spark tells of it in a hundred lines."""
    raw, disk = tmp_path / "raw", tmp_path / "disk"
    disk.mkdir()
    rows = load.write(raw, ROWS)
    arguments = [str(disk), "100k 700k 40m", sys.executable, str(raw)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", *arguments],
        env=environment(), capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    said = done.stderr.splitlines()
    ends = [line for line in said if line.startswith("exit")]
    assert ends[:2] == ["exit 1, 0 files"] * 2, done.stderr
    assert ends[2].startswith("exit 0, "), done.stderr
    errors = [line for line in said if line.startswith("Error")]
    assert len(errors) == 2
    for line in errors:
        assert f"{disk / 'out'} has 0 MB left" in line
        assert "The tables are as they were." in line
    # The second had read them all when its tables found no room.
    assert said.count(f"telemetry: {rows:,} rows read") == 2
    assert "Traceback" not in done.stderr


#: Mounts a small disk, serves, makes the disk larger when a run has failed, ends after one has not.
SERVES = """
set -u
mount -t tmpfs -o size=700k none "$1"
mkfifo "$4"
"$2" -m brokerd_telemetry serve --every 1 --raw "$3" --out "$1/out" 2> "$4" &
while read -r line; do
  echo "$line" >&2
  case "$line" in
    *"this run failed"*) mount -o remount,size=40m "$1";;
    *"report: "*) kill -TERM $!;;
  esac
done < "$4"
wait $!
echo "exit $?" >&2
"""


def test_serve_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    raw, disk = tmp_path / "raw", tmp_path / "disk"
    disk.mkdir()
    load.write(raw, ROWS)
    arguments = [str(disk), sys.executable, str(raw), str(tmp_path / "said")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SERVES, "sh", *arguments],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    said = done.stderr.splitlines()
    failed = [line for line in said if "this run failed" in line]
    assert failed, done.stderr
    assert all("The tables are as they were." in line for line in failed)
    assert sum("done in" in line for line in said) == 1
    assert said[-2:] == ["telemetry: ends", "exit 0"]
    assert "Traceback" not in done.stderr
