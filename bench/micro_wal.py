"""Micro bench of the write-ahead log: cost of a write, syncs per second, recovery, read-back.

    python -m bench.micro_wal [--directory DIR] [--messages N]
    python -m bench.micro_wal --mark [--directory DIR]

Prints one line per figure.  "cpu" is the process's own time, the rest is the disk.
--mark: only what it costs to write down beside each write that it was synced (records.SyncMark),
with and without in turns.
"""

from __future__ import annotations

import argparse
import gc
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from brokerd.raft.messages import Entry, HardState, NodeId
from brokerd.storage import records
from brokerd.storage.config import WalConfig
from brokerd.storage.wal import GroupWrite, WriteAheadLog

KIB = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--mark", action="store_true")
    arguments = parser.parse_args()
    if arguments.mark:
        for entries, count in ((1, 3_000), (10, 2_000), (100, 1_000)):
            with Scratch(arguments.directory) as directory:
                bench_mark(directory, entries, count)
        return
    for name, entries, groups, size, count in (
        ("1 KiB, one entry", 1, 1, KIB, 2000),
        ("16 KiB, one entry", 1, 1, 16 * KIB, 2000),
        ("256 KiB, one entry of one group", 1, 1, 256 * KIB, 800),
        ("256 KiB, 16 groups with an entry each", 1, 16, 16 * KIB, 800),
        ("256 KiB, 256 entries of 1 KiB", 256, 1, KIB, 400),
    ):
        with Scratch(arguments.directory) as directory:
            bench_write(directory, name, entries, groups, size, count)
    for batch in (1, 100):
        with Scratch(arguments.directory) as directory:
            bench_recovery(directory, arguments.messages, batch)


class Scratch:
    """A directory that is gone afterwards."""

    def __init__(self, parent: Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="micro-wal-", dir=parent))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def bench_write(
    directory: Path, name: str, entries: int, groups: int, size: int, count: int
) -> None:
    """Write `count` batches, one sync each, and show them to the readers."""
    log = WriteAheadLog.open(directory, WalConfig(node_id="bench"))
    data = bytes(range(256)) * (size // 256)
    walls: list[float] = []
    shows: list[float] = []
    cpu = time.process_time()
    for number in range(count):
        first = number * entries + 1
        writes = [
            GroupWrite(
                uid,
                HardState(1, NodeId("a"), first),
                [Entry(first + n, 1, 0, data) for n in range(entries)],
            )
            for uid in range(1, groups + 1)
        ]
        started = time.perf_counter()
        log.write(writes)
        middle = time.perf_counter()
        log.written(writes)
        walls.append(middle - started)
        shows.append(time.perf_counter() - middle)
    cpu = (time.process_time() - cpu) / count * 1e6
    total = sum(walls)
    log.close()
    mb = entries * groups * size * count / 1e6
    print(
        f"write {name:40s} p50 {statistics.median(walls) * 1e6:7.0f} us  "
        f"p99 {sorted(walls)[count * 99 // 100] * 1e6:7.0f} us  {count / total:6.0f} syncs/s  "
        f"{mb / total:6.0f} MB/s  cpu {cpu:6.0f} us  "
        f"written() {statistics.median(shows) * 1e6:6.1f} us"
    )


def bench_mark(directory: Path, entries: int, count: int) -> None:
    """Write the same batches to a log with marks and to one of the format before, in turns."""
    logs = {}
    for version in (2, 3):
        current, records.FORMAT_VERSION = records.FORMAT_VERSION, version
        try:
            logs[version] = WriteAheadLog.open(
                directory / str(version), WalConfig("bench", in_background=False)
            )
        finally:
            records.FORMAT_VERSION = current
    data = bytes(range(256)) * 4
    walls: dict[int, list[float]] = {2: [], 3: []}
    for number in range(count):
        first = number * entries + 1
        batch = [Entry(first + n, 1, 0, data) for n in range(entries)]
        for version, log in sorted(logs.items(), reverse=bool(number % 2)):
            write = GroupWrite(1, HardState(1, NodeId("a"), first), batch)
            started = time.perf_counter()
            log.write([write])
            walls[version].append(time.perf_counter() - started)
            log.written([write])
    for log in logs.values():
        log.close()
    before, after = (statistics.median(walls[version]) * 1e6 for version in (2, 3))
    means = [statistics.fmean(walls[version]) for version in (2, 3)]
    print(
        f"mark, {entries:3d} entries of 1 KiB a write: p50 {before:6.0f} us without, "
        f"{after:6.0f} us with ({(after / before - 1) * 100:+.1f} %), "
        f"mean {(means[1] / means[0] - 1) * 100:+.1f} %"
    )


def bench_recovery(directory: Path, messages: int, batch: int) -> None:
    """Recover messages of 1 KiB, `batch` of them in one entry; then read some back cold."""
    log = WriteAheadLog.open(directory, WalConfig(node_id="bench"))
    data = bytes(range(256)) * 4 * batch
    per_write = max(1, 256 // batch)
    entries = messages // batch
    for first in range(1, entries + 1, per_write):
        last = min(first + per_write, entries + 1)
        write = GroupWrite(5, None, [Entry(index, 1, 0, data) for index in range(first, last)])
        log.write([write])
        log.written([write])
    log.close()
    del log
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    log = WriteAheadLog.open(directory, WalConfig(node_id="bench"))
    took = time.perf_counter() - started
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / KIB
    group = log.log(5)
    assert group.last_index() == entries
    mb = messages * KIB / 1e6
    print(
        f"recover {messages} messages of 1 KiB, {batch} per entry: {took:5.2f} s  "
        f"{mb / took:5.0f} MB/s  {took / entries * 1e6:5.1f} us per entry  "
        f"peak memory +{peak:.0f} MiB"
    )
    started = time.perf_counter()
    count = min(entries, 2000)
    for index in range(1, count + 1):
        group.entry_data(index)
    took = time.perf_counter() - started
    print(f"  read back {count} entries one by one: {took / count * 1e6:.1f} us each")
    log.close()


if __name__ == "__main__":
    main()
