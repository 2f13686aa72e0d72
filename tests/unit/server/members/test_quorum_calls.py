"""Leaders that are asked to move: what happens when a hand-over comes to nothing (R-QQ-23)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.members import quorum_calls
from brokerd.server.members.ports import Json
from tests.unit.server.members.fakes import Replicas, queue, status

A, B = NodeId("a"), NodeId("b")


QUEUES = {uid: queue(uid, f"q{uid}", A, B) for uid in (7, 8)}


class Calls:
    """Questions to members.  State: who leads, and how many hand-overs come to nothing."""

    def __init__(self, lost: int = 0, refused: str = "") -> None:
        self.leaders = dict.fromkeys(QUEUES, A)
        self.lost, self.refused = lost, refused
        self.asked: list[tuple[str, list[Any]]] = []

    async def ask_all(
        self, nodes: Iterable[str], name: str, fields: Json | None = None
    ) -> dict[str, Json]:
        groups: dict[NodeId, dict[str, list[NodeId]]] = {A: {}, B: {}}
        for uid, leader in self.leaders.items():
            groups[leader][str(uid)] = [A, B]
        return {node: {"groups": found} for node, found in groups.items()}

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        assert fields is not None
        moves = fields["moves"]
        self.asked.append((node, moves))
        if self.refused:
            return {"refused": {str(uid): self.refused for uid, _ in moves}}
        if len(self.asked) > self.lost:
            self.leaders |= dict(moves)
        return {"refused": {}}


class TwoQueues:
    """Two queues on two members."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.host = Replicas(A, B)

    def queue_of(self, uid: int) -> Queue | None:
        return QUEUES[uid]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_calls, "POLL_S", 0.0)
    monkeypatch.setattr(quorum_calls, "AGAIN_S", 0.0)


async def moved(calls: Calls, timeout_s: float = 60.0) -> str:
    """Ask for one queue's leadership to go to B; return why it did not."""
    return await quorum_calls.transfer_leader(TwoQueues(calls), QUEUES[7], B, timeout_s)


async def test_a_hand_over_that_came_to_nothing_is_asked_for_again() -> None:
    """The leader gives it up after an election time-out and says nothing (Raft thesis §3.10)."""
    calls = Calls(lost=3)
    assert await moved(calls) == ""
    assert calls.asked == [(A, [(7, B)])] * 4
    assert calls.leaders == {7: B, 8: A}


async def test_a_successor_that_never_comes_is_told_of() -> None:
    said = await moved(Calls(lost=1 << 30), timeout_s=0.05)
    assert said == "'b' has not caught up in time; 'a' leads on"


async def test_what_is_refused_at_once_is_not_waited_for() -> None:
    calls = Calls(refused="member 'b' is down")
    assert await moved(calls) == "member 'b' is down"
    assert len(calls.asked) == 1


async def test_rebalancing_asks_again_too() -> None:
    calls = Calls(lost=2)
    queues = list(QUEUES.values())
    assert await quorum_calls.rebalance(TwoQueues(calls), queues, [], 60.0) == (1, 0)
    assert len(calls.asked) == 3
    assert sorted(calls.leaders.values()) == [A, B]


async def test_rebalancing_counts_what_is_refused_as_left() -> None:
    calls = Calls(refused="it is led elsewhere by now")
    queues = list(QUEUES.values())
    assert await quorum_calls.rebalance(TwoQueues(calls), queues, [], 60.0) == (0, 1)
    assert len(calls.asked) == 1


async def test_no_leader_moves_to_a_disk_that_does_not_answer() -> None:
    """ADR 68: neither by rebalancing nor for whoever asks."""
    calls = Calls()
    here = TwoQueues(calls)
    here.host.stalled = {B}
    assert await quorum_calls.rebalance(here, list(QUEUES.values()), [], 60.0) == (0, 0)
    assert calls.asked == []
    here.host.by_uid = {7: status(A, B, leader=A, is_leader=True)}
    refused = quorum_calls._transfer(here.host, {7}, [[7, B]])
    assert refused == {"7": "the disk of member 'b' does not answer"}
    here.host.stalled = set()
    assert quorum_calls._transfer(here.host, {7}, [[7, B]]) == {}
    assert here.host.transfers == [(7, B)]
