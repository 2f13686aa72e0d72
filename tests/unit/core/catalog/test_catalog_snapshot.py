"""The catalog's snapshot: its text is what JSON of its objects is, and followers are told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core.catalog import catalog_snapshot
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import Owner, Queue
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

Json = dict[str, Any]
QUEUE = {"type": "quorum", "durable": True}


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("k", {}),
        ("", {}),
        ('a"b\\c\n\x00', {}),
        ("größe 兔 \N{SNAKE}", {}),
        # A byte that is no UTF-8 (keys are bytes).
        ("\udc80", {}),
        ("x" * 255, {"x-match": "all", "a": [1, 2.5, None, {"ü": True}]}),
    ],
)
def test_a_binding_is_written_as_any_other_object(key: str, arguments: Json) -> None:
    catalog = CatalogDriver()
    catalog.put("exchange", "e|x", {"type": "headers"})
    catalog.put("queue", "q", QUEUE, uid=9, members=["n1"])
    spec = {"source": "e|x", "destination": "q", "routing_key": key, "arguments": arguments}
    assert catalog.put("binding", "", spec)["code"] == "OK"
    text = catalog.machine.snapshot()
    (binding,) = [item for item in json.loads(text)["objects"] if item["kind"] == "binding"]
    (record,) = catalog.view.records("binding")
    assert binding == catalog_snapshot._stored(record)
    # Byte by byte: keys in the same order, nothing between them.
    assert json.dumps(binding, separators=(",", ":")).encode() in text
    assert json.dumps(json.loads(text), separators=(",", ":")).encode() == text
    other = CatalogMachine()
    other.restore(text)
    other.check_invariants()
    assert other.snapshot() == text


def test_the_owner_of_a_binding_is_in_it() -> None:
    catalog = CatalogDriver()
    catalog.put("exchange", "e", {"type": "fanout"})
    catalog.put("exchange", "f", {"type": "fanout"})
    spec = {"source": "e", "destination": "f", "destination_kind": "exchange"}
    catalog.put("binding", "", spec, owner=Owner("op", "Binding/ns/b", "u1", "Delete", True))
    other = CatalogMachine()
    other.restore(catalog.machine.snapshot())
    (record,) = other.state.records("binding")
    assert record.owner == Owner("op", "Binding/ns/b", "u1", "Delete", True)
    assert other.snapshot() == catalog.machine.snapshot()


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def test_whoever_follows_the_catalog_is_told_of_a_snapshot(catalog: CatalogDriver) -> None:
    """What changed before it has no effects: the member was too far behind."""
    catalog.queue("q")
    seen: list[Queue | None] = []

    def look() -> None:
        seen.append(behind.state.queue(VHOST, "q"))

    behind = CatalogMachine(on_restored=look, on_restoring=look)
    behind.restore(catalog.machine.snapshot())
    assert [queue is not None for queue in seen] == [False, True]
