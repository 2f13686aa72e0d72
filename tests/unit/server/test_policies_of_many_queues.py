"""A policy is told to the queues of its vhost some at a time: the member goes on meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.core.effects import TopologyChanged
from brokerd.server import queue_leaders
from brokerd.server.broker import Broker
from brokerd.server.group_membership import GroupMembership
from brokerd.server.queue_leaders import QueueLeaders


class Rig:
    """Queues of two vhosts, all led here; those with odd numbers are in vhost v."""

    def __init__(self, count: int) -> None:
        self.updated: list[int] = []
        self.woken: list[int] = []
        vhosts = {uid: "v" if uid % 2 else "/" for uid in range(count)}
        broker: Any = SimpleNamespace(
            node="n0",
            queue_of=lambda uid: SimpleNamespace(uid=uid, vhost=vhosts[uid]),
            membership=SimpleNamespace(wake=self.woken.append),
        )
        self.leaders = broker.leaders = QueueLeaders(cast(Broker, broker))
        self.leaders.led = dict.fromkeys(vhosts, 1)
        cast(Any, self.leaders).update_options = self.updated.append
        self.broker = broker


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_few_queues_hear_of_a_policy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_leaders, "UPDATES_MAX", 3)
    rig = Rig(6)
    rig.leaders.update_vhost("v")
    assert rig.updated == rig.woken == [1, 3, 5]
    rig.leaders.update_vhost("/")
    assert rig.updated == rig.woken == [1, 3, 5, 0, 2, 4]


async def test_many_queues_hear_of_it_in_turns_each_of_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_leaders, "UPDATES_MAX", 2)
    rig = Rig(10)
    rig.leaders.update_vhost("v")
    assert rig.updated == [1, 3]
    # Those that have heard of the first policy hear of the second; none hears twice of one.
    rig.leaders.update_vhost("v")
    del rig.leaders.led[7]
    await turns(5)
    assert rig.updated == rig.woken == [1, 3, 5, 9, 1, 3]
    # It begins anew.
    rig.leaders.update_vhost("/")
    assert rig.updated[6:] == [0, 2]
    await turns(5)
    assert rig.updated[6:] == [0, 2, 4, 6, 8]


async def test_a_mistake_with_one_queue_does_not_end_it_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_leaders, "UPDATES_MAX", 1)
    rig = Rig(6)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)

    def update(uid: int) -> None:
        assert uid != 3
        rig.updated.append(uid)

    cast(Any, rig.leaders).update_options = update
    rig.leaders.update_vhost("v")
    await turns(4)
    assert rig.updated == [1, 5]
    rig.leaders.update_vhost("/")
    assert rig.updated == [1, 5, 0]


def test_members_and_settings_wake_every_group_led_here() -> None:
    """A policy wakes those of its vhost, by their leaders."""
    rig = Rig(4)
    membership = GroupMembership(cast(Broker, rig.broker))
    cast(Any, membership).wake = rig.woken.append
    for kind, vhost in (("policy", "v"), ("vhost", ""), ("exchange", "v")):
        membership.topology_changed(TopologyChanged(kind, vhost, "x", False, 7, "admin"))
    assert rig.woken == []
    for kind in ("member", "setting"):
        membership.topology_changed(TopologyChanged(kind, "", "x", False, 7, "admin"))
        assert rig.woken == [0, 1, 2, 3]
        rig.woken.clear()
    queue = TopologyChanged("queue", "v", "q", False, 7, "admin")
    queue.uid = 3
    membership.topology_changed(queue)
    assert rig.woken == [3]
