"""Sums over a member's queues and groups, as metrics and listings tell them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from brokerd.server.listings import rows
from brokerd.server.observe import metrics_detailed
from brokerd.server.observe.figures import Figures, Sources
from tests.unit.server.moving_queues import MovingQueues


@dataclass
class Services:
    """What sums are made from, and nothing else."""

    queues: MovingQueues
    host: MovingQueues
    groups: MovingQueues


def services(member: MovingQueues) -> Any:
    return Services(member, member, member)


@pytest.fixture
def member() -> MovingQueues:
    member = MovingQueues()
    for uid in range(1, 9):
        member.declare(uid, "/" if uid % 2 else "v", is_led=uid != 8)
    for uid in (1, 2, 5, 8):
        member.publish(uid, *[b"x" * 10] * 10 * uid)
    member.publish(3, b"taken")
    member.replicas[3].queue.consume("t")
    member.replicas[2].queue.consume("late", prefetch=5)
    member.settle()
    return member


async def _figures(member: MovingQueues) -> Figures:
    figures = Figures(cast(Sources, services(member)))
    await figures._add_queues()
    await figures._add_groups()
    return figures


async def test_queues_led_here_are_added_up(member: MovingQueues) -> None:
    figures = await _figures(member)
    assert (figures.queues_led, figures.queues_unattended, figures.ready_max) == (7, 2, 50)
    assert figures.gauges == {
        "ready": 75,
        "unacked": 6,
        "ready_bytes": 750,
        "unacked_bytes": 55,
        "dl_pending": 0,
        "dl_old_terms": 0,
        "delayed": 0,
        "consumers": 2,
    }
    counted = {name: value for name, value in figures.counters.items() if value}
    assert counted == {"enq": 81, "enq_bytes": 805, "dlv": 6}


async def test_groups_here_are_added_up(member: MovingQueues) -> None:
    member.replicas[4].lag = 3
    member.replicas[5].is_damaged = True
    groups = (await _figures(member)).groups
    walked = member.walked_groups()
    assert groups == {**walked, "lagging": 3}
    assert (groups["here"], groups["is_leader"], groups["is_damaged"]) == (8, 7, 1)


async def test_a_member_that_led_and_has_nothing_adds_up_to_nothing() -> None:
    figures = await _figures(MovingQueues())
    assert (figures.queues_led, figures.ready_max, figures.groups["here"]) == (0, 0, 0)


async def test_a_member_is_caught_up_when_all_is_applied_and_led(member: MovingQueues) -> None:
    assert await rows.is_caught_up(services(member))
    member.replicas[4].lag = 3
    member.note(4)
    assert not await rows.is_caught_up(services(member))
    member.replicas[4].lag = 0
    member.note(4)
    assert await rows.is_caught_up(services(member))
    member.replicas[5].leader = None
    assert not await rows.is_caught_up(services(member))


async def test_figures_by_queue_are_of_those_led_here_and_by_group_of_all(
    member: MovingQueues,
) -> None:
    asked = ["queue_coarse_metrics", "ra_metrics"]
    await metrics_detailed._of_queues(
        cast(Sources, services(member)), metrics_detailed.Asked(frozenset(asked), frozenset())
    )
    member.publish(6)
    wanted = metrics_detailed.asked(asked, ["v"])
    assert wanted is not None
    parts = await metrics_detailed._of_queues(cast(Sources, services(member)), wanted)
    lines = b"".join(parts).decode().splitlines()
    assert [line for line in lines if line.startswith("rabbitmq_detailed_queue_messages{")] == [
        'rabbitmq_detailed_queue_messages{vhost="v",queue="q2"} 20',
        'rabbitmq_detailed_queue_messages{vhost="v",queue="q4"} 0',
        'rabbitmq_detailed_queue_messages{vhost="v",queue="q6"} 1',
    ]
    applied = [line for line in lines if line.startswith("rabbitmq_detailed_raft_log_last_applied")]
    assert applied == [
        f'rabbitmq_detailed_raft_log_last_applied_index{{vhost="v",queue="q{uid}"}} '
        f"{member.replicas[uid].queue.index}"
        for uid in (2, 4, 6, 8)
    ]
    assert "# TYPE rabbitmq_detailed_raft_term_total counter" in lines
