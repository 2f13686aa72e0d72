"""A watcher that does not keep up is told to list again; nothing is left out silently."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

from brokerd.core.effects import TopologyChanged
from brokerd.rpc.v1 import admin_pb2
from brokerd.server import admin_service
from brokerd.server.admin_service import AdminService

Event = admin_pb2.TopologyEvent


class Context:
    """What the service asks of a call."""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return a login."""
        return [("authorization", "Basic " + base64.b64encode(b"u:p").decode())]

    def peer(self) -> str:
        """Return where the call comes from."""
        return "ipv4:127.0.0.1:1"


class Watchers(set[Any]):
    """A register that tells when somebody has come."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    def add(self, watcher: Any) -> None:
        """Register."""
        super().add(watcher)
        self.came.set()


class Broker:
    """The parts of a broker that a watch touches; every object it is asked for is gone."""

    def __init__(self) -> None:
        self.watchers = Watchers()
        user = SimpleNamespace(password_hash="h", tags=["administrator"])
        self.view = SimpleNamespace(
            revision=5, cluster_id="c", get=lambda *_: None, user=lambda _: user
        )
        self.variables = SimpleNamespace(loopback_users=[])
        self.checker = self
        self.catalog = SimpleNamespace(changes_since=lambda _: [])

    async def check(self, *_: Any) -> bool:
        """Let everybody in."""
        return True

    def change(self, revision: int) -> None:
        """Tell the watchers as broker.py does: a full one misses it."""
        self.view.revision = revision
        for watcher in self.watchers:
            if not watcher.full():
                watcher.put_nowait(
                    TopologyChanged("queue", "/", f"q{revision}", True, revision, "admin")
                )


def watch(broker: Broker, since: int) -> Any:
    request = admin_pb2.WatchTopologyRequest(since_revision=since)
    return AdminService(broker).WatchTopology(request, Context())  # type: ignore[arg-type]


async def test_changes_come_in_order_and_each_once() -> None:
    broker = Broker()
    events = watch(broker, 5)
    first = asyncio.ensure_future(anext(events))
    await broker.watchers.came.wait()
    broker.change(6)
    broker.change(7)
    assert (await first).revision == 6
    assert (await anext(events)).object.name == "q7"
    await events.aclose()
    assert not broker.watchers


async def test_a_watcher_that_fell_behind_is_told_so_after_any_missed_change() -> None:
    broker = Broker()
    events = watch(broker, 5)
    first = asyncio.ensure_future(anext(events))
    await broker.watchers.came.wait()
    # A burst without a pause: more than there is room for.
    for revision in range(6, 6 + admin_service.WATCH_BACKLOG + 10):
        broker.change(revision)
    assert (await first).revision == 6
    second = await anext(events)
    assert second.change == Event.COMPACTED
    assert second.revision == broker.view.revision
    assert [event async for event in events] == []
    assert not broker.watchers


async def test_a_quiet_watch_says_that_it_lives(monkeypatch: Any) -> None:
    monkeypatch.setattr(admin_service, "BOOKMARK_S", 0.001)
    broker = Broker()
    events = watch(broker, 5)
    event = await anext(events)
    assert (event.change, event.revision) == (Event.BOOKMARK, 5)
    await events.aclose()
