"""Lists of queues by name are made once for a state of the catalog."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.server.management import listing, query_cache, queues
from brokerd.server.management.query_cache import LISTS_MAX, QUEUES_MAX, KeptLists
from tests.unit.core.catalog_driver import VHOST, CatalogDriver


@dataclass
class Catalog:
    view: Any


@dataclass
class Services:
    catalog: Catalog
    lists: KeptLists = field(default_factory=KeptLists)


@dataclass
class Call:
    services: Services
    query: dict[str, str]
    vhosts: list[str] = field(default_factory=lambda: [VHOST])

    def visible_vhosts(self) -> list[str]:
        return self.vhosts


class Rig:
    """A member with some queues; counts how often names were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = CatalogDriver()
        for name in ("b1", "a1", "a2"):
            self.catalog.queue(name, durable=True)
        self.services = Services(Catalog(self.catalog.view))
        self.looks = 0
        named = listing.named

        async def counted(*arguments: Any) -> Any:
            self.looks += 1
            return await named(*arguments)

        monkeypatch.setattr(listing, "named", counted)

    async def names(self, vhosts: list[str] | None = None, **query: str) -> list[str]:
        call = cast(Any, Call(self.services, query, [VHOST] if vhosts is None else vhosts))
        revision = self.catalog.view.revision
        records = await queues._records(call, revision)
        return [str(queue.name) for queue in await queues._named(call, records, revision)]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


async def test_the_same_question_is_answered_from_the_same_list(rig: Rig) -> None:
    asked = {"page": "1", "name": "^a", "use_regex": "true"}
    assert await rig.names(**asked) == ["a1", "a2"]
    assert await rig.names(**asked) == ["a1", "a2"]
    assert rig.looks == 1
    assert await rig.names(page="1", name="^A", use_regex="false") == []
    assert await rig.names(page="1", name="1") == ["a1", "b1"]
    assert rig.looks == 3
    assert await rig.names() == ["a1", "a2", "b1"]
    # Only with a page, as there.
    assert await rig.names(name="1") == ["a1", "a2", "b1"]
    assert rig.looks == 3


async def test_a_change_of_the_catalog_makes_it_anew(rig: Rig) -> None:
    asked = {"page": "1", "name": "a"}
    assert await rig.names(**asked) == ["a1", "a2"]
    rig.catalog.queue("a3", durable=True)
    assert await rig.names(**asked) == ["a1", "a2", "a3"]
    rig.catalog.delete("queue", "a1")
    assert await rig.names(**asked) == ["a2", "a3"]
    assert await rig.names() == ["a2", "a3", "b1"]


async def test_somebody_who_may_see_less_has_another_list(rig: Rig) -> None:
    asked = {"page": "1", "name": "a"}
    assert await rig.names(**asked) == ["a1", "a2"]
    assert await rig.names([], **asked) == []
    assert await rig.names(["not there any more"], **asked) == []


async def test_a_list_that_was_old_when_it_was_made_is_not_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog changed while names were looked at."""
    counted = listing.named

    async def slow(*arguments: Any) -> Any:
        found = await counted(*arguments)
        rig.catalog.queue("a0", durable=True)
        return found

    monkeypatch.setattr(listing, "named", slow)
    assert await rig.names(page="1", name="a") == ["a1", "a2"]
    monkeypatch.setattr(listing, "named", counted)
    assert await rig.names(page="1", name="a") == ["a0", "a1", "a2"]


async def test_lists_are_kept_up_to_a_bound_and_for_a_while() -> None:
    lists, one = KeptLists(), cast(Any, [None])
    for number in range(LISTS_MAX + 1):
        lists.keep(number, 1, one)
    assert (lists.get(0, 1), lists.get(1, 1)) == (None, one)
    half: Any = [None] * (QUEUES_MAX // 2)
    for key in ("x", "y"):
        lists.keep(key, 1, half)
    assert (lists.get(1, 1), lists.get("x", 1)) == (None, half)
    lists.keep("z", 1, cast(Any, [None] * (QUEUES_MAX + 1)))
    assert lists.get("z", 1) is None
    lists.keep("new", 2, one)
    assert (lists.get("x", 2), lists.get("new", 2)) == (None, one)
    lists._clear()
    assert lists.get("new", 2) is None
    assert lists._end is not None
    assert lists._end.when() > query_cache.IDLE_S
