"""Rows of what is declared: once an hour, after a change, and when something is gone."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.telemetry import topology_rows
from brokerd.telemetry.topology_rows import HOUR_US, Look, TopologyRows
from tests.unit.core.catalog.test_policy import put
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

Row = dict[str, Any]


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def look(catalog: CatalogDriver, is_whole: bool = True) -> Look:
    found = Look(catalog.view)
    found.is_whole = is_whole
    topology = catalog.view.vhosts[VHOST]
    for record in (*topology.exchanges.values(), *topology.queues.values()):
        found.add(record)
    return found


def told(rows: TopologyRows, found: Look, since_us: int, now_us: int) -> list[Row]:
    rows.look_at(found, since_us)
    return rows.rows(since_us, now_us)


def names(rows: list[Row]) -> list[tuple[str, str, str]]:
    """(kind of row, kind of object, name and what became of it)"""
    ends = [(row.get("policy", row.get("exchange", "")), row.get("state", "")) for row in rows]
    return [(row["k"], row["kind"], "".join(each)) for row, each in zip(rows, ends, strict=True)]


def test_a_look_tells_of_vhosts_policies_and_exchanges_of_clients(catalog: CatalogDriver) -> None:
    catalog.queue("q")
    catalog.exchange("x", arguments={"alternate-exchange": "ae"})
    catalog.exchange("ae")
    catalog.exchange("inner")
    catalog.bind("x", "inner", kind="exchange")
    catalog.bind("x", "q", key="k")
    put(catalog, "p", {"max-length": 1}, pattern="^q$", apply_to="queues", priority=3)
    vhost, policy, x, ae, inner = told(TopologyRows(), look(catalog), HOUR_US, HOUR_US + 5)
    common = {"t0": HOUR_US, "t1": HOUR_US + 5, "vhost": VHOST}
    assert vhost == {
        "k": "topo", "kind": "vhost", **common, "objects": {"classic": 1, "exchange": 3},
        "without_policy": {"classic": 0, "exchange": 3}, "whole": True,
    }  # fmt: skip
    assert policy == {
        "k": "policy", "kind": "policy", **common, "policy": "p", "apply_to": "queues",
        "priority": 3, "matched": {"classic": 1}, "won": {"classic": 1}, "overridden": {},
        "lost_to": "", "whole": True,
    }  # fmt: skip
    assert x == {
        "k": "topo", "kind": "exchange", **common, "exchange": "x", "xtype": "direct",
        "bindings": 2, "has_alternate": True, "is_target": False,
    }  # fmt: skip
    others = [(row["exchange"], row["bindings"], row["is_target"]) for row in (ae, inner)]
    assert others == [("ae", 0, True), ("inner", 0, True)]


def test_what_says_the_same_is_told_once_an_hour(catalog: CatalogDriver) -> None:
    catalog.exchange("x")
    rows = TopologyRows()
    assert not rows.is_told(0)
    assert len(told(rows, look(catalog), 0, 5)) == 2
    assert rows.is_told(HOUR_US - 1)
    assert told(rows, look(catalog), 5, 10) == []
    catalog.queue("q")
    catalog.bind("x", "q")
    assert names(told(rows, look(catalog), 10, 15)) == [
        ("topo", "vhost", ""), ("topo", "exchange", "x"),
    ]  # fmt: skip
    assert len(told(rows, look(catalog), HOUR_US, HOUR_US + 5)) == 2
    rows.forget()
    assert not rows.is_told(HOUR_US)


def test_what_is_gone_says_so_unless_it_was_only_not_seen(catalog: CatalogDriver) -> None:
    put(catalog, "p", {"max-length": 1})
    catalog.exchange("x")
    catalog.exchange("y")
    rows = TopologyRows()
    told(rows, look(catalog), 0, 5)
    catalog.delete("policy", "p")
    catalog.delete("exchange", "x")
    part = told(rows, look(catalog, is_whole=False), 5, 10)
    assert names(part) == [("topo", "vhost", "")]
    assert names(told(rows, look(catalog), 10, 15)) == [
        ("topo", "vhost", ""), ("policy", "policy", "pdeleted"), ("topo", "exchange", "xdeleted"),
    ]  # fmt: skip
    assert told(rows, look(catalog), 15, 20) == []


def test_an_object_that_goes_before_it_is_looked_at_is_not_counted(catalog: CatalogDriver) -> None:
    catalog.queue("q")
    found, queue = Look(catalog.view), catalog.found("q")
    catalog.delete("queue", "q")
    found.add(queue)
    assert found.rows() == {}


def test_rows_of_an_hour_are_bounded_and_policies_go_first(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_rows, "ROWS_HOUR_MAX", 3)
    put(catalog, "p", {"max-length": 1})
    for number in range(5):
        catalog.exchange(f"x{number}")
    rows = TopologyRows()
    assert names(told(rows, look(catalog), 0, 5)) == [
        ("topo", "vhost", ""), ("policy", "policy", "p"), ("topo", "exchange", "x0"),
    ]  # fmt: skip
    catalog.delete("exchange", "x0")
    assert told(rows, look(catalog), 5, 10) == []
    assert len(told(rows, look(catalog), HOUR_US, HOUR_US + 5)) == 3


def test_of_many_objects_some_are_told_in_each_interval(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once they took the room of the queues' rows in the buffer."""
    monkeypatch.setattr(topology_rows, "ROWS_ONCE_MAX", 2)
    for number in range(3):
        catalog.exchange(f"x{number}")
    rows = TopologyRows()
    assert names(told(rows, look(catalog), 0, 5)) == [
        ("topo", "vhost", ""), ("topo", "exchange", "x0"),
    ]  # fmt: skip
    # What goes before it was told of is not told of.
    catalog.delete("exchange", "x1")
    assert names(told(rows, look(catalog), 5, 10)) == [
        ("topo", "vhost", ""), ("topo", "exchange", "x2"),
    ]  # fmt: skip
    catalog.delete("exchange", "x0")
    catalog.exchange("x3")
    catalog.exchange("x4")
    rows.look_at(look(catalog), 10)
    found = [names(rows.rows(at, at + 5)) for at in (10, 15, 20)]
    assert [[name for *_, name in each] for each in found] == [["", "x3"], ["x4", "x0deleted"], []]
    rows.look_at(look(catalog), HOUR_US)
    rows.forget()
    assert rows.rows(HOUR_US, HOUR_US + 5) == []
