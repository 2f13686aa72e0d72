"""A replica that lost messages for good leaves its group and comes back, whatever is in the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import NodeId
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import repair
from brokerd.server.members.ports import Json
from brokerd.server.members.replica_changes import MembershipError
from tests.unit.server.members.fakes import Replicas, Tasks, queue, status

UID = 7


class Changing(Replicas):
    """One damaged replica, of which each look finds what comes next once the wish is written."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(NodeId("n1"))
        self._bench = bench
        self.by_uid[UID] = status(log_uid=UID, is_damaged=True)

    def has_group(self, uid: int) -> bool:
        if self._bench.wishes and self._bench.then:
            found = self._bench.then.pop(0)
            self._bench.is_lacking = False
            if found is None:
                self.by_uid.pop(uid)
            else:
                self.by_uid[uid] = found
        return super().has_group(uid)


class Bench:
    """A member with one damaged replica; `refusals` are what its wishes end with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = Changing(self)
        self.is_lacking = True
        self.queue: Queue | None = queue(UID, "q", "n1")
        self.wishes = 0
        self.wished = asyncio.Event()
        self.refusals: list[Exception] = []
        #: What becomes of the replica once the wish is written, look by look.
        self.then: list[GroupStatus | None] = [
            # What was lost is settled at this moment, but the wish stands.
            status(log_uid=UID),
            None,
            status(log_uid=8, is_damaged=True),
            status(log_uid=8),
        ]
        monkeypatch.setattr(repair, "renew_member", self._renew)
        monkeypatch.setattr(repair, "POLL_S", 0.0)
        self.tasks = Tasks()
        #: Whose leaders were reminded, look by look.
        self.nudged: list[Sequence[int]] = []
        self.repair = repair.Repair(self, self.host, self, self.nudged.append, self.tasks.spawn)

    def waiting(self) -> list[int]:
        return [] if self.is_lacking else [UID]

    def lacking(self) -> list[int]:
        return [UID] if self.is_lacking else []

    async def look(self, count: int = 1) -> None:
        """Look, and wait for what comes of it."""
        for _ in range(count):
            self.repair.look()
            await self.tasks.wait()

    @property
    def view(self) -> CatalogState:
        raise AssertionError("it is renew_member that looks")

    async def write(self, operation: Json) -> Json:
        raise AssertionError("it is renew_member that writes")

    def queue_of(self, uid: int) -> Queue | None:
        assert uid == UID
        return self.queue

    async def _renew(self, catalog: Bench, host: Changing, node: str, queue: Queue) -> None:
        assert (catalog, host, node, queue) == (self, self.host, "n1", self.queue)
        if self.refusals:
            raise self.refusals.pop(0)
        self.wishes += 1
        self.wished.set()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


async def test_a_loss_that_lasts_is_repaired(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """G8; at once would be too early: consumers may settle what is lost.

    It is over when the replica works with its new log; between the two there is none.
    """
    await bench.look(repair.LOOKS)
    assert bench.wishes == 0
    await bench.look()
    assert (bench.wishes, bench.then) == (1, [])
    lost = "queue 'q' in vhost '/': messages are lost on this disk, its replica is made anew"
    assert caplog.messages == [lost, "queue 'q' in vhost '/': the replica is whole again"]
    await bench.look(repair.LOOKS + 1)
    assert bench.wishes == 1


async def test_what_was_settled_meanwhile_needs_no_repair(bench: Bench) -> None:
    await bench.look(repair.LOOKS)
    bench.is_lacking = False
    await bench.look()
    bench.is_lacking = True
    await bench.look(repair.LOOKS)
    assert bench.wishes == 0


@pytest.mark.parametrize(
    "fault",
    [Unavailable("no majority"), MembershipError("the other members would have no majority")],
)
async def test_a_wish_that_is_refused_is_made_again_and_told_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    bench.refusals = [fault, fault]
    with caplog.at_level(logging.WARNING):
        await bench.look(repair.LOOKS + 2)
        assert bench.wishes == 0
        assert caplog.messages == [
            "queue 'q' in vhost '/': messages are lost on this disk, and its replica cannot be "
            f"made anew yet: {fault}"
        ]
        await bench.look()
    assert bench.wishes == 1


async def test_a_replica_that_is_not_whole_in_time_lets_the_next_one_have_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The wish stands in the catalog, and is asked for again."""
    monkeypatch.setattr(repair, "STEP_S", 0.0)
    bench.then = []
    await bench.look(repair.LOOKS + 2)
    assert bench.wishes == 2
    assert "whole again" not in caplog.text


async def test_a_queue_that_is_deleted_meanwhile_is_let_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.look(repair.LOOKS)
    queue, bench.queue = bench.queue, None
    await bench.look(2)
    assert bench.wishes == 0
    bench.queue = queue
    bench.then = []

    async def deleted(*_: Any) -> None:
        bench.queue = None

    monkeypatch.setattr(repair, "renew_member", deleted)
    await bench.look(repair.LOOKS + 1)
    assert "whole again" not in caplog.text


async def test_the_leader_of_a_replica_that_can_be_refilled_is_reminded(bench: Bench) -> None:
    """In a quiet group nobody would say anything that the replica could see its own state by."""
    bench.is_lacking = False
    await bench.look(2)
    assert bench.nudged == [[UID], [UID]]
    assert bench.wishes == 0


async def test_many_replicas_are_made_anew_at_the_same_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, a hundred took minutes; all at once, nothing else would be done."""
    begun: list[int] = []
    uids = list(range(3 * repair.AT_ONCE))
    monkeypatch.setattr(bench, "queue_of", lambda uid: queue(uid, "q", "n1"))
    monkeypatch.setattr(bench, "lacking", lambda: uids)
    many = repair.Repair(bench, bench.host, bench, bench.nudged.append, bench.tasks.spawn)
    may_end = asyncio.Event()

    async def renew(self: repair.Repair, uid: int) -> None:
        begun.append(uid)
        await may_end.wait()

    monkeypatch.setattr(repair.Repair, "_renew", renew)
    for _ in range(repair.LOOKS + 3):
        many.look()
        await asyncio.sleep(0)
    assert begun == uids[: repair.AT_ONCE]
    may_end.set()
    await bench.tasks.wait()
    many.look()
    await asyncio.sleep(0)
    assert len(begun) == 2 * repair.AT_ONCE


async def test_it_is_looked_as_long_as_the_broker_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "LOOK_S", 0.0)
    watching = asyncio.create_task(repair.watch(bench.repair))
    async with asyncio.timeout(60):
        await bench.wished.wait()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert bench.wishes == 1
