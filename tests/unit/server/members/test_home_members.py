"""Which classic queues refuse or go while their home member is silent, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerd.config import QueueConfig
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import ConnectionId, Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import home_members
from brokerd.server.members.home_members import HomeMembers
from tests.unit.server.members.fakes import SPEC

HERE, HOME, OTHER = (NodeId(name) for name in ("n1", "n2", "n3"))
DURABLE, TRANSIENT, EXCLUSIVE, AUTO, QUORUM, ELSEWHERE = range(1, 7)


def classic(uid: int, name: str, home: str, **fields: Any) -> Queue:
    return Queue("/", name, SPEC | {"type": "classic"} | fields, uid, [home])


class View(CatalogState):
    """A catalog of three members."""

    def members(self) -> Any:
        return [HERE, HOME, OTHER]


class Rig:
    """A member that hears another one or not, with queues that live there."""

    def __init__(self, **settings: int) -> None:
        self.node = HERE
        self.silence = {HOME: 0}
        self.catalog_leader = HERE
        self.stalled: set[NodeId] = set()
        self.view = View()
        self.queues = {
            DURABLE: classic(DURABLE, "durable", HOME),
            TRANSIENT: classic(TRANSIENT, "transient", HOME, durable=False),
            AUTO: classic(AUTO, "auto", HOME, auto_delete=True),
            QUORUM: Queue("/", "quorum", SPEC, QUORUM, [HOME]),
            ELSEWHERE: classic(ELSEWHERE, "elsewhere", OTHER),
        }
        exclusive = classic(EXCLUSIVE, "exclusive", HOME, durable=False)
        exclusive.exclusive_owner = ConnectionId(HOME, 1, 1)
        self.queues[EXCLUSIVE] = exclusive
        self.consumed: set[int] = set()
        self.written: list[Any] = []
        self.fails = False
        self.rerouted = 0
        self.stranded: dict[int, str] = {}
        self.reason_of: Callable[[int], str] | None = None
        self.homes = HomeMembers(
            QueueConfig(**settings), self, self, self.queues, self, self, self, self.reroute
        )

    def silent_ms(self, node: NodeId) -> int:
        return self.silence.get(node, 0)

    def is_stalled(self, node: NodeId) -> bool:
        return node in self.stalled

    def leader_of(self, uid: int) -> NodeId | None:
        assert uid == CATALOG_GROUP
        return self.catalog_leader

    def groups(self) -> list[int]:
        return [DURABLE, TRANSIENT, QUORUM, ELSEWHERE]

    def has_consumers(self, uid: int) -> bool:
        return uid in self.consumed

    def home_down(self, what: Any, reason: Any) -> None:
        if isinstance(what, int):
            self.stranded[what] = reason
        else:
            self.reason_of = reason

    def home_up(self, node: NodeId) -> None:
        self.reason_of = None

    def reroute(self) -> None:
        self.rerouted += 1

    async def write(self, operation: Any) -> Any:
        if self.fails:
            raise Unavailable("no majority")
        self.written.append(operation)
        for each in operation["operations"]:
            self.queues.pop(each["uid"])
            self.homes.queue_changed(changed(each["uid"], deleted=True))
        return {}

    async def silent(self, seconds: float) -> None:
        self.silence[HOME] = int(seconds * 1000)
        self.homes.look()
        await self.homes.delete_absent()

    @property
    def absent(self) -> set[int]:
        return self.view.down_homes.absent

    @property
    def refusing(self) -> set[int]:
        return self.view.down_homes.refusing


def changed(uid: int, *, deleted: bool = False) -> TopologyChanged:
    return TopologyChanged("queue", "/", "q", deleted, 1, "test", uid)


async def test_after_five_seconds_of_silence_queues_refuse_or_are_absent() -> None:
    rig = Rig()
    await rig.silent(4.9)
    assert (rig.absent, rig.refusing, rig.rerouted) == (set(), set(), 0)
    await rig.silent(5)
    assert (rig.absent, rig.refusing) == ({TRANSIENT, EXCLUSIVE}, {DURABLE, AUTO})
    assert rig.rerouted == 1
    await rig.silent(6)
    assert rig.rerouted == 1


async def test_the_reason_names_queue_vhost_and_member_or_says_that_there_is_no_queue() -> None:
    rig = Rig()
    await rig.silent(5)
    assert rig.reason_of is not None
    assert rig.reason_of(DURABLE) == "home member n2 of queue 'durable' in vhost '/' is down"
    assert rig.reason_of(TRANSIENT) == "no queue 'transient' in vhost '/'"
    assert rig.reason_of(QUORUM) == rig.reason_of(99) == ""
    assert set(rig.stranded) == {DURABLE, TRANSIENT}


async def test_a_durable_auto_delete_queue_goes_if_it_had_a_consumer() -> None:
    """R-Q-10."""
    rig = Rig()
    rig.consumed = {AUTO}
    await rig.silent(5)
    assert (AUTO in rig.absent, AUTO in rig.refusing) == (True, False)


async def test_a_member_that_returns_takes_its_queues_back() -> None:
    rig = Rig()
    await rig.silent(59)
    rig.homes.node_changed(HOME, False)
    assert rig.absent
    rig.homes.node_changed(HOME, True)
    assert (rig.absent, rig.refusing, rig.reason_of, rig.written) == (set(), set(), None, [])
    # It was never down: nothing to take back.
    rig.homes.node_changed(OTHER, True)
    assert rig.rerouted == 2


async def test_after_a_minute_the_catalogs_leader_deletes_what_went() -> None:
    rig = Rig()
    rig.catalog_leader = OTHER
    await rig.silent(60)
    assert rig.written == []
    rig.catalog_leader = HERE
    await rig.silent(61)
    (batch,) = rig.written
    assert {each["uid"] for each in batch["operations"]} == {TRANSIENT, EXCLUSIVE}
    assert {each["cause"] for each in batch["operations"]} == {"home-down"}
    assert (rig.absent, rig.refusing) == (set(), {DURABLE, AUTO})


async def test_without_a_majority_the_deletion_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    rig.fails = True
    await rig.silent(60)
    assert "not deleted yet: no majority" in caplog.text
    rig.fails = False
    await rig.silent(61)
    assert rig.absent == set()


async def test_many_are_deleted_in_bounded_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_members, "DELETIONS_MAX", 1)
    rig = Rig()
    await rig.silent(60)
    assert [len(each["operations"]) for each in rig.written] == [1, 1]


async def test_the_time_until_deletion_is_never_shorter_than_that_until_it_is_down() -> None:
    rig = Rig(home_down_after_ms=5_000, home_down_delete_ms=1_000)
    await rig.silent(3)
    assert rig.written == []


async def test_a_queue_of_the_catalog_that_is_read_later_is_judged_then() -> None:
    rig = Rig()
    kept = rig.queues.pop(TRANSIENT)
    await rig.silent(5)
    rig.queues[TRANSIENT] = kept
    rig.homes.queue_changed(changed(TRANSIENT))
    assert TRANSIENT in rig.absent
    rig.homes.queue_changed(changed(ELSEWHERE))
    rig.homes.queue_changed(replace(changed(DURABLE, deleted=True), kind="exchange"))
    assert DURABLE in rig.refusing
    del rig.queues[DURABLE]
    rig.homes.load()
    assert (rig.absent, rig.refusing) == ({TRANSIENT, EXCLUSIVE}, {AUTO})


async def test_one_that_came_back_during_a_deletion_keeps_the_rest() -> None:
    rig = Rig()

    async def write(operation: Any) -> Any:
        rig.homes.node_changed(HOME, True)
        raise Unavailable("late")

    rig.write = write  # type: ignore[method-assign]
    await rig.silent(60)
    assert rig.absent == set()


async def test_only_durable_queues_refuse_while_the_disk_of_their_home_does_not_answer() -> None:
    """ADR 68: the member is there, and so are its clients; what is in memory goes on."""
    rig = Rig()
    rig.stalled = {HOME}
    rig.homes.look()
    rig.homes.look()
    assert (rig.absent, rig.refusing, rig.rerouted) == (set(), {DURABLE, AUTO}, 1)
    assert rig.reason_of is not None
    reason = "home member n2 of queue 'durable' in vhost '/' has a disk that does not answer"
    assert rig.reason_of(DURABLE) == reason
    assert rig.reason_of(TRANSIENT) == rig.reason_of(EXCLUSIVE) == ""
    assert (rig.stranded, rig.written) == ({}, [])
    rig.stalled = set()
    rig.homes.look()
    assert (rig.refusing, rig.reason_of) == (set(), None)


async def test_a_member_whose_disk_stalled_and_that_then_falls_silent_is_down() -> None:
    rig = Rig()
    rig.stalled = {HOME, HERE}
    rig.homes.look()
    rig.stalled = {HERE}
    rig.silence[HOME] = 5_000
    rig.homes.look()
    assert (rig.absent, rig.refusing) == ({TRANSIENT, EXCLUSIVE}, {DURABLE, AUTO})
    assert rig.reason_of is not None
    assert rig.reason_of(DURABLE).endswith(" is down")
    rig.homes.load()
    assert (rig.absent, rig.refusing) == ({TRANSIENT, EXCLUSIVE}, {DURABLE, AUTO})


async def test_a_deletion_without_a_majority_keeps_no_other_member_from_being_judged() -> None:
    """A second member falls silent while the catalog does not answer."""
    rig = Rig()
    asked, released = asyncio.Event(), asyncio.Event()

    async def write(operation: Any) -> Any:
        asked.set()
        await released.wait()
        raise Unavailable("no majority")

    rig.write = write  # type: ignore[method-assign]
    rig.silence[HOME] = 60_000
    rig.homes.look()
    deleting = asyncio.create_task(rig.homes.delete_absent())
    await asked.wait()
    rig.silence[OTHER] = 5_000
    rig.homes.look()
    assert ELSEWHERE in rig.refusing
    released.set()
    await deleting


async def test_a_queue_without_members_has_no_home() -> None:
    rig = Rig()
    rig.queues[99] = Queue("/", "empty", SPEC | {"type": "classic"}, 99, [])
    await rig.silent(5)
    assert 99 not in rig.absent | rig.refusing
