"""What follows on a member from one command of the catalog, however many objects it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.core.catalog.catalog_effects import FeaturesEnabled, TopologyChanged
from brokerd.server.catalog_events import CatalogEvents, Listeners


class Catalog:
    """Watched by one who takes three changes."""

    def __init__(self) -> None:
        self.topology_revision = 1
        self.heard: list[str] = []
        self.watcher: asyncio.Queue[TopologyChanged] = asyncio.Queue(3)
        self.watchers = {self.watcher}
        self.topology_listeners: list[Callable[[TopologyChanged], None]] = []
        self.restored_listeners: list[Callable[[], None]] = []


class Member:
    """A member that notes who was told what, in order."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.told: list[str] = []
        listeners = Listeners(
            queue=lambda change: self.told.append(f"queue {change.name}"),
            policies=lambda vhost: self.told.append(f"policies of {vhost}"),
            members=(self._note("dial"), self._note("wake")),
            vhost_deleted=lambda name: self.told.append(f"end of {name}"),
            each=(lambda change: self.catalog.heard.append(change.name),),
            applied=(self._note("applied"),),
            loaded=(self._note("loaded"),),
            restored=(self._note("restored"),),
        )
        self.changes = CatalogEvents(self.catalog, listeners)

    def _note(self, what: str) -> Callable[[], None]:
        return lambda: self.told.append(what)

    def watched(self) -> list[str]:
        watcher = self.catalog.watcher
        return [watcher.get_nowait().name for _ in range(watcher.qsize())]

    def restore(self) -> None:
        for listener in self.catalog.restored_listeners:
            listener()


def realise(*changes: TopologyChanged | FeaturesEnabled) -> Member:
    member = Member()
    member.changes.realise(changes)
    assert member.catalog.topology_revision == 2
    assert member.told.pop() == "applied"
    return member


def change(kind: str, name: str, vhost: str = "/", deleted: bool = False) -> TopologyChanged:
    return TopologyChanged(kind, vhost, name, deleted, 7, "admin")


def test_many_policies_have_the_queues_of_their_vhost_looked_at_once() -> None:
    """A look at ten thousand queues takes a quarter of a second."""
    member = realise(change("policy", "p1"), change("policy", "p2"), change("policy", "p3", "v"))
    assert member.told == ["policies of /", "policies of v"]
    assert member.catalog.heard == ["p1", "p3"]
    # Watchers hear of each.
    assert member.watched() == ["p1", "p2", "p3"]


def test_policies_of_operators_count_by_themselves() -> None:
    member = realise(change("policy", "p"), change("operator_policy", "o"))
    assert member.told == ["policies of /", "policies of /"]
    assert member.catalog.heard == ["p", "o"]


def test_each_vhost_ends_for_its_connections() -> None:
    """R-VH-2."""
    gone = [change("vhost", name, "", deleted=True) for name in ("v", "w")]
    member = realise(*gone, change("vhost", "x", ""))
    assert member.told == ["end of v", "end of w"]
    assert member.catalog.heard == ["v", "w", "x"]


def test_queues_and_members_have_those_who_follow_them() -> None:
    member = realise(change("queue", "q"), change("member", "n1"), change("user", "u"))
    assert member.told == ["queue q", "dial", "wake"]
    assert member.catalog.heard == ["q", "n1", "u"]


def test_those_who_come_later_hear_behind_the_others() -> None:
    member = Member()
    heard = member.catalog.heard
    member.catalog.topology_listeners.append(lambda change: heard.append(f"later {change.name}"))
    member.changes.realise([change("binding", "b"), change("vhost", "v")])
    assert heard == ["b", "later b", "v", "later v"]


def test_a_watcher_that_does_not_keep_up_is_left_alone() -> None:
    member = realise(*(change("exchange", f"e{n}") for n in range(5)))
    assert member.catalog.heard == [f"e{n}" for n in range(5)]
    assert member.watched() == ["e0", "e1", "e2"]


def test_an_enabled_flag_has_all_queues_looked_at_and_is_no_change_of_an_object() -> None:
    member = realise(FeaturesEnabled(["default_delivery_limit"]))
    assert (member.told, member.catalog.heard, member.watched()) == (["policies of None"], [], [])


async def test_a_snapshot_before_the_start_is_read_with_the_start() -> None:
    member = Member()
    member.restore()
    await asyncio.sleep(0)
    assert member.told == []
    member.changes.load()
    assert member.told == ["loaded"]
    assert member.catalog.topology_revision == 2


async def test_a_snapshot_says_what_is_and_all_who_follow_changes_look_again() -> None:
    member = Member()
    member.changes.load()
    member.told.clear()
    member.restore()
    # Not from within the machine.
    assert member.told == []
    await asyncio.sleep(0)
    assert member.told == ["loaded", "restored", "applied"]
    assert member.catalog.topology_revision == 3
