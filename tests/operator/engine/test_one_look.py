"""A new resource is looked at once: what its own pass writes is no reason to look again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from brokerd_operator.broker.client import Change, Result
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import BrokerSession
from brokerd_operator.engine.work_queue import WorkQueue
from brokerd_operator.reconcile.actions import Upsert
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs.model import DesiredObject, Identity, Reference

from tests.operator.engine.test_engine import Bench, bench

__all__ = ["bench"]

Q = Identity("queue", "/", "q")
AUTHOR = Key("Queue", "default", "q")


async def test_new_resource_is_looked_at_once(bench: Bench) -> None:
    await bench.until_reason("BrokerConnection", "prod", "Available")
    passes: list[Key] = []
    counted = bench.engine.metrics.passed

    def passed(kind: str, seconds: float) -> None:
        passes.append(Key(kind, "", ""))
        counted(kind, seconds)

    bench.engine.metrics.passed = passed  # type: ignore[method-assign]
    bench.add("Queue", "q", maxLength=5)
    await bench.until_reason("Queue", "q", "Applied")
    await bench.until("nothing is due", lambda: bench.engine.queue.is_idle)
    assert [key.kind for key in passes].count("Queue") == 1


def seen(revision: int, length: int = 5) -> ObservedObject:
    spec = {"settings": {"max-length": length}}
    return ObservedObject("queue", "/", "q", spec, hash=str(length), revision=revision)


@dataclass
class Broker:
    """A session whose broker answers when it is told to; who was told of what."""

    told: list[Key | None] = field(default_factory=list)
    answer: asyncio.Future[list[Result]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def object_changed(self, *args: Any) -> None:
        self.told.append(args[4] if len(args) > 4 else None)

    def session(self) -> BrokerSession:
        async def nobody(_: Reference) -> None:
            return None

        found = BrokerSession(
            Reference("BrokerConnection", "default", "prod"),
            nobody,
            self,  # type: ignore[arg-type]
            random.Random(1),
        )
        found.client = self  # type: ignore[assignment]
        return found

    async def apply(self, actions: Any) -> list[Result]:
        return await self.answer


async def _write(broker: Broker, news: list[Change], result: Result) -> None:
    session = broker.session()
    item = DesiredObject("queue", "/", "q", {"settings": {}})
    writing = asyncio.create_task(session.apply([Upsert(item, None)], AUTHOR))
    await asyncio.sleep(0.01)
    for change in news:
        session._take(change)
    broker.answer.set_result([result])
    await writing
    assert not session._authors
    assert not session._unreported


async def test_author_is_not_woken_by_the_answer_nor_by_the_news_of_it() -> None:
    for news in ([], [Change("PUT", seen(2), 2, "admin")]):
        broker = Broker()
        await _write(broker, news, Result("OK", current=seen(2), revision=2))
        assert broker.told == [AUTHOR]


async def test_author_is_woken_when_somebody_changed_it_at_the_same_time() -> None:
    broker = Broker()
    news = [Change("PUT", seen(2), 2, "admin"), Change("PUT", seen(3, 7), 3, "amqp:x")]
    await _write(broker, news, Result("OK", current=seen(2), revision=2))
    assert broker.told[-1] is None


async def test_author_of_a_refused_write_is_woken_by_what_was_changed_meanwhile() -> None:
    refused = Result("REFUSED", "no", current=seen(3, 7), revision=3)
    broker = Broker()
    await _write(broker, [Change("PUT", seen(3, 7), 3, "amqp:x")], refused)
    assert broker.told[-1] is None
    broker = Broker()
    await _write(broker, [], refused)
    assert broker.told == [None]


async def test_worker_that_looks_anew_takes_what_was_told_before_and_nothing_later() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue(lambda: now, random.Random(1))
    queue.add("q")
    assert await queue.get() == "q"
    queue.add("q")
    queue.catch_up("q")
    queue.done("q")
    assert len(queue) == 0
    queue.add("q")
    assert await queue.get() == "q"
    queue.add("q")
    queue.catch_up("q")
    queue.add("q")
    queue.done("q")
    assert await queue.get() == "q", "told after the look"
    queue.add("q", 5.0)
    queue.catch_up("q")
    assert len(queue) == 1, "what is due later stays"
