"""A watcher that does not keep up is told to list again; nothing is left out silently."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import User
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.grpc import admin_service
from brokerd.server.grpc.admin_service import AdminService
from tests.unit.server.access.fakes import Users
from tests.unit.server.grpc.fakes import admin_services

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


class View(Users):
    """A catalog whose objects are all gone, its one user aside."""

    def __init__(self) -> None:
        super().__init__(User("user", "", "u", {"password_hash": "h", "tags": ["administrator"]}))
        self.revision = 5

    def get(self, *_: Any) -> None:
        return None


class Catalog:
    """A catalog that changes as the test says, and remembers nothing of it."""

    def __init__(self) -> None:
        self.watchers = Watchers()
        #: It knows the last changes, too.
        self.machine = self
        self.view = View()

    def changes_since(self, _: int) -> list[TopologyChanged]:
        return []

    def change(self, revision: int) -> None:
        """Tell the watchers as catalog_events.py does: a full one misses it."""
        self.view.revision = revision
        for watcher in self.watchers:
            if not watcher.full():
                watcher.put_nowait(
                    TopologyChanged("queue", "/", f"q{revision}", True, revision, "admin")
                )


def watch(catalog: Catalog, since: int) -> Any:
    request = admin_pb2.WatchTopologyRequest(since_revision=since)
    service = AdminService(admin_services(catalog))
    return service.WatchTopology(request, Context())  # type: ignore[arg-type]


async def test_changes_come_in_order_and_each_once() -> None:
    catalog = Catalog()
    events = watch(catalog, 5)
    first = asyncio.ensure_future(anext(events))
    await catalog.watchers.came.wait()
    catalog.change(6)
    catalog.change(7)
    assert (await first).revision == 6
    assert (await anext(events)).object.name == "q7"
    await events.aclose()
    assert not catalog.watchers


async def test_a_watcher_that_fell_behind_is_told_so_after_any_missed_change() -> None:
    catalog = Catalog()
    events = watch(catalog, 5)
    first = asyncio.ensure_future(anext(events))
    await catalog.watchers.came.wait()
    # A burst without a pause: more than there is room for.
    for revision in range(6, 6 + admin_service.WATCH_BACKLOG + 10):
        catalog.change(revision)
    assert (await first).revision == 6
    second = await anext(events)
    assert second.change == Event.COMPACTED
    assert second.revision == catalog.view.revision
    assert [event async for event in events] == []
    assert not catalog.watchers


async def test_a_quiet_watch_says_that_it_lives(monkeypatch: Any) -> None:
    monkeypatch.setattr(admin_service, "BOOKMARK_S", 0.001)
    catalog = Catalog()
    events = watch(catalog, 5)
    event = await anext(events)
    assert (event.change, event.revision) == (Event.BOOKMARK, 5)
    await events.aclose()
