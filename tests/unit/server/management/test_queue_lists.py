"""A list of queues that takes a while: what is deleted meanwhile is no queue that is down."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.cluster.groups.group_clock import Moved
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.profiles import Profile, profile
from brokerd.raft.messages import NodeId
from brokerd.server.management import queue_figures, queues, row_cache
from brokerd.server.management.row_cache import RowCache
from tests.unit.core.catalog_driver import VHOST, CatalogDriver


@dataclass
class Groups:
    up: set[NodeId] = field(default_factory=lambda: {NodeId("n1")})
    are_here: bool = True

    def alive(self) -> set[NodeId]:
        return self.up

    def has_group(self, _: int) -> bool:
        return self.are_here


@dataclass
class Table:
    """What rows are made of; notes in `story` that it was asked what had moved."""

    story: list[str] = field(default_factory=list)

    def take(self) -> None:
        self.story.append("asked")


@dataclass
class Queues:
    table: Table = field(default_factory=Table)


@dataclass
class Listed:
    groups: Groups = field(default_factory=Groups)
    queues: Queues = field(default_factory=Queues)


@dataclass
class Catalog:
    view: Any


@dataclass
class Services:
    catalog: Catalog
    listed: Listed = field(default_factory=Listed)
    node: str = "n1"
    profile: Profile = field(default_factory=profile)


@dataclass
class Call:
    services: Services
    query: dict[str, str]

    def is_on(self, name: str) -> bool:
        return self.query.get(name) == "true"


async def test_a_queue_that_is_deleted_while_a_list_is_made_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queues, "ROWS", 1)
    catalog = CatalogDriver()
    for name in ("a", "b", "c", "d"):
        catalog.queue(name, durable=True)
    known = list(catalog.view.vhosts[VHOST].queues.values())
    call = cast(Any, Call(Services(Catalog(catalog.view)), {"disable_stats": "true"}))
    found: list[str] = []
    parts: list[bytes] = []
    async for rows in queues._rows(call, known):
        found += [row["name"] for row in rows]
        parts.append(queues.encoding.items(rows))
        if found == ["a"]:
            catalog.delete("queue", "b")
            # Another one of the same name has not been asked for either.
            catalog.delete("queue", "c")
            catalog.queue("c", durable=True)
    assert found == ["a", "d"]
    assert len(json.loads(b"".join(queues.encoding.bracketed(parts)))) == 2


async def test_a_list_is_sorted_by_what_records_say() -> None:
    catalog = CatalogDriver()
    for name in ("b", "a", "c"):
        catalog.queue(name, durable=name != "c")
    known = list(catalog.view.vhosts[VHOST].queues.values())

    async def ordered(**query: str) -> str:
        call = cast(Any, Call(Services(Catalog(catalog.view)), query))
        return "".join(queue.name for queue in await queues._ordered(call, known, is_page=False))

    assert await ordered(sort="name") == "abc"
    assert await ordered(sort="name", sort_reverse="true") == "cba"
    assert await ordered(sort="durable") == "cba"
    assert await ordered(sort="vhost") == "bac"


@dataclass
class Rates:
    """Queues whose rates are not 0."""

    moving: set[int] = field(default_factory=set)


@dataclass
class Polled:
    """A member whose list of queues is asked for again and again."""

    catalog: CatalogDriver = field(default_factory=CatalogDriver)
    moved: Moved = field(default_factory=lambda: Moved(()))
    groups: Groups = field(default_factory=Groups)
    rates: Rates = field(default_factory=Rates)
    table: Table = field(default_factory=Table)
    ready: dict[str, int] = field(default_factory=dict)
    gained: dict[str, float] = field(default_factory=dict)
    #: Rows that were made for the last list.
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("a", "b", "c"):
            self.catalog.queue(name, durable=True)
        self.resting = RowCache(self.moved)

    @property
    def view(self) -> Any:
        return self.catalog.view

    def figures(self, queue: Queue) -> dict[str, Any] | None:
        self.made.append(queue.name)
        ready = self.ready.get(queue.name, 0)
        rates = (self.gained.get(queue.name, 0.0), *queue_figures.STILL[1:])
        return {
            "leader": "n1", "sample": (ready, ready, *(0,) * 6), "rates": rates,
            "ready_bytes": 0, "unacked_bytes": 0, "dlx": 0, "consumers": 0, "memory": 1,
            "head_ms": None, "used_ms": None, "limit": None, "single": None,
        }  # fmt: skip

    async def list(self, **query: str) -> dict[str, dict[str, Any]]:
        """Return the rows by the queue's name; `made` says which were made for it."""
        self.made.clear()
        known = list(self.view.vhosts[VHOST].queues.values())
        listed = Listed(self.groups, Queues(self.table))
        call = Call(cast(Any, Asked(self, listed, self.rates, self.resting)), query)
        rows = json.loads(b"".join(await queues._encoded(cast(Any, call), known)))
        return {row["name"]: row for row in rows}

    def uid(self, name: str) -> int:
        return int(self.view.vhosts[VHOST].queues[name].uid)


@dataclass
class Asked:
    """What the list is made of."""

    catalog: Any
    listed: Listed
    rates: Rates
    resting: RowCache
    node: str = "n1"
    profile: Profile = field(default_factory=profile)


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Polled:
    polled = Polled()

    async def known(_: Any, missing: Any, take: Any) -> Any:
        await asyncio.sleep(0)
        assert take is queue_figures.figures or take is queue_figures.orders
        return polled.figures

    monkeypatch.setattr(queue_figures, "known", known)
    return polled


