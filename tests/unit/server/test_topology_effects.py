"""What follows on a member from one command of the catalog, however many objects it changed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from brokerd.core.catalog.catalog_effects import FeaturesEnabled, TopologyChanged
from brokerd.server.broker import Broker


def realise(
    *changes: TopologyChanged | FeaturesEnabled,
) -> tuple[Any, list[Any], list[str], list[str]]:
    """Return the broker, whose queues were looked at, what listeners and watchers heard."""
    looked: list[Any] = []
    heard: list[str] = []
    watcher: asyncio.Queue[TopologyChanged] = asyncio.Queue(3)
    broker: Any = SimpleNamespace(
        topology_revision=1,
        leaders=SimpleNamespace(update_vhost=looked.append),
        connections=SimpleNamespace(vhost_deleted=lambda name: looked.append(f"end of {name}")),
        watchers={watcher},
        topology_listeners=[lambda change: heard.append(change.name)],
        dead_letterer=SimpleNamespace(topology_changed=lambda: None),
        catalog_writer=SimpleNamespace(applied=lambda: None),
    )
    broker._topology_changed = lambda change: Broker._topology_changed(broker, change)
    broker._tell_watchers = lambda change: Broker._tell_watchers(broker, change)
    Broker._catalog_effects(broker, changes)
    watched = [watcher.get_nowait().name for _ in range(watcher.qsize())]
    return broker, looked, heard, watched


def change(kind: str, name: str, vhost: str = "/", deleted: bool = False) -> TopologyChanged:
    return TopologyChanged(kind, vhost, name, deleted, 7, "admin")


def test_many_policies_have_the_queues_of_their_vhost_looked_at_once() -> None:
    """A look at ten thousand queues takes a quarter of a second."""
    broker, looked, heard, watched = realise(
        change("policy", "p1"), change("policy", "p2"), change("policy", "p3", "v")
    )
    assert looked == ["/", "v"]
    assert heard == ["p1", "p3"]
    # Watchers hear of each.
    assert watched == ["p1", "p2", "p3"]
    assert broker.topology_revision == 2


def test_policies_of_operators_count_by_themselves() -> None:
    _, looked, heard, _ = realise(change("policy", "p"), change("operator_policy", "o"))
    assert looked == ["/", "/"]
    assert heard == ["p", "o"]


def test_each_vhost_ends_for_its_connections() -> None:
    """R-VH-2."""
    gone = [change("vhost", name, "", deleted=True) for name in ("v", "w")]
    _, looked, heard, _ = realise(*gone, change("vhost", "x", ""))
    assert looked == ["end of v", "end of w"]
    assert heard == ["v", "w", "x"]


def test_a_watcher_that_does_not_keep_up_is_left_alone() -> None:
    _, _, heard, watched = realise(*(change("exchange", f"e{n}") for n in range(5)))
    assert heard == [f"e{n}" for n in range(5)]
    assert watched == ["e0", "e1", "e2"]


def test_an_enabled_flag_has_all_queues_looked_at_and_is_no_change_of_an_object() -> None:
    broker, looked, heard, watched = realise(FeaturesEnabled(["default_delivery_limit"]))
    assert (looked, heard, watched) == ([None], [], [])
    assert broker.topology_revision == 2
