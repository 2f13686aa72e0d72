"""A member that leads many groups hands them over some at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.raft.messages import NodeId
from brokerd.server.members import leadership
from tests.unit.server.members.fakes import Replicas, status

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


class Fleet:
    """Groups of three that this member leads.  Asked, one moves, unless it is stuck."""

    def __init__(self, count: int, stuck: tuple[int, ...] = ()) -> None:
        self.host = Replicas(A, B, C)
        self.has_failed = False
        self.stuck = stuck
        #: Look by look, what was asked.
        self.asked: list[list[tuple[int, NodeId]]] = [self.host.transfers]
        led = status(A, B, C, leader=A, is_leader=True, lag={B: 4, C: 2})
        self.host.by_uid = dict.fromkeys(range(count), led)

    async def pause(self, seconds: float) -> None:
        for uid, to in self.host.transfers:
            if uid not in self.stuck:
                self.host.by_uid[uid] = status(A, B, C, leader=to)
        self.host.transfers = []
        self.asked.append(self.host.transfers)


async def hand_over(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    monkeypatch.setattr(leadership, "AT_ONCE", 4)
    monkeypatch.setattr(asyncio, "sleep", fleet.pause)
    leads = leadership.Leadership(fleet.host, lambda: fleet.has_failed)
    return await leads.hand_over(options.pop("timeout_s", 60.0), **options)


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
    fleet.host.up = {A}
    assert await hand_over(fleet, monkeypatch) == 0
    assert fleet.asked == [[]]


async def test_who_can_promise_nothing_hands_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(2)
    fleet.has_failed = True
    assert await hand_over(fleet, monkeypatch) == 0
    assert fleet.asked == [[]]


async def test_a_member_whose_disk_does_not_answer_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADR 68: it is up and may hold all, but no vote of its would come to its disk."""
    fleet = Fleet(2)
    fleet.host.stalled = {C}
    assert await hand_over(fleet, monkeypatch) == 0
    assert {to for asked in fleet.asked for _, to in asked} == {B}
    fleet = Fleet(2)
    fleet.host.stalled = {B, C}
    assert await hand_over(fleet, monkeypatch) == 0
    assert fleet.asked == [[]]
