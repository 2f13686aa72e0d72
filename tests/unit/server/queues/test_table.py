"""The table of all queues' figures: right after whatever moved, and nothing else is looked at."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.cluster.groups import group_clock
from brokerd.server.queues import table
from brokerd.server.queues.table import AT, COLUMNS
from tests.unit.server.moving_queues import MovingQueues

#: More than a slice has.
MANY = 500


@pytest.fixture
def member() -> MovingQueues:
    """Queues in two vhosts, every third of them led elsewhere, some with messages."""
    member = MovingQueues()
    for uid in range(1, 31):
        member.declare(uid, "/" if uid % 2 else "v", is_led=bool(uid % 3))
        if uid % 5 == 0:
            member.publish(uid, *[b"x" * uid] * uid)
    member.settle()
    return member


async def check(member: MovingQueues) -> None:
    """What is kept is what a walk finds."""
    member.table.take()
    assert await member.table.add_groups() == member.walked_groups()
    assert await member.added_led() == member.walked_led()
    for uid in range(1, 40):
        is_here = uid in member.replicas and uid in member.records
        assert member.kept(uid) == (member.of_queue(uid) if is_here else None), uid


async def test_what_is_kept_is_what_a_walk_finds(member: MovingQueues) -> None:
    await check(member)
    assert sorted(member.asked) == list(range(1, 31))


async def test_nobody_watches_and_nothing_is_read_before_somebody_asks(
    member: MovingQueues,
) -> None:
    assert (member.watchers, member.asked) == ([], [])
    await member.table.add_groups()
    await member.table.add_groups()
    assert len(member.watchers) == 1


async def test_queues_that_stand_still_are_not_read_again(member: MovingQueues) -> None:
    await check(member)
    member.asked.clear()
    await check(member)
    assert member.asked == []
    member.publish(7, b"1", b"2")
    member.follow(8)
    member.settle()
    await check(member)
    assert sorted(member.asked) == [7, 8]


async def test_a_queue_that_has_not_settled_is_read_at_each_question(member: MovingQueues) -> None:
    await check(member)
    for _ in range(2):
        member.asked.clear()
        member.publish(7)
        await check(member)
        assert set(member.asked) == {7}


async def test_what_only_one_queue_is_wanted_of_leaves_the_others_unread(
    member: MovingQueues,
) -> None:
    member.table.take()
    assert member.kept(5) == member.of_queue(5)
    assert member.kept(5) == member.of_queue(5)
    assert member.asked == [5]


async def test_after_more_moves_than_are_noted_all_are_read(
    member: MovingQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check(member)
    monkeypatch.setattr(group_clock, "MOVED_MAX", 3)
    for uid in range(1, 9):
        member.publish(uid)
    member.delete(20)
    member.settle()
    member.asked.clear()
    await check(member)
    assert sorted(member.asked) == [uid for uid in range(1, 31) if uid != 20]


async def test_who_asks_together_shares_the_reading_and_gets_the_same() -> None:
    member = MovingQueues()
    for uid in range(MANY):
        member.declare(uid)
    member.settle()
    found = await asyncio.gather(*(member.table.add_groups() for _ in range(3)))
    assert found == [member.walked_groups()] * 3
    assert len(member.asked) == MANY


async def test_what_one_who_goes_away_has_not_read_is_left_to_the_next() -> None:
    member = MovingQueues()
    for uid in range(MANY):
        member.declare(uid)
    member.settle()
    first = asyncio.create_task(member.table.add_groups())
    while not member.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert len(member.asked) < MANY
    assert await member.table.add_groups() == member.walked_groups()
    assert len(member.asked) == MANY


async def test_the_row_of_a_deleted_queue_is_taken_by_another_one(
    member: MovingQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "GROWTH", 10)
    await check(member)
    assert len(member.table.vhosts) == 30
    for uid in (5, 10, 15):
        member.delete(uid)
    await check(member)
    # What nobody has holds nothing: sums go over all rows.
    assert sum(member.table.cells[AT["ready"] :: len(COLUMNS)]) == 20 + 25 + 30
    for uid in (31, 32, 33):
        member.declare(uid, "w")
        member.publish(uid)
    await check(member)
    assert len(member.table.vhosts) == 30
    member.declare(34)
    await check(member)
    assert len(member.table.vhosts) == 40


async def test_a_queue_that_comes_or_goes_after_the_question_is_seen(member: MovingQueues) -> None:
    await check(member)
    member.table.take()
    member.declare(31)
    member.publish(31)
    assert member.kept(31) == member.of_queue(31)


async def test_a_queue_that_is_deleted_while_a_walk_rests_is_left_out() -> None:
    member = MovingQueues()
    for uid in range(MANY):
        member.declare(uid)
    walk = asyncio.create_task(member.added_led())
    while not member.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(member.asked) < MANY
    member.delete(MANY - 1)
    member.follow(MANY - 2)
    assert await walk == member.walked_led()
    # Whoever has been read already and goes then is as it was when it was read.
    member.delete(0)
    assert await member.added_led() == member.walked_led()


async def test_leadership_counts_that_ended_without_a_move(member: MovingQueues) -> None:
    """A replica that stops is told of before its leadership is."""
    await check(member)
    del member.led[4]
    assert await member.added_led() == member.walked_led()


async def test_leadership_counts_that_begins_without_a_move(member: MovingQueues) -> None:
    """Whoever hears of it may hear after the group has been read."""
    await check(member)
    member.led[3] = 1
    assert await member.added_led() == member.walked_led()


async def test_damage_counts_that_is_found_and_mended_without_a_move(member: MovingQueues) -> None:
    await check(member)
    for is_damaged in (True, False):
        member.replicas[6].is_damaged = is_damaged
        assert (await member.table.add_groups())["is_damaged"] == is_damaged
    member.asked.clear()
    await member.table.add_groups()
    assert member.asked == []


async def test_a_group_without_a_record_is_no_queue(member: MovingQueues) -> None:
    """The catalog is one; a queue's record may come later."""
    record = member.records.pop(3)
    await check(member)
    assert 3 not in member.asked
    member.records[3] = record
    await check(member)
    assert 3 in member.asked


