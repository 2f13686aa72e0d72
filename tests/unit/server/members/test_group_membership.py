"""Which groups are looked at after a change of the catalog."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import NodeId
from brokerd.server.members.group_membership import GroupMembership
from brokerd.server.members.ports import Json
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.members.fakes import Replicas, Tasks, queue, status


class Rig:
    """Queues that are led here."""

    def __init__(self, count: int) -> None:
        self.woken: list[int] = []
        self.count = count
        self.host = Replicas(NodeId("n0"))
        self.view = CatalogState()
        self.queues: dict[int, Queue] = {}
        self.written: list[Json] = []

    async def write(self, operation: Json) -> Json:
        self.written.append(operation)
        self.queues[operation["uid"]].members = operation["members"]
        return {"code": catalog_commands.OK}

    def queue_of(self, uid: int) -> Queue | None:
        return self.queues.get(uid) or queue(uid, f"q{uid}", "n0")

    def queue_uids(self) -> list[int]:
        return list(range(self.count + 3))

    def leads(self, uid: int) -> bool:
        return uid < self.count


async def test_members_and_settings_wake_every_group_led_here() -> None:
    """A policy wakes those of its vhost, by their leaders."""
    rig = Rig(4)
    tasks = Tasks()
    membership = GroupMembership(rig, tasks.spawn, lambda: False)
    cast(Any, membership).wake = rig.woken.append
    for kind, vhost in (("policy", "v"), ("vhost", ""), ("exchange", "v")):
        membership.topology_changed(TopologyChanged(kind, vhost, "x", False, 7, "admin"))
    assert rig.woken == []
    for kind in ("member", "setting"):
        membership.topology_changed(TopologyChanged(kind, "", "x", False, 7, "admin"))
        await tasks.wait()
        assert rig.woken == [0, 1, 2, 3]
        rig.woken.clear()
    queue = TopologyChanged("queue", "v", "q", False, 7, "admin")
    queue.uid = 3
    membership.topology_changed(queue)
    assert rig.woken == [3]


async def test_who_left_the_cluster_while_it_was_added_to_a_queue_is_taken_off_its_record() -> None:
    """The record was written behind the removal, and waited for it for ever (seed 21004419)."""
    rig = Rig(1)
    names = [NodeId(name) for name in ("n0", "n1", "n2")]
    catalog = CatalogDriver()
    for name in names:
        catalog.do(catalog_commands.put_member(name, f"{name}:1"))
    rig.view = catalog.view
    rig.host.up.update(names)
    rig.host.by_uid[0] = status(*names, is_leader=True, may_change=True)
    rig.queues[0] = queue(0, "q0", *names, "gone")
    tasks = Tasks()
    membership = GroupMembership(rig, tasks.spawn, lambda: False)
    membership.wake(0)
    await tasks.wait()
    assert [operation["members"] for operation in rig.written] == [names]
    assert not membership.stuck


async def test_of_many_groups_some_are_looked_at_in_each_turn_and_none_is_left_out() -> None:
    """Whoever wakes them meanwhile may know something new of those that were looked at before."""
    rig = Rig(1000)
    tasks = Tasks()
    membership = GroupMembership(rig, tasks.spawn, lambda: False)
    cast(Any, membership).wake = rig.woken.append
    membership.wake_all()
    await asyncio.sleep(0)
    assert 0 < len(rig.woken) < 1000
    membership.wake_all()
    await tasks.wait()
    assert rig.woken == [*range(1000), *range(1000)]
    membership.wake_all()
    await tasks.wait()
    assert len(rig.woken) == 3000
