"""Where dead letters of queues go and how many lie there, in one look at all queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.server.listings import dead_letter_rows
from tests.unit.core.catalog_driver import CatalogDriver

Json = dict[str, Any]


@dataclass
class Member:
    """A member with the figures of its replicas: messages in a queue, and letters it holds."""

    catalog: CatalogDriver
    here: dict[str, tuple[int, int]] = field(default_factory=dict)
    others: dict[str, tuple[int, int]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    node: str = "n1"

    @property
    def groups(self) -> Member:
        return self

    @property
    def queues(self) -> Member:
        return self

    @property
    def table(self) -> Member:
        return self

    @property
    def view(self) -> Any:
        return self.catalog.view

    def alive(self) -> set[str]:
        return {"n1", "n2"}

    def _figures(self, known: dict[str, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        found = {}
        for name, figures in known.items():
            queue = self.view.queue("/", name)
            assert queue is not None
            found[queue.uid] = figures
        return found

    async def values_of(self, uids: Sequence[int], name: str) -> list[int | None]:
        at = ("messages", "dl_pending").index(name)
        figures = self._figures(self.here)
        return [figures[uid][at] if uid in figures else None for uid in uids]

    async def ask_all(self, nodes: Iterable[str], name: str, fields: Json) -> dict[str, Json]:
        assert list(nodes) == ["n2"]
        self.asked += fields["uids"]
        figures = self._figures(self.others)
        return {"n2": {"figures": {str(u): figures[u] for u in fields["uids"] if u in figures}}}

    async def rows(self) -> dict[str, Json]:
        @dataclass
        class Services:
            catalog: Any
            groups: Any
            queues: Any
            node: str

        services = cast(Any, Services(self, self, self, self.node))
        found = await dead_letter_rows.rows(services, cast(Any, self), "")
        return {row["name"]: row for row in found}


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    for name in ("dead", "dead-eu", "other"):
        driver.queue(name)
    driver.exchange("dlx")
    driver.bind("dlx", "dead", "k")
    driver.bind("dlx", "dead-eu", "eu")
    return driver


def _source(catalog: CatalogDriver, name: str, exchange: str, key: str | None = None) -> None:
    arguments: Json = {"x-dead-letter-exchange": exchange}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    catalog.queue(name, arguments=arguments)


async def test_key_of_the_queue_decides_which_queues_are_meant(catalog: CatalogDriver) -> None:
    _source(catalog, "work", "dlx", "k")
    _source(catalog, "direct", "", "dead-eu")
    _source(catalog, "nowhere", "gone", "k")
    member = Member(catalog, {"work": (9, 2), "dead": (5, 0), "dead-eu": (1, 0)})
    rows = await member.rows()
    assert rows["work"] == {
        "vhost": "/", "name": "work", "exchange": "dlx", "routing_key": "k",
        "queues": [{"name": "dead", "messages": 5}], "queues_more": 0, "held": 2, "waiting": 7,
    }  # fmt: skip
    assert rows["direct"]["queues"] == [{"name": "dead-eu", "messages": 1}]
    assert (rows["nowhere"]["queues"], rows["nowhere"]["waiting"]) == ([], 0)
    assert "dead" not in rows, "a queue that does not dead-letter has no row"


async def test_without_a_key_all_queues_of_the_exchange_are_meant(catalog: CatalogDriver) -> None:
    """Over exchanges in between, circles of them too; the default exchange leads to any queue."""
    catalog.exchange("more", "headers")
    catalog.bind("dlx", "more", "x", kind="exchange")
    catalog.bind("more", "dlx", kind="exchange")
    catalog.bind("more", "other")
    _source(catalog, "work", "dlx")
    _source(catalog, "headers", "more", "k")
    _source(catalog, "any", "")
    member = Member(catalog, {"dead": (1, 0), "dead-eu": (5, 0), "other": (2, 0)})
    rows = await member.rows()
    named = [queue["name"] for queue in rows["work"]["queues"]]
    assert named == ["dead-eu", "other", "dead"], "those with most messages first"
    assert rows["work"]["waiting"] == 8
    assert rows["work"]["routing_key"] is None
    assert [queue["name"] for queue in rows["headers"]["queues"]] == named
    assert rows["any"]["queues"] == []


async def test_policy_says_it_too_and_many_queues_are_counted_and_not_all_named(
    catalog: CatalogDriver,
) -> None:
    catalog.exchange("all", "fanout")
    figures = {}
    for number in range(dead_letter_rows.NAMED_MAX + 3):
        catalog.queue(f"t{number}")
        catalog.bind("all", f"t{number}")
        figures[f"t{number}"] = (1, 0)
    catalog.queue("work")
    spec = {
        "pattern": "^work$", "apply-to": "queues", "definition": {"dead-letter-exchange": "all"},
    }  # fmt: skip
    assert catalog.put("policy", "dead", spec)["code"] == "OK"
    row = (await Member(catalog, figures).rows())["work"]
    assert len(row["queues"]) == dead_letter_rows.NAMED_MAX
    assert (row["queues_more"], row["waiting"]) == (3, dead_letter_rows.NAMED_MAX + 3)


async def test_other_members_are_asked_once_for_what_has_no_replica_here(
    catalog: CatalogDriver,
) -> None:
    for number in range(20):
        _source(catalog, f"work{number}", "dlx", ("k", "eu")[number % 2])
    here = {f"work{number}": (0, 0) for number in range(20)}
    member = Member(catalog, here, others={"dead": (4, 1)})
    rows = await member.rows()
    assert len(member.asked) == 2, "two targets, whatever the number of sources"
    assert rows["work0"]["waiting"] == 4
    assert rows["work1"]["queues"] == [{"name": "dead-eu", "messages": None}], "nobody has answered"


async def test_queues_of_delayed_exchanges_have_no_row(catalog: CatalogDriver) -> None:
    catalog.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    catalog.bind("later", "dead", "k")
    _source(catalog, "work", "later", "k")
    rows = await Member(catalog, {"dead": (3, 0)}).rows()
    assert set(rows) == {"work"}
    assert rows["work"]["waiting"] == 3
