"""A member that leads many groups hands them over some at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.raft.messages import Configuration, NodeId
from brokerd.server import leadership

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


class Fleet:
    """Groups of three that this member leads.  Asked, one moves, unless it is stuck."""

    def __init__(self, count: int, stuck: tuple[int, ...] = ()) -> None:
        self.host, self.node, self.failure = self, A, None
        self.stuck = stuck
        self.up = {A, B, C}
        self.asked: list[list[tuple[int, NodeId]]] = [[]]
        match = {B: 5, C: 7}
        self.drivers: dict[int, Any] = {
            uid: SimpleNamespace(
                is_leader=True,
                configuration=Configuration((A, B, C)),
                replica=SimpleNamespace(match_of=match.get),
            )
            for uid in range(count)
        }
        self.groups = self.drivers.keys
        self.driver_of = self.drivers.get

    def alive(self) -> set[NodeId]:
        return self.up

    def transfer_leadership(self, uid: int, to: NodeId) -> None:
        self.asked[-1].append((uid, to))

    async def pause(self, seconds: float) -> None:
        for uid, _ in self.asked[-1]:
            if uid not in self.stuck:
                self.drivers[uid].is_leader = False
        self.asked.append([])


async def hand_over(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    monkeypatch.setattr(leadership, "AT_ONCE", 4)
    monkeypatch.setattr(asyncio, "sleep", fleet.pause)
    broker: Any = fleet
    return await leadership.hand_over(broker, options.pop("timeout_s", 60.0), **options)


async def test_so_many_at_once_to_the_voter_that_holds_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(10)
    assert await hand_over(fleet, monkeypatch) == 0
    assert [len(asked) for asked in fleet.asked if asked] == [4, 4, 2]
    assert {to for asked in fleet.asked for _, to in asked} == {C}


async def test_those_that_are_slow_wait_behind_the_others_and_are_counted_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(10, stuck=(0, 1, 2, 3))
    monkeypatch.setattr(leadership, "PATIENCE_S", 0.0)
    assert await hand_over(fleet, monkeypatch, timeout_s=0.2) == 4
    assert [uid for asked in fleet.asked[:3] for uid, _ in asked] == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        0,
        1,
    ]


async def test_who_rests_or_is_down_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(2)
    assert await hand_over(fleet, monkeypatch, avoid={C}) == 0
    assert {to for asked in fleet.asked for _, to in asked} == {B}
    fleet = Fleet(2)
    fleet.up = {A}
    assert await hand_over(fleet, monkeypatch) == 0
    assert fleet.asked == [[]]
