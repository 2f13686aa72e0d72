"""When a queue's members are asked why it has no leader, and who is told what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.members import quorum_calls, stuck_queues
from brokerd.server.members.ports import Json
from brokerd.server.members.stuck_queues import StuckQueues
from tests.unit.server.members.fakes import Replicas, queue, status

UID = 7
N1, N2, N3 = (NodeId(name) for name in ("n1", "n2", "n3"))


class Consumers:
    """Those of the rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def groups(self) -> list[int]:
        return list(self._rig.consumers)

    def has_group(self, uid: int) -> bool:
        return uid in self._rig.consumers

    def group_stuck(self, uid: int, reason: str) -> None:
        self._rig.told.append(reason)


class Commands:
    """Those that wait at the rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def stalled(self, since: float) -> list[int]:
        return list(self._rig.stalled)

    def refuse(self, uid: int, reason: str, is_lasting: bool) -> None:
        self._rig.refused[uid] = (reason, is_lasting)

    def accept(self, uid: int) -> None:
        self._rig.refused.pop(uid)


class Rig:
    """A member whose other members say what a test puts into `rows`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.stalled: list[int] = []
        self.consumers: set[int] = set()
        self.refused: dict[int, tuple[str, bool]] = {}
        self.told: list[str] = []
        self.asked: list[list[int]] = []
        self.on_ask: Callable[[], None] = lambda: None
        self.queues = {UID: queue(UID, "q", "n1", "n2", "n3")}
        self.host = Replicas(N1, N2, N3)
        self.calls = self
        self.stuck = StuckQueues(self, Consumers(self), Commands(self))

    def queue_of(self, uid: int) -> Queue | None:
        return self.queues.get(uid)

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        raise AssertionError("all are asked at once")

    async def ask_all(
        self, nodes: Iterable[str], name: str, fields: Json | None = None
    ) -> dict[str, Json]:
        assert name == "replicas"
        assert fields is not None
        self.asked.append(fields["uids"])
        self.on_ask()
        return {
            node: {"rows": [row | {"uid": uid} for uid in fields["uids"]]}
            for node, row in self.rows.items()
            if node in nodes
        }

    def says(self, node: str, **fields: Any) -> None:
        plain = {"term": 1, "last": 5, "is_leader": False, "damaged": False, "error": ""}
        self.rows[node] = plain | {"voters": ["n1", "n2", "n3"]} | fields

    async def look(self, count: int = 1) -> None:
        for _ in range(count):
            await self.stuck.look()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(stuck_queues, "PATIENCE_S", 0.0)
    made = Rig()
    made.says("n1")
    made.says("n2", damaged=True)
    return made


REASON = (
    "queue 'q' in vhost '/' is damaged: waits for n3, since n2 must be refilled to vote; "
    "see 'brokerctl quorum_status'"
)