async def test_rows_of_queues_that_stand_still_are_made_once(polled: Polled) -> None:
    first = await polled.list()
    assert sorted(polled.made) == sorted(first) == ["a", "b", "c"]
    assert await polled.list() == first
    assert polled.made == []
    polled.ready["b"] = 7
    polled.moved.note(polled.uid("b"))
    assert (await polled.list())["b"]["messages_ready"] == 7
    assert polled.made == ["b"]


async def test_what_rows_are_made_of_is_as_of_the_turn_in_which_a_list_begins(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move is told once: a row that another list makes from older figures would stay."""
    story, begin = polled.table.story, polled.resting.begin

    def noted(shape: Any, of: row_cache.As, moving: set[int]) -> None:
        begin(shape, of, moving)
        asyncio.get_running_loop().call_soon(story.append, "next turn")

    monkeypatch.setattr(polled.resting, "begin", noted)
    await polled.list()
    assert story == ["asked", "next turn"]


async def test_a_row_is_made_anew_while_its_rates_move_and_once_more(polled: Polled) -> None:
    await polled.list()
    # The sample comes after the group has come to rest.
    polled.rates.moving = {polled.uid("c")}
    polled.gained["c"] = 2.5
    for _ in range(2):
        assert (await polled.list())["c"]["messages_details"] == {"rate": 2.5}
        assert polled.made == ["c"]
    polled.rates.moving, polled.gained = set(), {}
    for made in (["c"], []):
        assert (await polled.list())["c"]["messages_details"] == {"rate": 0.0}
        assert polled.made == made


async def test_no_row_outlives_a_change_of_the_catalog_or_of_the_members(polled: Polled) -> None:
    await polled.list()
    polled.catalog.delete("queue", "a")
    assert sorted(await polled.list()) == ["b", "c"] == sorted(polled.made)
    polled.groups.up.add(NodeId("n2"))
    await polled.list()
    assert sorted(polled.made) == ["b", "c"]


async def test_rows_are_kept_up_to_a_bound_and_for_a_while(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "BYTES_MAX", 1_500 + row_cache.ROW_BYTES)
    monkeypatch.setattr(row_cache, "IDLE_S", 0.05)
    await polled.list()
    await polled.list()
    assert polled.made == ["b", "c"]
    await asyncio.sleep(0.2)
    await polled.list()
    assert polled.made == ["a", "b", "c"]


FIVE = {"columns": "name,messages,consumers"}
TOTALS = {"disable_stats": "true", "enable_queue_totals": "true"}


async def test_each_shape_has_rows_of_its_own(polled: Polled) -> None:
    whole = await polled.list()
    five = await polled.list(**FIVE)
    assert sorted(polled.made) == ["a", "b", "c"]
    assert five["a"] == {"name": "a", "messages": 0, "consumers": 0}
    totals = await polled.list(**TOTALS)
    assert totals["a"]["messages_ready"] == 0
    assert "message_stats" not in totals["a"]
    for query, rows in (({}, whole), (FIVE, five), (TOTALS, totals)):
        assert await polled.list(**query) == rows
        assert polled.made == []
    # What has moved has moved in all of them, told once.
    polled.ready["b"] = 7
    polled.moved.note(polled.uid("b"))
    for query in (FIVE, TOTALS, {}):
        assert (await polled.list(**query))["b"]["messages"] == 7
        assert polled.made == ["b"]


async def test_what_the_catalog_alone_says_is_kept_whatever_moves(polled: Polled) -> None:
    for query in ({"columns": "name,durable"}, {"disable_stats": "true"}):
        polled.groups.are_here = False
        first = await polled.list(**query)
        assert first["a"]["durable"]
        assert await polled.list(**query) == first
        assert polled.made == []
        polled.catalog.delete("queue", min(first))
        assert sorted(await polled.list(**query)) == sorted(first)[1:]
        polled.catalog.queue(min(first), durable=True)


async def test_shapes_are_bounded_and_the_oldest_goes(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "SHAPES_MAX", 2)
    queries: list[dict[str, str]] = [{}, FIVE, TOTALS]
    for query in queries:
        await polled.list(**query)
    sizes = [
        len(row) + row_cache.ROW_BYTES
        for rows in polled.resting._rows.values()
        for row in rows.values()
    ]
    assert polled.resting._size_bytes == sum(sizes)
    await polled.list(**TOTALS)
    assert polled.made == []
    await polled.list()
    assert sorted(polled.made) == ["a", "b", "c"]


async def test_a_queue_that_is_deleted_while_its_list_is_made_is_left_out(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    await polled.list()
    polled.moved.note(polled.uid("c"))

    async def known(*_: Any) -> Any:
        for name in ("b", "c"):
            polled.catalog.delete("queue", name)
        return polled.figures

    monkeypatch.setattr(queue_figures, "known", known)
    assert list(await polled.list()) == ["a"]
    assert polled.made == []


async def test_rows_of_queues_that_are_elsewhere_are_not_kept(polled: Polled) -> None:
    polled.groups.are_here = False
    for _ in range(2):
        await polled.list()
        assert polled.made == ["a", "b", "c"]
