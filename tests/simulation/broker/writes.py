"""The writer thread without a thread: its steps run when the kernel's clock says so.

The queue, the batches and the order are those of cluster/groups/write_queue.py; only who runs the
steps is different.  A crash in the middle of a step leaves written what was not synced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from brokerd.cluster.groups import write_queue
from brokerd.cluster.groups.driver import Driver
from brokerd.storage.errors import StorageError
from brokerd.storage.wal import WriteAheadLog
from tests.simulation.broker.disk import SimDisk
from tests.simulation.broker.kernel import MemberLoop


class SimWriteQueue(write_queue.WriteQueue):
    """See the module.  `sync_ms` says how long the next step takes."""

    def __init__(
        self,
        wal: WriteAheadLog,
        finished: Callable[[list[Driver]], None],
        failed: Callable[[BaseException], None],
        *,
        loop: MemberLoop,
        sync_ms: Callable[[], float],
    ) -> None:
        self._wal = wal
        self._finished = finished
        self._failed = failed
        self._loop: Any = loop
        self._waiting: list[write_queue.Step] = []
        self._put_off: list[write_queue.SaveStep] = []
        self._room_s = write_queue.ROOM_S
        self._is_busy = False
        self._has_failed = False
        self._sync_ms = sync_ms
        #: Steps that the "thread" has and has not done, and when it began the first of them.
        self._steps: list[write_queue.Step] = []
        self._began_s = 0.0
        #: The disk does not answer (see stall), and a step that is done waits for that.
        self._is_stalled = self._is_held = False

    def hand_over(self) -> None:
        """Give everything that waits to the "thread", if it is idle."""
        if self._waiting and not self._is_busy and not self._has_failed:
            self._is_busy = True
            self._steps, self._waiting = self._waiting, []
            self._next_later()

    def in_flight_s(self) -> float:
        """See WriteQueue."""
        return float(self._loop.time()) - self._began_s if self._steps else 0.0

    def stall(self, is_stalled: bool) -> None:
        """The step that the "thread" is at does not end from now on, or may end again."""
        self._is_stalled = is_stalled
        if not is_stalled and self._is_held:
            self._is_held = False
            self._run_next()

    async def close(self) -> None:
        """What waits is dropped, as in a crash."""
        self._has_failed = True

    def _next_later(self) -> None:
        self._began_s = self._loop.time()
        self._loop.call_later(self._sync_ms() / 1000, self._run_next)

    def _run_next(self) -> None:
        if self._has_failed:
            return
        if self._is_stalled:
            self._is_held = True
            return
        step = self._steps.pop(0)
        try:
            step.run(self._wal)
        except Exception as error:
            self._fail(error)
            return
        is_last = not self._steps
        if not is_last:
            self._next_later()
        self._finish(step, is_last)

    def crash(self, disk: SimDisk, rng: random.Random) -> None:
        """The process dies, perhaps within a step: written, in part, and not synced."""
        self._has_failed = True
        if not self._steps or rng.random() < 0.3:
            return
        if rng.random() < 0.8:
            disk.faults.sync_fails_at = rng.randrange(1, 4)
        else:
            disk.faults.write_fails_at = rng.randrange(1, 4)
        try:
            self._steps[0].run(self._wal)
        except StorageError:
            return
