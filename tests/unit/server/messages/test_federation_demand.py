"""Who hears when a federated queue wants messages (R-FQ-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from brokerd.core.queue import queue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.messages import federation_demand
from brokerd.server.messages.federation_demand import QueueDemand
from tests.unit.core.queue_driver import QueueDriver, consumer

DEADLINE_S = 10.0


class Queues:
    """Queue 1, led here or not."""

    def __init__(self) -> None:
        self.queue = QueueDriver()
        self.is_led = True

    def leads(self, uid: int) -> bool:
        """See federation_demand.Queues."""
        return self.is_led and uid == 1

    def led_queues(self, uids: Sequence[int]) -> Sequence[tuple[object, QueueMachine]]:
        """See federation_demand.Queues."""
        return [(None, self.queue.machine) for uid in uids if self.leads(uid)]


class Heard:
    """What was told."""

    def __init__(self) -> None:
        self.all: list[bool] = []
        self._news = asyncio.Event()

    def __call__(self, is_wanted: bool) -> None:
        self.all.append(is_wanted)
        self._news.set()

    async def next(self) -> bool:
        """Wait for the next change and return it."""
        async with asyncio.timeout(DEADLINE_S):
            await self._news.wait()
        self._news.clear()
        return self.all[-1]


async def test_a_watch_tells_the_state_at_once_and_each_change_once() -> None:
    queues, heard = Queues(), Heard()
    watch = QueueDemand(queues).watch(1, heard)
    assert heard.all == [False]
    assert not await heard.next()
    queues.queue.consume("a", prefetch=1)
    assert await heard.next()
    queues.queue.fill(2)
    # Whoever has just sent something does not wait for the next look.
    watch.check()
    watch.check()
    assert heard.all == [False, True, False]
    watch.close()


async def test_a_queue_that_is_led_elsewhere_wants_nothing_here() -> None:
    queues, heard = Queues(), Heard()
    queues.queue.consume("a")
    watch = QueueDemand(queues).watch(1, heard)
    assert heard.all == [True]
    queues.is_led = False
    watch.check()
    assert heard.all == [True, False]
    watch.close()


async def test_a_listener_that_fails_does_not_end_the_looks_of_others() -> None:
    queues, heard = Queues(), Heard()
    demand = QueueDemand(queues)

    def fails(is_wanted: bool) -> None:
        if is_wanted:
            raise RuntimeError("a defect")

    bad = demand.watch(1, fails)
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    good = demand.watch(1, heard)
    await heard.next()
    queues.queue.consume("a")
    assert await heard.next()
    assert [type(failure) for failure in failures] == [RuntimeError]
    bad.close()
    good.close()


async def test_a_closed_watch_is_told_nothing_and_leaves_no_timer() -> None:
    queues, heard, other = Queues(), Heard(), Heard()
    demand = QueueDemand(queues)
    watch, second = demand.watch(1, heard), demand.watch(1, other)
    watch.close()
    watch.close()
    queues.queue.consume("a")
    watch.check()
    assert not other.all[0]
    await other.next()
    assert await other.next()
    assert heard.all == [False]
    second.close()
    queues.queue.send(queue_commands.encode_cancel(consumer("a")))
    assert demand._timer is None


async def test_after_a_change_the_next_one_is_seen_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-FQ-2: between two changes of a busy queue nobody waits for the calm look."""
    monkeypatch.setattr(federation_demand, "LOOK_S", 100 * DEADLINE_S)
    queues, heard = Queues(), Heard()
    queues.queue.consume("a", prefetch=2)
    watch = QueueDemand(queues).watch(1, heard)
    assert await heard.next()
    queues.queue.fill(3)
    assert not await heard.next()
    watch.close()


async def test_a_change_that_somebody_else_saw_wakes_the_calm_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-FQ-2: the timer that was set when all was calm does not stand in the way."""
    monkeypatch.setattr(federation_demand, "LOOK_S", 100 * DEADLINE_S)
    monkeypatch.setattr(federation_demand, "RESTLESS_S", 0.0)
    queues, heard = Queues(), Heard()
    queues.queue.consume(prefetch=2)
    watch = QueueDemand(queues).watch(1, heard)
    monkeypatch.setattr(federation_demand, "RESTLESS_S", 100 * DEADLINE_S)
    queues.queue.fill(3)
    watch.check()
    assert heard.all == [True, False]
    queues.queue.settle((0, 2))
    queues.queue.settle((2, 3))
    assert await heard.next() is False
    assert await heard.next()
    watch.close()