async def test_commands_that_nobody_takes_are_refused_until_somebody_leads(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.look()
    assert not rig.asked
    rig.stalled = [UID]
    await rig.look(2)
    assert rig.refused == {UID: (REASON, False)}
    assert caplog.messages == [REASON]
    # Nobody asks any more, which is what a refusal is for: it is looked all the same.
    rig.stalled = []
    rig.says("n3", damaged=True)
    await rig.look()
    assert rig.refused[UID][1]
    rig.says("n3", is_leader=True)
    await rig.look(2)
    assert rig.refused == {}
    assert len(rig.asked) == 4


async def test_consumers_of_a_queue_whose_leader_is_gone_are_told(rig: Rig) -> None:
    rig.stuck.leader_changed(UID, None)
    await rig.look()
    assert not rig.asked
    rig.consumers.add(UID)
    await rig.look()
    assert rig.told == [REASON]
    rig.stuck.leader_changed(UID, N1)
    assert rig.refused == {}
    await rig.look()
    assert len(rig.asked) == 1


@pytest.mark.parametrize("known", [None, N3])
async def test_consumers_of_a_leader_that_nobody_misses_are_told(
    rig: Rig, known: NodeId | None
) -> None:
    """No replica is here, or one that is damaged and waits for its leader for ever."""
    rig.consumers.add(UID)
    rig.host.by_uid[UID] = status(leader=known)
    rig.stuck.node_changed(N3, up=True)
    rig.stuck.node_changed(N2, up=False)
    await rig.look()
    assert len(rig.asked) == (known is None)
    rig.stuck.node_changed(N3, up=False)
    await rig.look()
    assert rig.told[-1] == REASON


async def test_a_leader_that_was_elected_meanwhile_ends_the_matter(rig: Rig) -> None:
    rig.consumers.add(UID)
    rig.stuck.leader_changed(UID, None)
    rig.says("n1", is_leader=True)
    await rig.look(2)
    assert (rig.told, len(rig.asked)) == ([], 1)


async def test_without_damage_it_is_looked_on_and_nothing_said(rig: Rig) -> None:
    """A majority that is missing is waited for, as ever."""
    del rig.rows["n2"]
    rig.consumers.add(UID)
    rig.stuck.leader_changed(UID, None)
    await rig.look(2)
    assert (rig.told, len(rig.asked)) == ([], 2)


async def test_what_is_over_when_the_members_have_answered_is_over(rig: Rig) -> None:
    rig.stalled = [UID]
    rig.on_ask = rig.stalled.clear
    await rig.look()
    assert (rig.refused, len(rig.asked)) == ({}, 1)


async def test_a_queue_that_is_gone_is_not_asked_after(rig: Rig) -> None:
    rig.stalled = [UID, UID + 1]
    await rig.look()
    assert rig.asked == [[UID]]
    rig.stuck.forget(UID)
    rig.stalled = []
    assert rig.refused == {}
    await rig.look()
    assert len(rig.asked) == 1


async def test_the_newest_replica_says_who_votes(rig: Rig) -> None:
    """Those that were members once do not count."""
    rig.says("n1", term=3, voters=["n1", "n3"])
    rig.stalled = [UID]
    await rig.look()
    assert rig.refused == {}
    rig.says("n3", damaged=True)
    await rig.look()
    assert rig.refused[UID][1]


async def test_a_classic_queue_has_one_member(rig: Rig) -> None:
    rig.queues[UID] = queue(UID, "q", "n2", queue_type="classic")
    rig.says("n2", damaged=True, voters=["n2"])
    rig.stalled = [UID]
    await rig.look()
    assert rig.refused[UID] == (
        "queue 'q' in vhost '/' is damaged: n2 is its only member, nobody can refill it; "
        "see 'brokerctl wal verify'",
        True,
    )


async def test_of_very_many_queues_each_look_takes_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum_calls, "BATCH", 2)
    for uid in range(5):
        rig.queues[uid] = queue(uid, f"q{uid}", "n1", "n2", "n3")
    rig.stalled = list(range(5))
    await rig.look(4)
    assert rig.asked == [[0, 1], [2, 3], [4], [0, 1]]
    assert len(rig.refused) == 5


async def test_a_reason_fits_into_a_reply_text_whatever_the_names(rig: Rig) -> None:
    rig.queues[UID] = queue(UID, "é" * 127, "n1", "n2", "n3", vhost="v" * 255)
    rig.stalled = [UID]
    await rig.look()
    reason = rig.refused[UID][0]
    assert len(f"NOT_FOUND - {reason}".encode()) <= 255
    assert reason.endswith("see 'brokerctl quorum_status'")


async def test_it_is_looked_as_long_as_the_broker_runs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_queues, "LOOK_S", 0.0)
    rig.stalled = [UID]
    has_asked = asyncio.Event()
    rig.on_ask = has_asked.set
    running = asyncio.create_task(rig.stuck.run())
    async with asyncio.timeout(60):
        await has_asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
