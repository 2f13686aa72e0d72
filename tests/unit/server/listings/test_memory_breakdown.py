"""Where a member's memory goes: parts that add up to what the process uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from brokerd.cluster.groups.group_clock import Moved
from brokerd.core.catalog.catalog_objects import Queue, Record
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.listings import memory_breakdown
from brokerd.server.listings.memory_breakdown import (
    CHANNEL_BYTES,
    CODE_BYTES_MAX,
    CONNECTION_BYTES,
    FOLDED_QUEUE_BYTES,
    PARTS,
    QUEUE_BYTES,
    Holders,
    MemoryBreakdown,
)
from brokerd.server.loop.chunks import CHUNK
from tests.unit.core.queue_driver import QueueDriver

MIB = 1 << 20


@dataclass
class Connection:
    held_bytes: int = 0
    sessions: tuple[int, ...] = ()


class Catalog:
    """Knows nothing."""

    def records(self, _kind: str, _vhost: str | None = None) -> list[Record]:
        return []


@dataclass
class Member:
    """Holds what a test gives it."""

    machines: dict[int, QueueMachine] = field(default_factory=dict)
    durable: bool = True
    type: str = "quorum"
    led: dict[int, int] = field(default_factory=dict)
    opened: list[Connection] = field(default_factory=list)
    used: int = 80 * MIB
    cached: int = 0
    moved: Moved = field(default_factory=lambda: Moved(()))
    folded: set[int] = field(default_factory=set)
    #: Queues that were looked at.
    asked: list[int] = field(default_factory=list)

    @property
    def records(self) -> list[int]:
        return list(self.machines)

    def queue_of(self, uid: int) -> Queue | None:
        spec = {"type": self.type, "durable": self.durable, "auto_delete": False}
        return Queue("/", f"q{uid}", spec | {"arguments": {}, "settings": {}}, uid, ["n0"])

    def machine(self, uid: int) -> QueueMachine:
        self.asked.append(uid)
        return self.machines[uid]

    def breakdown(self) -> MemoryBreakdown:
        holders = Holders(
            queues=self,
            has_replica=self.machines.__contains__,
            is_folded=self.folded.__contains__,
            moved=self.moved,
            connections=lambda: self.opened,
            consumers=(),
            catalog=Catalog(),
            log_cache=lambda: self.cached,
        )
        return MemoryBreakdown(holders, lambda: self.used)


async def test_parts_add_up_to_what_the_process_uses() -> None:
    member = Member()
    breakdown = member.breakdown()
    await breakdown.started()
    member.used = 200 * MIB
    member.cached = 50 * MIB
    member.opened = [Connection(held_bytes=3 * MIB, sessions=(1, 2)), Connection()]
    for uid in range(2 * CHUNK + 1):
        member.machines[uid] = QueueMachine()
        member.moved.note(uid)
    found = await breakdown.take()
    assert tuple(found) == PARTS
    assert found["code"] == 80 * MIB
    assert found["log_cache"] == 50 * MIB
    assert found["connections"] == 2 * CONNECTION_BYTES + 3 * MIB
    assert found["channels"] == 2 * CHANNEL_BYTES
    assert found["quorum_queues"] == len(member.machines) * QUEUE_BYTES
    assert sum(found.values()) == 200 * MIB


async def test_queues_that_stand_still_are_not_looked_at_again() -> None:
    member, queue = Member(), QueueDriver()
    member.machines.update((uid, QueueMachine()) for uid in range(2 * CHUNK))
    member.machines[7] = queue.machine
    breakdown = member.breakdown()
    before = (await breakdown.take())["quorum_queues"]
    assert sorted(member.asked) == sorted(member.machines)
    member.asked.clear()
    queue.publish(b"x")
    del member.machines[3]
    member.moved.note(7)
    member.moved.note(3)
    after = (await breakdown.take())["quorum_queues"]
    assert member.asked == [7]
    assert after == before + queue.machine.memory_bytes() - QUEUE_BYTES


async def test_a_folded_queue_is_not_made_again_to_be_counted() -> None:
    member = Member()
    member.machines.update((uid, QueueMachine()) for uid in range(3))
    breakdown = member.breakdown()
    assert (await breakdown.take())["quorum_queues"] == 3 * QUEUE_BYTES
    member.asked.clear()
    member.folded.add(1)
    member.moved.note(1)
    found = await breakdown.take()
    assert found["quorum_queues"] == 2 * QUEUE_BYTES + FOLDED_QUEUE_BYTES
    assert member.asked == []


async def test_who_asks_together_gets_the_same() -> None:
    member = Member(used=200 * MIB)
    member.machines.update((uid, QueueMachine()) for uid in range(2 * CHUNK))
    breakdown = member.breakdown()
    found = await asyncio.gather(breakdown.take(), breakdown.take())
    assert [each["quorum_queues"] for each in found] == [2 * CHUNK * QUEUE_BYTES] * 2
    assert len(member.asked) == 2 * CHUNK


async def test_what_a_member_read_from_its_disk_is_no_code() -> None:
    member = Member(used=900 * MIB, cached=60 * MIB)
    breakdown = member.breakdown()
    await breakdown.started()
    assert (await breakdown.take())["code"] == CODE_BYTES_MAX


async def test_estimates_that_are_too_high_leave_nothing_for_the_rest() -> None:
    member = Member()
    breakdown = member.breakdown()
    await breakdown.started()
    member.cached = 20 * MIB
    found = await breakdown.take()
    assert found["allocated_unused"] == found["other"] == 0
    assert sum(found.values()) == 100 * MIB


def test_a_queue_without_a_disk_holds_its_bodies_and_one_with_a_disk_does_not() -> None:
    assert memory_breakdown.queue_bytes(400, 50_000, is_durable=True) == QUEUE_BYTES + 400
    assert memory_breakdown.queue_bytes(400, 50_000, is_durable=False) == QUEUE_BYTES + 50_400


def test_a_deep_queue_costs_a_few_bytes_for_each_message() -> None:
    """Packed (ready_spans.py); as they are near the ends."""
    queue = QueueDriver()
    queue.publish(b"x")
    one = queue.machine.memory_bytes()
    for _ in range(1500):
        queue.publish(b"x")
    assert 40 < queue.machine.memory_bytes() / 1500 < one
