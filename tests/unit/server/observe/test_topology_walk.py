"""When the declared is looked at: by the catalog's leader, each hour, after changes, with rests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from brokerd.server.observe import topology_walk
from brokerd.server.observe.topology_walk import TopologyWalk
from brokerd.telemetry.topology_rows import HOUR_US, Look
from tests.unit.core.catalog.test_policy import put
from tests.unit.core.catalog_driver import CatalogDriver


@dataclass
class Groups:
    is_leader: bool = True
    is_here: bool = True

    def has_group(self, uid: int) -> bool:
        return self.is_here

    def status_of(self, uid: int) -> Any:
        return self


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    put(driver, "p", {"max-length": 1})
    driver.queue("q")
    return driver


def policies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["policy"] for row in rows if row["k"] == "policy"]


async def test_only_the_leader_of_the_catalog_tells(catalog: CatalogDriver) -> None:
    groups: Any = Groups(is_leader=False)
    walk = TopologyWalk(catalog.view, groups)
    assert await walk.rows(0, 5) == []
    groups.is_leader, groups.is_here = True, False
    assert await walk.rows(5, 10) == []
    groups.is_here = True
    assert policies(await walk.rows(10, 15)) == ["p"]
    # Who leads again tells all of it again: others may have told since.
    groups.is_leader = False
    assert await walk.rows(15, 20) == []
    groups.is_leader = True
    assert policies(await walk.rows(20, 25)) == ["p"]


async def test_it_is_told_each_hour_and_after_a_change(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: Any = Groups()
    walk = TopologyWalk(catalog.view, groups)
    assert policies(await walk.rows(0, 5)) == ["p"]
    looks: list[Look] = []
    whole = Look.rows
    monkeypatch.setattr(Look, "rows", lambda look: looks.append(look) or whole(look))
    later_us = HOUR_US // 2
    assert await walk.rows(5, later_us) == []
    assert looks == [], "nothing had changed"
    put(catalog, "late", {"max-length": 1}, pattern="^nothing$")
    assert policies(await walk.rows(later_us, later_us + 5)) == ["late"]
    assert policies(await walk.rows(HOUR_US, HOUR_US + 5)) == ["p", "late"]


async def test_a_look_that_took_long_is_followed_by_a_rest(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: Any = Groups()
    walk = TopologyWalk(catalog.view, groups)
    clock = iter(range(10_000))
    # Each object takes a tenth of a second: eight take 0.8, and the rest is a hundred times that.
    monkeypatch.setattr(topology_walk.time, "thread_time", lambda: next(clock) / 10)
    assert await walk.rows(0, 5)
    put(catalog, "late", {"max-length": 1}, pattern="^nothing$")
    assert await walk.rows(5, 70_000_000) == []
    assert policies(await walk.rows(70_000_000, 90_000_000)) == ["late"]


async def test_a_look_ends_when_it_has_taken_too_long_and_says_so(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: Any = Groups()
    clock = iter(range(10_000))
    monkeypatch.setattr(topology_walk.time, "thread_time", lambda: 4 * next(clock))
    rows = await TopologyWalk(catalog.view, groups).rows(0, 5)
    assert [row["whole"] for row in rows if row["k"] == "policy"] == [False]
