"""kill -9 of a real writer process: what it said was synced is there after every kill.

The page cache survives a kill, so this tests the format and recovery against half-finished system
calls, rotation, snapshots and collection; lost unsynced writes are in test_wal_model.py.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.storage.config import WalConfig
from brokerd.storage.wal import WriteAheadLog

ROUNDS = int(os.environ.get("BROKERD_TEST_WAL_KILLS", "20"))
GROUPS = (5, 6, 7)

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


@pytest.mark.timeout(60 + 3 * ROUNDS)
def test_everything_synced_survives_kill_9(tmp_path: Path) -> None:
    chance = random.Random(ROUNDS)
    synced = dict.fromkeys(GROUPS, 0)
    for seed in range(ROUNDS):
        said = run_and_kill(tmp_path, seed, lines=chance.randrange(1, 120))
        for line in said:
            if line.startswith("synced"):
                synced = dict(zip(GROUPS, map(int, line.split()[1:]), strict=True))
            assert "DAMAGE" not in line, line
        check(tmp_path, synced)
    assert min(synced.values()) > ROUNDS


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
        writer.wait(timeout=10)
        writer.stdout.close()
    # A last line that was cut in the middle of its numbers says nothing.
    return [line for line in said if line.endswith("\n")]


def check(directory: Path, synced: dict[int, int]) -> None:
    notes: list[str] = []
    log = WriteAheadLog.open(directory, WalConfig(node_id="a", segment_bytes=1 << 18), notes.append)
    for uid, last in synced.items():
        group = log.log(uid)
        assert not group.damaged, notes
        assert group.last_index() >= last
        assert group.initial_state()[0].term == (1 if last else group.initial_state()[0].term)
        first = group.first_index()
        if first <= group.last_index():
            for found in group.entries(first, group.last_index() + 1, 1 << 30):
                assert found.data.startswith(b"%d:%d;" % (uid, found.index))
        snapshot = group.snapshot()
        if snapshot is not None:
            assert snapshot.data == b"%d" % snapshot.index
            assert [live.index for live in snapshot.live][-1:] == [snapshot.index]
    log.close()
