"""`brokerctl telemetry prepare`: an archive of classes that later runs start with, or without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from brokerd_telemetry import class_archive, session
from brokerd_telemetry.class_archive import Archive

#: Starts a session, says which archives its JVM has mapped, and ends.
STARTS = """
from pathlib import Path
from brokerd_telemetry import session
spark = session.start(session.SparkSettings())
jvm = spark.sparkContext._gateway.proc
mapped = Path(f"/proc/{jvm.pid}/maps").read_text().splitlines()
print([line[line.index("/"):] for line in mapped if "/spark-classes-" in line][:1])
print(spark.range(3).count())
spark.stop()
"""


def python(cache: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this Python with a cache of its own."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=240
    )


def prepare(cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return python(cache, "-m", "brokerd_telemetry", "prepare")


def kept(cache: Path) -> list[Path]:
    """Return all that lies in the cache."""
    return sorted((cache / "brokerd").iterdir())


def test_sessions_start_with_what_was_prepared_and_without_what_is_broken(tmp_path: Path) -> None:
    cache = tmp_path / "a cache"
    old = cache / "brokerd" / "spark-classes-00-1.jsa"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x")
    first = prepare(cache)
    assert first.returncode == 0, first.stderr
    (archive,) = kept(cache)
    assert str(archive) in first.stderr
    again = prepare(cache)
    assert "there already" in again.stderr
    assert kept(cache) == [archive]

    assert python(cache, "-c", STARTS).stdout.splitlines() == [f"['{archive}']", "3"]

    # Whole in size and damaged inside, as by a disk; looked at before it is used.
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 3)
        file.write(bytes(2_000_000))
    assert python(cache, "-c", STARTS).stdout.splitlines() == ["[]", "3"]


def test_what_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "brokerd").write_text("a file")
    said = prepare(tmp_path)
    assert said.returncode == 1
    assert "nothing can be kept in" in said.stderr
    assert "Traceback" not in said.stderr


def test_only_a_whole_file_that_nobody_else_can_write_counts(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "brokerd", "key")
    for name, age_s in (("killed", 7200), ("at-work", 60)):
        left = archive.new().with_name(f"spark-classes-{name}.new")
        left.touch()
        os.utime(left, (time.time() - age_s,) * 2)
    made = archive.new()
    assert [path.name for path in archive.folder.iterdir()] == ["spark-classes-at-work.new"]
    made.write_bytes(b"classes")
    made.chmod(0o444)
    path = archive.adopt(made)
    assert archive.find() == path
    assert Archive(archive.folder, "other").find() is None
    for mode in (0o464, 0o446):
        path.chmod(mode)
        assert archive.find() is None
    path.chmod(0o600)
    path.write_bytes(b"class")
    assert archive.find() is None
    path.write_bytes(b"classes")
    assert archive.find() == path
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)
    assert archive.find() is None


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, Path("/c/brokerd")),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, Path("/h/.cache/brokerd")),
        ({"HOME": "/h"}, Path("/h/.cache/brokerd")),
        ({}, None),
    ],
)
def test_the_place_is_the_users_cache(environ: dict[str, str], folder: Path | None) -> None:
    found = class_archive.of("17", "/spark", environ)
    assert (None if found is None else found.folder) == folder


def test_in_a_cluster_no_archive_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(java: str) -> None:
        raise AssertionError(java)

    monkeypatch.setattr(session, "_archive", never)
    settings = session.SparkSettings("k8s://https://k:443")
    with pytest.raises(session.SparkUnavailable, match="--image"):
        session.start(settings)
    assert not session.may_be_prepared(settings)
