"""What waits for the disk is merged, in order, with a bound."""

from __future__ import annotations

import asyncio
from pathlib import Path

from brokerd.cluster.groups.write_queue import GROUPS_MAX, WriteQueue
from brokerd.raft.messages import Configuration, NodeId
from brokerd.storage.config import WalConfig
from brokerd.storage.wal import WriteAheadLog

ONE = Configuration((NodeId("a"),))


async def test_groups_that_begin_or_end_are_merged_between_other_work(tmp_path: Path) -> None:
    count = GROUPS_MAX + 1
    wal = WriteAheadLog.open(tmp_path, WalConfig())
    finished: asyncio.Queue[int] = asyncio.Queue()
    failures: list[BaseException] = []
    writes = WriteQueue(wal, lambda drivers: finished.put_nowait(0), failures.append)
    before = wal.stats.syncs
    for uid in range(1, count + 1):
        writes.add_group(uid, ONE)
    writes.remove_group(1)
    writes.remove_group(2)
    # Behind those that go, as it came.
    writes.add_group(count + 1, ONE)
    writes.hand_over()
    for _ in range(4):
        await finished.get()
    assert finished.empty()
    assert wal.stats.syncs == before + 4
    await writes.close()
    wal.close()
    assert not failures
    wal = WriteAheadLog.open(tmp_path, WalConfig())
    assert wal.groups() == list(range(3, count + 2))
    wal.close()
