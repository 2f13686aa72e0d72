"""Whether a client that publishes is read further, by what is in flight (R-ALM-10)."""

from __future__ import annotations

import asyncio

from brokerd.server.queues.in_flight import MEMBER_BYTES_MAX_LEAST, WATERMARK_SHARE, InFlight

MOST = MEMBER_BYTES_MAX_LEAST


def in_flight(queue_bytes_max: int, by_queue: dict[int, int]) -> InFlight:
    made = InFlight(queue_bytes_max)
    for uid, size in by_queue.items():
        made.add(uid, size)
    return made


def test_a_queue_with_too_much_in_flight_has_to_come_down_to_half() -> None:
    for pending, room in ((100, -1), (101, 50), (200, 50)):
        made = in_flight(100, {1: pending})
        assert made.room_to_await(1, is_heavy=True) == room
        assert made.room_to_await(1, is_heavy=False) == -1
        assert made.room_to_await(2, is_heavy=True) == -1


def test_at_twice_as_much_everyone_waits() -> None:
    assert in_flight(100, {1: 201}).room_to_await(1, is_heavy=False) == 50


def test_a_member_with_too_much_in_flight_holds_who_has_more_than_a_share() -> None:
    """No queue has too much, all together have; one that has little goes on."""
    made = in_flight(MOST, {1: MOST // 2, 2: MOST // 2})
    assert made.room_to_await(1, is_heavy=True) == -1
    made.add(3, MOST // 8)
    assert made.room_to_await(3, is_heavy=True) == -1
    assert made.room_to_await(1, is_heavy=True) == (MOST // 2 - 1) // 2
    assert made.room_to_await(1, is_heavy=False) == -1
    # With twice as much everyone waits.
    made = in_flight(MOST, {1: MOST, 2: MOST, 3: 10})
    assert [made.room_to_await(uid, is_heavy=False) for uid in (1, 3)] == [(MOST - 1) // 2, 4]
    made.remove(2, 10)
    assert made.room_to_await(3, is_heavy=False) == -1


async def test_who_waits_for_fewer_bytes_hears_once() -> None:
    made, heard = in_flight(100, {1: 50, 2: 50}), list[str]()
    made.add(1, 4)
    made.when_below(1, 10, lambda: heard.append("few"))
    made.when_below(1, 0, lambda: heard.append("none"))
    made.remove(2, 50)
    made.remove(1, 4)
    await asyncio.sleep(0)
    assert heard == []
    made.add(1, 4)
    made.remove(1, 50)
    # Never from within.
    assert heard == []
    await asyncio.sleep(0)
    assert heard == ["few"]
    made.remove(1, 4)
    await asyncio.sleep(0)
    assert heard == ["few", "none"]


def test_a_members_bound_follows_the_watermark() -> None:
    made = InFlight(5)
    gib = 1 << 30
    for watermark, expected in ((8 * gib, gib), (1000, MOST)):
        made.set_watermark(watermark)
        assert made.member_bytes_max == expected == max(watermark // WATERMARK_SHARE, MOST)
