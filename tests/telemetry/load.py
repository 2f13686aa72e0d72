"""`make telemetry-load ROWS=180000`: what a run of the job costs, on rows in the shape of members'.

A made-up cluster of three members and 500 busy queues tells every ten seconds, through brokerd's
own QueueRows, Counters and segment files; more rows are more hours.  The job then runs as a user
starts it.  Printed: wall time and CPU seconds of the run, its largest resident memory, rows per
second, octets per row on disk, and beside it DuckDB adding up the hours of the same segments.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from tests.telemetry import fleet
from tests.telemetry.test_job import run

QUEUES = 500
MEMBERS = 3
CLUSTER = "test/load"
#: What of queues is added up beside the job.
COUNTERS = ("enq", "dlv", "ack", "rejected", "over_limit", "dl_out")
#: linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
#: So many rows of these queues are an hour.
HOUR_ROWS = QUEUES * 360
#: So many take about half a minute.
SAID_ROWS = 1_000_000
#: Members seal every five minutes.
SEAL_US = 300_000_000


def write(raw: Path, wanted: int, say: Callable[[str], None] | None = None) -> int:
    """Write segments of at least so many rows; return how many.  say: how far it is."""
    rng = random.Random(wanted)
    queues = [fleet.Queue(1 + number, f"q{number}") for number in range(QUEUES)]
    nodes = [fleet.Node(raw, CLUSTER, f"n{i}", 0x10AD + i, []) for i in range(MEMBERS)]
    # Many rows are many hours, and none may lie in the future.
    begin_us = fleet.BEGIN_US - wanted // HOUR_ROWS * fleet.HOUR_US
    for node in nodes:
        node.now_us = begin_us
        node.boot_event(begin_us, "start")
    led = [queues[number::MEMBERS] for number in range(MEMBERS)]
    at_us, opened_us, written, said = begin_us, begin_us, 0, 0
    while written + sum(len(rows) for node in nodes for rows in node.rows.values()) < wanted:
        t1_us = at_us + fleet.INTERVAL_US
        for node, own in zip(nodes, led, strict=True):
            for queue in own:
                queue.live(rng, rng.randint(0, 40))
            _publish(node, rng)
            node.now_us = t1_us
            node.collect(at_us, t1_us, own, *[1] * len(own))
        at_us = t1_us
        if at_us - opened_us >= SEAL_US:
            written += _seal(nodes, opened_us)
            opened_us = at_us
            if say is not None and written >= said + SAID_ROWS:
                said = written
                say(f"{written:,} of {wanted:,} rows written")
    for node in nodes:
        node.boot_event(at_us - 1, "end")
    return written + _seal(nodes, opened_us)


def _publish(node: fleet.Node, rng: random.Random) -> None:
    contents = [fleet.content("k")] * 50
    clock = node.counters.confirm_clock("/", "web")
    node.counters.published("/", "web", "x", fleet.route("q0"), contents)
    clock.published(1, 50, "x")
    node.now_us += rng.randint(300, 20_000)
    clock.confirmed([(50, True)], [])


def _seal(nodes: list[fleet.Node], opened_us: int) -> int:
    rows = sum(len(rows) for node in nodes for rows in node.rows.values())
    for node in nodes:
        node.seal(opened_us)
    return rows


def size_of(folder: Path, ending: str) -> int:
    """Return the octets of a folder's files of a kind."""
    return sum(path.stat().st_size for path in folder.rglob(f"*{ending}"))


def queue_hours(raw: Path) -> list[tuple[Any, ...]]:
    """Return what DuckDB adds up of queues' counters by hour, of the fields that takes alone."""
    keys = ("grp", "term", "t0", "t1", "seq")
    counts = [name for counter in COUNTERS for name in (counter, f"c_{counter}")]
    types = ", ".join(f"{name}: 'BIGINT'" for name in (*keys, *counts))
    sums = ", ".join(f"sum(s_{name})" for name in COUNTERS)
    deltas = ", ".join(
        f"coalesce(c_{name}, 0) - coalesce(lag(coalesce(c_{name}, 0)) OVER w, c_{name} - {name}, 0)"
        f" AS s_{name}"
        for name in COUNTERS
    )
    return duckdb.execute(
        f"WITH s AS (SELECT queue, t0, {deltas} FROM read_json($1, format = 'newline_delimited', "
        f"columns = {{k: 'VARCHAR', queue: 'VARCHAR', {types}}}) WHERE k = 'queue' "
        "WINDOW w AS (PARTITION BY grp ORDER BY term, t1, c_enq, c_ack, seq)) "
        f"SELECT t0 // 3600000000 AS hour, queue, {sums} FROM s GROUP BY 1, 2",
        [str(raw / "raw" / "v1" / "**" / "*.gz")],
    ).fetchall()


def measure(rows_wanted: int, folder: Path) -> None:
    """Write, run, and print."""
    raw, out = folder / "raw", folder / "out"
    began = time.monotonic()
    rows = write(raw, rows_wanted, lambda text: print(text, flush=True))
    print(
        f"{rows:,} rows written in {time.monotonic() - began:.1f} s, load {os.getloadavg()[0]:.1f}"
    )
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    said = run(raw, out)
    wall_s = time.monotonic() - began
    # Spark's JVM and its workers outlive the run for a moment, and count.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(said.strip())
    peak_mib = after.ru_maxrss / 1024
    print(
        f"run: {wall_s:.1f} s, {cpu_s:.1f} s of CPU, {rows / wall_s:,.0f} rows/s, "
        f"{rows / cpu_s:,.0f} rows per CPU second, largest process {peak_mib:.0f} MiB, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for name, size in (
        ("raw", size_of(raw, ".gz")),
        ("silver", size_of(out / "silver", ".parquet")),
        ("gold", size_of(out / "gold", ".parquet")),
    ):
        print(f"{name}: {size / 1e6:.1f} MB, {size / rows:.1f} octets per row")
    began, cpu_began = time.monotonic(), time.process_time()
    lines = len(queue_hours(raw))
    print(
        f"DuckDB reads the same segments and adds up {lines:,} hours of queues: "
        f"{time.monotonic() - began:.1f} s, {time.process_time() - cpu_began:.1f} s of CPU"
    )


def main() -> None:
    """Measure once per number of rows."""
    # Whoever is left of a run becomes this process's child.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[180_000])
    for rows in parser.parse_args().rows:
        with tempfile.TemporaryDirectory(prefix="telemetry-load-") as folder:
            measure(rows, Path(folder))


if __name__ == "__main__":
    main()
