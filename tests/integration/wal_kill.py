"""kill -9 of a real writer process, again and again: what it said was synced is there after each.

The page cache survives a kill, so this tests the format and recovery against half-finished system
calls, rotation, snapshots and collection; lost unsynced writes are in test_wal_model.py.

    python -m tests.integration.wal_kill --rounds 2000 --first-seed 1
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from brokerd.storage import inspect
from brokerd.storage.config import WalConfig
from brokerd.storage.wal import WriteAheadLog

GROUPS = (5, 6, 7)
#: A writer says "synced" at most so often before it is killed.
LINES_MAX = 120
CONFIG = WalConfig(node_id="a", segment_bytes=1 << 18)

WRITER = """
import random, sys
from pathlib import Path
from brokerd.raft.messages import Configuration, Entry, HardState, Snapshot
from brokerd.storage.config import WalConfig
from brokerd.storage.wal import GroupWrite, WriteAheadLog

directory, seed = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
log = WriteAheadLog.open(directory, WalConfig(node_id="a", segment_bytes=1 << 18), print)
nexts = {uid: log.log(uid).last_index() + 1 for uid in (5, 6, 7)}
print("open", flush=True)
while True:
    writes = []
    for uid in nexts:
        count = chance.randrange(1, 5)
        first = nexts[uid]
        data = [b"%d:%d;" % (uid, first + n) * chance.randrange(1, 400) for n in range(count)]
        entries = [Entry(first + n, 1, 0, data[n]) for n in range(count)]
        writes.append(GroupWrite(uid, HardState(1, "a", first), entries))
        nexts[uid] += count
    log.write(writes)
    print("synced", *(nexts[uid] - 1 for uid in nexts), flush=True)
    log.written(writes)
    if chance.random() < 0.05:
        uid = chance.choice(list(nexts))
        snapshot = Snapshot(nexts[uid] - 1, 1, Configuration(("a",)), b"%d" % (nexts[uid] - 1))
        live = [(nexts[uid] - 2, nexts[uid])]
        log.save_snapshot(uid, snapshot, live)
        log.snapshot_saved(uid, snapshot, live)
    work = log.collect()
    if work is not None:
        log.collect_write(work)
        log.collected(work)
"""


def run(directory: Path, rounds: int, first_seed: int = 0) -> dict[int, int]:
    """Kill a writer so many times; return the last index that each group said was synced.

    AssertionError: something that was synced is not there, or damage is reported.
    """
    chance = random.Random(f"{first_seed} {rounds}")
    synced = dict.fromkeys(GROUPS, 0)
    for seed in range(first_seed, first_seed + rounds):
        try:
            for line in run_and_kill(directory, seed, chance.randrange(1, LINES_MAX)):
                if line.startswith("synced"):
                    synced = dict(zip(GROUPS, map(int, line.split()[1:]), strict=True))
                assert "DAMAGE" not in line, line
            check(directory, synced)
        except AssertionError as error:
            error.add_note(f"seed {seed}, the log is in {directory}")
            raise
    return synced


def run_and_kill(directory: Path, seed: int, lines: int) -> list[str]:
    """Let a writer say so many lines, kill it wherever it is, and return all it had said."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    try:
        said = [line for _, line in zip(range(lines), writer.stdout, strict=False)]
        writer.kill()
        said += writer.stdout.readlines()
    finally:
        writer.kill()
        writer.wait(timeout=60)
        writer.stdout.close()
    # A last line that was cut in the middle of its numbers says nothing.
    return [line for line in said if line.endswith("\n")]


def check(directory: Path, synced: dict[int, int]) -> None:
    """Open the log as the next start does, and read all that must be there."""
    assert inspect.verify(directory).exit_code == inspect.EXIT_INTACT
    notes: list[str] = []
    log = WriteAheadLog.open(directory, CONFIG, notes.append)
    for uid, last in synced.items():
        group = log.log(uid)
        assert not group.damaged, notes
        assert group.last_index() >= last
        if last:
            assert group.initial_state()[0].term == 1
        first = group.first_index()
        if first <= group.last_index():
            for found in group.entries(first, group.last_index() + 1, 1 << 30):
                assert found.data.startswith(b"%d:%d;" % (uid, found.index))
        snapshot = group.snapshot()
        if snapshot is not None:
            assert snapshot.data == b"%d" % snapshot.index
            assert [live.index for live in snapshot.live][-1:] == [snapshot.index]
    log.close()


def main() -> int:
    """Run, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="wal-kill-"))
    synced = run(folder, args.rounds, args.first_seed)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    print(
        f"wal kills: {args.rounds} in {time.monotonic() - started:.0f} s, "
        f"first seed {args.first_seed}: {sum(synced.values())} synced entries, 0 lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
