"""`make telemetry-kills RUN_KILLS=30`: SIGKILL of a run, at points spread over its whole length.

A made-up fleet's first hour is committed; a run over the hour after it is killed again and again,
the driver with its Java process or the driver alone, each time a little later, on what the kills
before have left lying about.  After each kill the tables must be those of the first hour or those
of a run that nobody killed, and nothing between.  After the last one a run is let through.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
from brokerd_telemetry import commit, sinks

from tests.telemetry import fleet
from tests.telemetry.test_job import TABLES, command, environment, place, run

SEED = 4711
#: It is over sooner on a machine that has got faster meanwhile; the last points are of that part.
LENGTH = 1.05

Rows = dict[str, list[tuple[Any, ...]]]


def tables(out: Path) -> Rows:
    """Return the rows of all tables that count, without what tells runs apart.

    Whatever the manifest lists must be there, or DuckDB complains.
    """
    manifest = commit.Ledger(out).load()
    columns = "COLUMNS(lambda c: c <> 'run_id')"
    with duckdb.connect() as db:
        db.execute(sinks.views_sql(str(out), manifest).decode())
        return {
            table: sorted(db.execute(f"SELECT {columns} FROM {table}").fetchall(), key=str)
            for table in TABLES
        }


def current(out: Path) -> str:
    return (out / "ledger" / "CURRENT").read_text()


def killed(raw: Path, out: Path, after_s: float, is_alone: bool) -> bool:
    """Start a run and kill it after a time; return False if it was over before.

    is_alone: the driver's Java process is left to notice by itself.
    """
    with subprocess.Popen(
        command(raw, out), env=environment(), stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            if is_alone:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            return True
        assert process.returncode == 0
        return False


def measure(kills: int, folder: Path) -> None:
    """Kill, compare, and print a line for each point."""
    whole, raw, out = folder / "whole", folder / "raw", folder / "out"
    fleet.make(whole, SEED)
    source = whole / "raw" / "v1"
    segments = sorted(source.rglob("*.gz"))
    late = [path for path in segments if path.parent.name == "hh=15"]
    for path in segments:
        if path not in late:
            place(path, source, raw)
    run(raw, out)
    for path in late:
        place(path, source, raw)
    base, aside = folder / "base", folder / "aside"
    shutil.copytree(out, base)
    shutil.copytree(base, aside)
    began = time.monotonic()
    run(raw, aside)
    length_s = (time.monotonic() - began) * LENGTH
    old, new, before = tables(base), tables(aside), current(base)
    assert old != new
    print(f"a run takes {length_s:.1f} s; {kills} kills", flush=True)
    for number in range(kills):
        after_s = length_s * (number + 1) / kills
        is_alone = number % 2 == 1
        was_killed = killed(raw, out, after_s, is_alone)
        is_committed = current(out) != before
        assert tables(out) == (new if is_committed else old), f"after {after_s:.1f} s"
        said = "killed" if was_killed else "over before"
        whom = "driver alone" if is_alone else "driver and Java"
        state = "the new" if is_committed else "the old"
        print(f"{after_s:6.1f} s, {whom}: {said}, {state} tables", flush=True)
        if is_committed:
            shutil.rmtree(out)
            shutil.copytree(base, out)
    run(raw, out)
    assert tables(out) == new
    assert (out / "ledger" / "PUBLISHED").read_text() == f"{commit.Ledger(out).load().run_id}\n"
    assert "no new telemetry" in run(raw, out)
    print("let through, it makes the tables of a run that nobody killed")


def main() -> None:
    """Kill as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    with tempfile.TemporaryDirectory(prefix="telemetry-kills-") as folder:
        measure(parser.parse_args().kills, Path(folder))


if __name__ == "__main__":
    main()
