"""Who is told to look at its rights, and how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.config import LimitConfig
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.server.access import revocation
from brokerd.server.access.connections import Connections
from brokerd.server.access.revocation import Revocation
from tests.unit.server.access.test_connections import Guest


def changed(kind: str, name: str) -> TopologyChanged:
    return TopologyChanged(kind=kind, vhost="/", name=name, deleted=True, revision=1, cause="")


@pytest.fixture
def guests() -> list[Any]:
    return [Guest("a"), Guest("a"), Guest("b")]


@pytest.fixture
def told(guests: list[Any]) -> Revocation:
    connections: Connections[Guest] = Connections(LimitConfig())
    connections.opened(guests[0])
    for call in guests[1:]:
        connections.call_opened(call)
    return Revocation(connections.guests)


async def test_all_changes_of_one_turn_are_one_look(told: Revocation, guests: list[Any]) -> None:
    """R-PERM-5: connections and calls alike, and only those of the users that have changed."""
    for kind in ("permission", "user", "permission", "queue", "topic_permission"):
        told.topology_changed(changed(kind, "a" if kind in ("user", "permission") else "b"))
    assert [guest.looked for guest in guests] == [0, 0, 0]
    await asyncio.sleep(0)
    assert [guest.looked for guest in guests] == [1, 1, 0]
    told.topology_changed(changed("user", "b"))
    await asyncio.sleep(0)
    assert [guest.looked for guest in guests] == [1, 1, 1]


async def test_a_snapshot_makes_everybody_look(told: Revocation, guests: list[Any]) -> None:
    told.all_changed()
    told.topology_changed(changed("user", "a"))
    await asyncio.sleep(0)
    assert [guest.looked for guest in guests] == [1, 1, 1]


async def test_so_do_more_users_than_are_worth_telling_apart(
    told: Revocation, guests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "USERS_MAX", 2)
    for name in ("x", "y", "z"):
        told.topology_changed(changed("permission", name))
    await asyncio.sleep(0)
    assert [guest.looked for guest in guests] == [1, 1, 1]
