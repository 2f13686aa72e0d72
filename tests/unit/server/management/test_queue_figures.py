"""Figures of queues from the columns: by queue, to sort by, and added up by vhost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.server.management import queue_figures
from brokerd.server.management.figures import Rows
from brokerd.server.management.ports import ManagementServices
from tests.unit.server.moving_queues import SPEC, MovingQueues

COUNT = len(queue_figures.STILL)


@dataclass
class Rates:
    """Queues whose rates are not 0."""

    gained: dict[int, tuple[float, ...]] = field(default_factory=dict)
    wanted: int = 0

    @property
    def moving(self) -> set[int]:
        return set(self.gained)

    def of(self, uid: int) -> tuple[float, ...]:
        return self.gained.get(uid, ())

    def want(self) -> None:
        self.wanted += 1


@dataclass
class Found:
    rows: Rows

    def all(self) -> Rows:
        return self.rows


@dataclass
class Figures:
    """What other members answer."""

    rows: Rows = field(default_factory=list)
    makers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    asked: int = 0

    def register(self, kind: str, maker: Callable[[], Any]) -> None:
        self.makers[kind] = maker

    async def everywhere(self, _: str) -> Found:
        self.asked += 1
        return Found(self.rows)


@dataclass
class View:
    count: int = 3

    def members(self) -> list[str]:
        return ["n0", "n1", "n2"][: self.count]


@dataclass
class Catalog:
    view: View = field(default_factory=View)


@dataclass
class Listed:
    groups: MovingQueues
    queues: MovingQueues


class Member:
    """What figures are made of."""

    def __init__(self) -> None:
        self.queues = MovingQueues()
        self.rates = Rates()
        self.figures = Figures()
        self.catalog = Catalog()
        self.listed = Listed(self.queues, self.queues)
        for uid, vhost in ((1, "/"), (2, "/"), (3, "v"), (4, "v")):
            self.queues.declare(uid, vhost, is_led=uid != 4)
        self.queues.publish(1, b"x", b"yy")
        self.queues.replicas[1].queue.consume("t")
        self.queues.publish(3, b"zzz")
        self.queues.publish(4, b"w")
        self.queues.settle()
        queue_figures.register(self.services)

    @property
    def services(self) -> ManagementServices:
        return cast(Any, self)

    def queue(self, uid: int) -> Queue:
        return self.queues.records[uid]

    def rate(self, uid: int, **gained: float) -> None:
        rates = list(queue_figures.STILL)
        names = (*queue_figures.GAUGES, *queue_figures.COUNTERS)
        for name, value in gained.items():
            rates[names.index(name)] = value
        self.rates.gained[uid] = tuple(rates)


@pytest.fixture
def member() -> Member:
    return Member()


async def test_figures_are_those_of_the_queues_machine(member: Member) -> None:
    of = await queue_figures.known(member.services, list(map(member.queue, (1, 2))))
    found = of(member.queue(1))
    machine = member.queues.replicas[1].queue.machine
    assert found == {
        "leader": "n0",
        "sample": (2, 0, 2, 2, 2, 0, 0, 0),
        "rates": queue_figures.STILL,
        "ready_bytes": 0,
        "unacked_bytes": machine.unacked_bytes,
        "dlx": 0,
        "delayed": 0,
        "returned": 0,
        "publishers": 1,
        "levels": (),
        "consumers": 1,
        "memory": 8_000 + machine.memory_bytes(),
        "head_ms": None,
        "used_ms": 1_000,
        "limit": None,
        "single": None,
    }
    empty = of(member.queue(2))
    assert empty is not None
    assert (empty["head_ms"], empty["used_ms"], empty["consumers"]) == (None, None, 0)
    light = queue_figures.orders(member.services, member.queue(1))
    assert light == {name: found[name] for name in ("sample", "rates", "consumers")}


async def test_a_queue_that_is_elsewhere_is_as_its_leader_says(member: Member) -> None:
    there = Queue("/", "there", SPEC, 9, ["n1"])
    member.figures.rows = [{"uid": 9, "sample": (5,) * COUNT, "consumers": 2}, {"uid": 8}]
    of = await queue_figures.known(member.services, [member.queue(2), there])
    assert of(there) == member.figures.rows[0]
    assert of(Queue("/", "gone", SPEC, 8, ["n1"])) is None
    # Who is here has been looked up without a look at its machine.
    assert member.queues.asked == []
    values = await queue_figures.column_of_all(
        member.services, [member.queue(1), there], "messages"
    )
    assert values == [2, 5]


async def test_a_queue_that_left_while_a_list_is_made_has_no_figures(member: Member) -> None:
    queue = member.queue(3)
    of = await queue_figures.known(member.services, [queue])
    assert of(queue) is not None
    member.queues.leave(3)
    assert of(queue) is None


@pytest.mark.parametrize("column", queue_figures.ORDERS)
async def test_a_list_is_sorted_by_what_figures_say(member: Member, column: str) -> None:
    member.rate(1, messages=1.5, enq=2.0)
    member.rate(3, messages_ready=0.5, dlv=3.0)
    queues = [member.queue(uid) for uid in (1, 2, 3, 4)]
    values = await queue_figures.column_of_all(member.services, queues, column)
    take = queue_figures.ORDERS[column]
    light = [queue_figures.orders(member.services, queue) for queue in queues]
    assert values == [take(found) for found in light if found is not None]
    assert member.figures.asked == 0


async def test_each_list_sees_what_moved_since_the_one_before(member: Member) -> None:
    queues = [member.queue(uid) for uid in (1, 2)]
    for count in (0, 1, 2):
        of = await queue_figures.known(member.services, queues)
        found = of(queues[1])
        assert found is not None
        assert found["sample"][0] == count
        member.queues.publish(2)
        member.queues.settle()
    assert await queue_figures.column_of_all(member.services, queues, "messages") == [2, 3]
    member.queues.publish(2)
    assert await queue_figures.column_of_all(member.services, queues, "messages") == [2, 4]


async def test_totals_are_of_the_queues_led_here_by_vhost(member: Member) -> None:
    member.rate(1, messages=1.5)
    member.rate(2, messages=0.5, enq=2.0)
    # Led elsewhere, and the member itself.
    member.rate(4, messages=7.0)
    member.rate(0, messages=9.0)
    rows = await member.figures.makers[queue_figures.TOTALS]()
    assert {row["vhost"]: (row["sums"], row["rates"], row["consumers"]) for row in rows} == {
        "/": ([2, 0, 2, 2, 2, 0, 0, 0], [2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0], 1),
        "v": ([1, 1, 0, 1, 0, 0, 0, 0], [0.0] * COUNT, 0),
    }
    member.queues.asked.clear()
    assert await member.figures.makers[queue_figures.TOTALS]() == rows
    assert member.queues.asked == []
    assert member.rates.wanted == 2


async def test_others_are_told_of_queues_that_not_every_member_has(member: Member) -> None:
    assert [row["uid"] for row in await member.figures.makers[queue_figures.QUEUES]()] == [1, 2, 3]
    member.catalog.view.count = 1
    assert await member.figures.makers[queue_figures.QUEUES]() == []
