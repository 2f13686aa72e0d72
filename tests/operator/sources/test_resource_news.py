"""What a watch tells, in a thread of its own, and what of it reaches the engine."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key, key_of
from brokerd_operator.sources.hand_over import HandOver
from brokerd_operator.sources.resource_news import ResourceNews

from tests.operator.resources import resource

KEY = Key("Queue", "default", "q")


class Told(HandOver):
    """A hand-over that also counts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.count = 0

    def give(self, function: Any, *arguments: Any) -> None:
        self.count += 1
        super().give(function, *arguments)


class Bench:
    """An engine, and the news of one watch of it."""

    def __init__(self) -> None:
        # Nothing is reconciled here: neither a store nor a driver is asked.
        self.engine = Engine(None, None)  # type: ignore[arg-type]
        self.events = Told(asyncio.get_running_loop())
        self.listings = 0
        self.news = ResourceNews(self.engine, self.events, self._list_again)

    def _list_again(self) -> None:
        self.listings += 1

    async def tell(self, type_: str | None, body: dict[str, Any]) -> int:
        """From another thread, as kopf does; how many calls came of it."""
        before = self.events.count
        await asyncio.to_thread(self.news.take, "Queue", type_, copy.deepcopy(body))
        await asyncio.sleep(0)
        return self.events.count - before


def queue(version: int, uid: str = "u") -> dict[str, Any]:
    body = resource("Queue", "q", brokerRef={"name": "prod", "kind": "BrokerConnection"})
    body["metadata"] |= {
        "uid": uid,
        "generation": version,
        "resourceVersion": str(version),
        "managedFields": [{"manager": "kubectl"}],
    }
    return body


async def test_what_is_known_already_is_not_handed_over() -> None:
    bench = Bench()
    listed = queue(1)
    bench.engine.put(listed)
    assert await bench.tell(None, queue(1)) == 0, "listed before the watch began"
    assert await bench.tell("MODIFIED", queue(2)) == 1
    answer = queue(3)
    bench.engine.put(answer)
    assert await bench.tell("MODIFIED", queue(3)) == 0, "the echo of a write of our own"
    entry = bench.engine.cache.get(KEY)
    assert entry is not None
    assert entry.body is answer


async def test_news_reach_the_engine_without_what_says_who_wrote_them() -> None:
    bench = Bench()
    told = queue(1)
    await bench.tell("ADDED", told)
    entry = bench.engine.cache.get(KEY)
    assert entry is not None
    assert "managedFields" not in entry.body["metadata"]
    assert key_of(entry.body) == KEY
    assert await bench.tell("DELETED", queue(2)) == 1
    assert bench.engine.cache.get(KEY) is None


async def test_a_body_without_a_version_is_always_handed_over() -> None:
    bench = Bench()
    body = queue(1)
    del body["metadata"]["resourceVersion"]
    assert await bench.tell("ADDED", body) == 1
    assert await bench.tell("ADDED", body) == 1


async def test_resources_that_are_listed_a_second_time_ask_for_a_listing() -> None:
    """After a 410 kopf lists anew and does not tell what went meanwhile."""
    bench = Bench()
    await bench.tell(None, queue(1))
    assert bench.listings == 0
    await bench.tell("MODIFIED", queue(2))
    assert bench.listings == 0
    await bench.tell(None, queue(2))
    assert bench.listings == 1
    await bench.tell("DELETED", queue(3))
    await bench.tell(None, queue(4, uid="another"))
    assert bench.listings == 1, "a new one of its name"
