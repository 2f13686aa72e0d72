"""The way to the writer thread: everything that goes to disk, in order, merged while it is busy.

One thread writes and syncs (hot-path.md rule 9); meanwhile the next batch is collected here, so
that batches form by what is there when the previous one ends (rule 1).  Used by host.py only.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, TypeAlias

from mypy_extensions import mypyc_attr

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.raft.inputs import SnapshotSaved
from brokerd.raft.messages import Configuration, HardState, Snapshot
from brokerd.storage.errors import NoRoom
from brokerd.storage.staging import StagedChunk
from brokerd.storage.wal import Collection, GroupWrite, WriteAheadLog

logger = logging.getLogger(__name__)

#: Bytes that one write to the log takes; more goes in the next one.
BATCH_BYTES_MAX = 16 * 1024 * 1024
#: Of a snapshot on its way in it takes less: the bytes stand in memory three times meanwhile.
STAGED_BYTES_MAX = 4 * 1024 * 1024
#: Groups that begin or end with one write: a vhost may go with thousands of queues.
GROUPS_MAX = 1_000
#: How long a snapshot waits for which the disk had no room, and how many are tried then.
ROOM_S = 5.0
TRIED_MAX = 16


class Step(Protocol):
    """A piece of work: `run` in the writer thread, `finish` on the event loop afterwards."""

    def run(self, wal: WriteAheadLog) -> None:
        """Do the I/O."""
        ...

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        """Make it visible; return the drivers that got inputs."""
        ...


@dataclass(slots=True)
class WriteStep:
    """Entries and hard states of any number of groups: one write, one fdatasync."""

    writes: list[GroupWrite] = field(default_factory=list)
    acks: list[tuple[Driver, int]] = field(default_factory=list)
    size: int = 0

    def run(self, wal: WriteAheadLog) -> None:
        wal.write(self.writes)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        wal.written(self.writes)
        for (driver, token), write in zip(self.acks, self.writes, strict=True):
            driver.persisted(token, write.entries)
        return [driver for driver, _ in self.acks]


@dataclass(slots=True)
class SaveStep:
    """A snapshot of the own machine; the log keeps what it replaces until there is room for it."""

    driver: Driver
    snapshot: Snapshot
    live: list[tuple[int, int]]
    put_off: Callable[[SaveStep], None]
    no_room: NoRoom | None = None

    def run(self, wal: WriteAheadLog) -> None:
        try:
            wal.save_snapshot(self.driver.log_uid, self.snapshot, self.live)
        except NoRoom as error:
            self.no_room = error

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        if self.no_room is not None:
            self.put_off(self)
            return []
        wal.snapshot_saved(self.driver.log_uid, self.snapshot, self.live)
        self.driver.inputs.append(SnapshotSaved(self.snapshot.index))
        return [self.driver]


@dataclass(slots=True)
class InstallStep:
    """A leader's snapshot."""

    driver: Driver
    token: int
    snapshot: Snapshot
    hard_state: HardState

    def run(self, wal: WriteAheadLog) -> None:
        wal.install_snapshot(self.driver.log_uid, self.snapshot, self.hard_state)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        wal.snapshot_installed(self.driver.log_uid, self.snapshot, self.hard_state)
        is_damaged = wal.log(self.driver.log_uid).damaged
        self.driver.learn(replica_health.SnapshotInstalled(is_damaged))
        self.driver.persisted(self.token, [])
        return [self.driver]


@dataclass(slots=True)
class StageStep:
    """Live entries of snapshots that are on their way in: one write, one fdatasync."""

    written: Callable[[int], None]
    chunks: list[StagedChunk] = field(default_factory=list)
    size: int = 0

    def run(self, wal: WriteAheadLog) -> None:
        wal.stage(self.chunks)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        wal.staged(self.chunks)
        self.written(self.size)
        return []


@dataclass(slots=True)
class BootstrapStep:
    """The first configurations of new groups: one write, one fdatasync."""

    groups: list[tuple[int, Configuration]] = field(default_factory=list)

    def run(self, wal: WriteAheadLog) -> None:
        wal.bootstrap(self.groups)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        return []


@dataclass(slots=True)
class RemoveStep:
    """The end of groups: one write, one fdatasync."""

    uids: list[int] = field(default_factory=list)

    def run(self, wal: WriteAheadLog) -> None:
        wal.remove_groups(self.uids)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        return []


@dataclass(slots=True)
class CollectStep:
    """A bounded piece of cleaning."""

    work: Collection

    def run(self, wal: WriteAheadLog) -> None:
        wal.collect_write(self.work)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        wal.collected(self.work)
        return []


@dataclass(slots=True)
class RefillStep:
    """A leader has made a damaged log whole again."""

    driver: Driver

    def run(self, wal: WriteAheadLog) -> None:
        wal.mark_refilled(self.driver.log_uid)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        wal.refilled(self.driver.log_uid)
        self.driver.learn(replica_health.RefillRecorded())
        return [self.driver]


