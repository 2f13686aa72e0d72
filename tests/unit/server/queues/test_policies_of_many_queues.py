"""A policy is told to the queues of its vhost some at a time: the member goes on meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.server.queues import leaders
from brokerd.server.queues.leaders import QueueLeaders
from tests.unit.server.messages import fakes


class Rig:
    """Queues of two vhosts, all led here; those with odd numbers are in vhost v."""

    def __init__(self, count: int) -> None:
        self.options = fakes.Options()
        self.updated = self.options.looked
        self.woken: list[int] = []
        queues = [fakes.queue(uid, "v" if uid % 2 else "/") for uid in range(count)]
        self.leaders = QueueLeaders(
            fakes.Identity("n0"),
            fakes.Queues(*queues),
            fakes.Replicas(),
            fakes.Hub(),
            fakes.DeadLetters(),
            fakes.JobWorkers(),
            self.options,
            wake_members=self.woken.append,
            write_later=lambda operation: None,
            led={queue.uid: 1 for queue in queues},
        )


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_few_queues_hear_of_a_policy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "UPDATES_MAX", 3)
    rig = Rig(6)
    rig.leaders.update_vhost("v")
    assert rig.updated == rig.woken == [1, 3, 5]
    rig.leaders.update_vhost("/")
    assert rig.updated == rig.woken == [1, 3, 5, 0, 2, 4]


async def test_what_concerns_every_vhost_is_told_to_all_queues() -> None:
    rig = Rig(6)
    rig.leaders.update_vhost(None)
    assert rig.updated == [0, 1, 2, 3, 4, 5]


async def test_many_queues_hear_of_it_in_turns_each_of_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaders, "UPDATES_MAX", 2)
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
    monkeypatch.setattr(leaders, "UPDATES_MAX", 1)
    rig = Rig(6)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    rig.options.broken = 3
    rig.leaders.update_vhost("v")
    await turns(4)
    assert rig.updated == [1, 5]
    rig.leaders.update_vhost("/")
    assert rig.updated == [1, 5, 0]
