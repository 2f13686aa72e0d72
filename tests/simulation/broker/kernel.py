"""Virtual time: one event queue for all members, and an asyncio loop for each life of each member.

The cluster and server rooms run on these loops unchanged: tasks, timers and `asyncio.timeout` are
events of the one queue.  When a member crashes, its loop is dead: nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Protocol, cast

#: More events than this in one run is a message storm.
EVENTS_MAX = 2_000_000


class _Unfinished(Protocol):
    """A task that may go before it has ended: asyncio complains of one unless this is False."""

    _log_destroy_pending: bool


class Kernel:
    """The clock in microseconds and everything that is to happen, in order."""

    def __init__(self) -> None:
        self.now_us = 0
        self.event_count = 0
        #: What a callback of a loop raised; it ends the run.
        self.failure: BaseException | None = None
        self._soon: deque[tuple[MemberLoop | None, asyncio.Handle]] = deque()
        self._later: list[tuple[int, int, MemberLoop | None, asyncio.Handle]] = []
        self._sequence = 0
        #: For what belongs to no member: the network, clients, whatever goes wrong.
        self.outside = MemberLoop(self)

    @property
    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return self.now_us // 1000

    def after(self, delay_ms: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function later, outside of any member."""
        self.outside.call_later(delay_ms / 1000, function, *arguments)

    def add_soon(self, loop: MemberLoop, handle: asyncio.Handle) -> None:
        """Run it after what is to run now."""
        self._soon.append((loop, handle))

    def add(self, when_us: int, loop: MemberLoop, handle: asyncio.Handle) -> None:
        """Run it at a time."""
        self._sequence += 1
        heapq.heappush(self._later, (max(when_us, self.now_us), self._sequence, loop, handle))

    def run_until(self, end_ms: int) -> None:
        """Run all events up to a time; raise what one of them raised."""
        soon, later = self._soon, self._later
        end_us = end_ms * 1000
        while True:
            if soon:
                loop, handle = soon.popleft()
            elif later and later[0][0] <= end_us:
                self.now_us, _, loop, handle = heapq.heappop(later)
            else:
                break
            assert loop is not None
            if not loop.is_dead and not handle.cancelled():
                loop.run_handle(handle)
                self.event_count += 1
            if self.failure is not None:
                raise self.failure
            if self.event_count > EVENTS_MAX:
                raise AssertionError("message storm: too many events")
        self.now_us = end_us


class MemberLoop:
    """What asyncio's tasks, futures, events and time-outs need of a loop, and no more of it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.is_dead = False
        #: This object where asyncio's types ask for a whole loop.
        self._self: Any = self
        self._tasks: list[asyncio.Task[Any]] = []

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the running loop for a with-block."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def run_handle(self, handle: asyncio.Handle) -> None:
        """Run one callback; what it raises comes back by call_exception_handler."""
        asyncio._set_running_loop(self._self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def kill(self) -> None:
        """The process ends: no callback runs any more, no coroutine goes on."""
        self.is_dead = True
        tasks, self._tasks = self._tasks, []
        # What they clean up finds a loop, though nothing comes of it any more.
        with self.entered():
            for task in tasks:
                coroutine = task.get_coro()
                if not task.done() and coroutine is not None:
                    coroutine.close()

    # ---- as asyncio.AbstractEventLoop -----------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._kernel.now_us / 1e6

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        handle = asyncio.Handle(callback, args, self._self, context)
        if not self.is_dead:
            self._kernel.add_soon(self, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)
        if not self.is_dead:
            self._kernel.add(round(when * 1e6), self, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the queue and is passed over."""

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self._self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        """See asyncio."""
        task = asyncio.Task(coro, loop=self._self, name=name)
        # A crash leaves them pending; that is what a crash does.
        cast(_Unfinished, task)._log_destroy_pending = False
        if self.is_dead:
            coro.close()
        else:
            self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def is_running(self) -> bool:
        """See asyncio."""
        return True

    def is_closed(self) -> bool:
        """See asyncio."""
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody caught ends the run."""
        failure = context.get("exception")
        if failure is None:
            failure = AssertionError(str(context.get("message")))
        if self._kernel.failure is None and not self.is_dead:
            self._kernel.failure = failure