@mypyc_attr(allow_interpreted_subclasses=True)
class WriteQueue:
    """Steps that wait, and the thread that does them.

    The thread has at most one hand-over at a time; `failed` is called once, and after it nothing
    is written any more (replication.md §1: a failed fsync is fatal).
    """

    def __init__(
        self,
        wal: WriteAheadLog,
        finished: Callable[[list[Driver]], None],
        failed: Callable[[BaseException], None],
        room_s: float = ROOM_S,
    ) -> None:
        """room_s: so long a snapshot waits for which there was no room."""
        self._wal = wal
        self._room_s = room_s
        #: Snapshots for which there was no room.
        self._put_off: list[SaveStep] = []
        self._finished = finished
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Step] = []
        self._is_busy = False
        self._has_failed = False
        self._handed: queue.SimpleQueue[list[Step] | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="wal-writer", daemon=True)
        self._worker.start()

    def add_write(self, driver: Driver, token: int, write: GroupWrite, size: int) -> None:
        """Add to the batch that is being collected."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, WriteStep) or last.size + size > BATCH_BYTES_MAX:
            last = WriteStep()
            self._waiting.append(last)
        last.writes.append(write)
        last.acks.append((driver, token))
        last.size += size

    def add_chunk(self, chunk: StagedChunk, written: Callable[[int], None]) -> None:
        """Add to the live entries that wait; `written` receives how many bytes came to the disk."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, StageStep) or last.size + chunk.size > STAGED_BYTES_MAX:
            last = StageStep(written)
            self._waiting.append(last)
        last.chunks.append(chunk)
        last.size += chunk.size

    def add_group(self, uid: int, configuration: Configuration) -> None:
        """Add to the new groups that wait."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, BootstrapStep) or len(last.groups) >= GROUPS_MAX:
            last = BootstrapStep()
            self._waiting.append(last)
        last.groups.append((uid, configuration))

    def remove_group(self, uid: int) -> None:
        """Add to the groups that are to be forgotten."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, RemoveStep) or len(last.uids) >= GROUPS_MAX:
            last = RemoveStep()
            self._waiting.append(last)
        last.uids.append(uid)

    def add_save(self, driver: Driver, snapshot: Snapshot, live: list[tuple[int, int]]) -> None:
        """Add a snapshot of the own machine."""
        self._waiting.append(SaveStep(driver, snapshot, live, self._put_off_save))

    def _put_off_save(self, step: SaveStep) -> None:
        if not self._put_off:
            self._loop.call_later(self._room_s, self._save_again)
        self._put_off.append(step)

    def _save_again(self) -> None:
        if self._has_failed:
            return
        put_off, self._put_off = self._put_off, []
        logger.warning(
            "the disk had no room for snapshots (%d wait): they are tried again every %g s, and "
            "the log grows meanwhile; the first is %s",
            len(put_off),
            self._room_s,
            put_off[0].no_room,
        )
        for step in put_off[:TRIED_MAX]:
            if not step.driver.is_closed:
                step.no_room = None
                self._waiting.append(step)
        for step in put_off[TRIED_MAX:]:
            self._put_off_save(step)
        self.hand_over()

    def add(self, step: Step) -> None:
        """Add any other work, behind what waits."""
        self._waiting.append(step)

    def hand_over(self) -> None:
        """Give everything that waits to the thread, if it is idle."""
        if self._waiting and not self._is_busy and not self._has_failed:
            self._is_busy = True
            steps, self._waiting = self._waiting, []
            self._handed.put(steps)

    def in_flight_s(self) -> float:
        """Return for how long the disk has not answered the call that it is at; 0: none."""
        return self._wal.disk.in_flight_s()

    async def close(self) -> None:
        """Let the thread end once it has written what waits; other work is dropped, as in a
        crash.
        """
        if not self._has_failed:
            # Whatever is to be done in between would have to come before what follows it.
            steps = list(takewhile(lambda step: isinstance(step, WriteStep), self._waiting))
            if steps:
                self._handed.put(steps)
        self._has_failed = True
        self._handed.put(None)
        self._wal.stop_waiting()
        await self._loop.run_in_executor(None, self._worker.join)

    def _work(self) -> None:
        wal, call = self._wal, self._loop.call_soon_threadsafe
        while (steps := self._handed.get()) is not None:
            last = steps[-1]
            for step in steps:
                try:
                    step.run(wal)
                except Exception as error:
                    call(self._fail, error)
                    return
                call(self._finish, step, step is last)

    def _finish(self, step: Step, is_last: bool) -> None:
        if self._has_failed:
            return
        drivers = step.finish(self._wal)
        if is_last:
            self._is_busy = False
        self._finished(drivers)

    def _fail(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._failed(error)


#: Makes one of a log, of who hears of drivers that got inputs, and of who hears that the disk has
#: failed; the simulator has one without a thread.
NewQueue: TypeAlias = Callable[
    [WriteAheadLog, Callable[[list[Driver]], None], Callable[[BaseException], None]], WriteQueue
]