async def test_what_is_no_number_stands_beside(member: MovingQueues) -> None:
    member.declare(31, single_active_consumer=True, delivery_limit=7)
    member.table.take()
    table, queue = member.table, member.replicas[31].queue
    assert member.kept(31) == member.of_queue(31)
    assert table.single_of(31) is None
    queue.consume("tag \udcff")
    table.take()
    assert member.kept(31) == member.of_queue(31)
    assert table.single_of(31) == "tag \udcff"
    assert table.levels_of(31) == ()
    member.publish(31, b"x", b"y")
    queue.channel_down()
    table.take()
    assert member.kept(31) == member.of_queue(31)
    assert table.levels_of(31) == ((0, 2),)
    member.delete(31)
    table.take()
    assert table.row_of(31) is None
    assert not any(table.singles)
    assert not any(table.levels)


async def test_nothing_is_kept_when_nobody_asks_for_a_while(
    member: MovingQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "IDLE_S", 0.05)
    await check(member)
    async with asyncio.timeout(5):
        # Nothing tells of it.
        while member.table.vhosts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not member.table.cells
    member.asked.clear()
    await check(member)
    assert sorted(member.asked) == list(range(1, 31))


async def test_who_has_no_leader_is_known_without_a_walk(member: MovingQueues) -> None:
    member.settle()
    assert await member.table.leaderless() == []
    member.lose(1)
    assert await member.table.leaderless() == [1]
    member.asked.clear()
    member.settle()
    await member.table.leaderless()
    assert member.asked == [1]
    member.lead(1)
    member.lose(2)
    member.lose(3)
    member.delete(3)
    assert await member.table.leaderless() == [2]
