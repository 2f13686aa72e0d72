"""What lazy commands left behind is done soon, with what else is lazy, and before a member ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.late_work import LateWork
from brokerd.cluster.groups.write_queue import BootstrapStep, WriteQueue
from brokerd.raft.inputs import Hasten, Propose
from brokerd.raft.messages import Configuration, Entry, EntryKind, HardState, NodeId
from brokerd.storage.config import WalConfig
from brokerd.storage.wal import GroupWrite, WriteAheadLog
from tests.unit.cluster.groups.test_driver import HERE, OTHER, Rig


class Behind:
    """Stands for a driver: what it is told."""

    log_uid = 1

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    def persisted(self, token: int, entries: list[Entry]) -> None:
        raise AssertionError("the member has ended")


async def test_all_that_are_behind_are_hastened_once_by_one_timer() -> None:
    woken: asyncio.Queue[Driver] = asyncio.Queue()
    late_work = LateWork(woken.put_nowait)
    drivers = [cast(Driver, Behind()) for _ in range(2)]
    for driver in (*drivers, *drivers):
        late_work.add(driver)
    assert woken.empty()
    async with asyncio.timeout(60):
        assert [await woken.get(), await woken.get()] == drivers
    assert [driver.inputs for driver in drivers] == [[Hasten()], [Hasten()]]
    late_work.add(drivers[0])
    async with asyncio.timeout(60):
        assert await woken.get() is drivers[0]
    assert woken.empty()


async def test_a_member_that_ends_does_it_at_once() -> None:
    woken: list[Driver] = []
    late_work = LateWork(woken.append)
    late_work.do()
    assert not woken
    early, late = cast(Driver, Behind()), cast(Driver, Behind())
    late_work.add(early)
    flushes = 0

    def flush() -> None:
        nonlocal flushes
        flushes += 1
        if flushes == 1:
            # Its commands have waited for this flush.
            late_work.add(late)
        else:
            assert woken == [early, late]

    late_work.end(flush)
    assert flushes == 2
    assert late_work._timer is None


async def test_writes_that_wait_when_a_member_ends_are_written_and_nothing_behind_other_work(
    tmp_path: Path,
) -> None:
    wal = WriteAheadLog.open(tmp_path, WalConfig())
    one = Configuration((NodeId("a"),))
    for uid in (1, 2):
        wal.bootstrap([(uid, one)])
    writes = WriteQueue(wal, lambda drivers: None, lambda error: None)
    driver = cast(Driver, Behind())
    for uid in (1, 2):
        entry = Entry(1, 1, EntryKind.COMMAND, b"x" * 20)
        writes.add_write(driver, 1, GroupWrite(uid, HardState(1, None, 0), [entry]), 20)
        writes.add(BootstrapStep([(uid + 2, one)]))
    await writes.close()
    wal.close()
    wal = WriteAheadLog.open(tmp_path, WalConfig())
    assert [wal.log(uid).last_index() for uid in (1, 2)] == [1, 0]
    wal.close()


def test_a_batch_is_lazy_if_all_in_it_are() -> None:
    rig = Rig(HERE, OTHER)
    for is_lazy in (True, True):
        rig.driver.propose(b"x", lambda *_: None, 1, is_lazy=is_lazy)
    (batch,) = rig.driver.inputs
    assert isinstance(batch, Propose)
    assert batch.is_lazy
    rig.driver.propose(b"x", lambda *_: None, 1)
    rig.driver.propose(b"x", lambda *_: None, 1, is_lazy=True)
    assert not batch.is_lazy
    assert len(batch.commands) == 4
