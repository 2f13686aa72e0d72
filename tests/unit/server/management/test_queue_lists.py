"""A list of queues that takes a while: what is deleted meanwhile is no queue that is down."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.raft.messages import NodeId
from brokerd.server.management import queues
from tests.unit.core.catalog_driver import VHOST, CatalogDriver


@dataclass
class Groups:
    def alive(self) -> set[NodeId]:
        return {NodeId("n1")}


@dataclass
class Listed:
    groups: Groups = field(default_factory=Groups)


@dataclass
class Catalog:
    view: Any


@dataclass
class Services:
    catalog: Catalog
    listed: Listed = field(default_factory=Listed)
    node: str = "n1"


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
