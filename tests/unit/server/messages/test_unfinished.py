"""Who goes when messages that have not come whole hold too much memory."""

from __future__ import annotations

from brokerd.server.messages.unfinished import (
    BYTES_MAX_LEAST,
    MIB,
    RESOURCE_ERROR,
    WATERMARK_SHARE,
    Unfinished,
)


class Holder:
    def __init__(self, unfinished: Unfinished, user: str, left: int = 0) -> None:
        self.user = user
        self.closed = 0
        self._unfinished = unfinished
        self._left = left

    def close(self, code: int, text: str) -> None:
        assert (code, bool(text)) == (RESOURCE_ERROR, True)
        self.closed += 1
        # As a connection does: the rest of a frame may be left.
        self._unfinished.note(self, self._left)


def test_the_oldest_of_the_user_with_most_make_room() -> None:
    unfinished = Unfinished()
    other = Holder(unfinished, "other")
    unfinished.note(other, 20 * MIB)
    hostile = [Holder(unfinished, "hostile") for _ in range(6)]
    # Next to nothing: not worth closing, however old.
    unfinished.note(hostile[0], 100)
    for holder in hostile[1:]:
        unfinished.note(holder, 15 * MIB)
    assert [holder.closed for holder in hostile] == [0, 1, 1, 1, 0, 0]
    assert not other.closed
    assert unfinished.total == 50 * MIB + 100


def test_who_sends_messages_through_is_not_old() -> None:
    unfinished = Unfinished()
    busy, idle = Holder(unfinished, "u"), Holder(unfinished, "u")
    unfinished.note(busy, 15 * MIB)
    unfinished.note(idle, 25 * MIB)
    unfinished.note(busy, 0)
    unfinished.note(busy, 30 * MIB)
    assert unfinished.total == 55 * MIB
    third = Holder(unfinished, "u")
    unfinished.note(third, 20 * MIB)
    assert (busy.closed, idle.closed, third.closed) == (0, 1, 0)


def test_one_connection_alone_may_not_have_it_all() -> None:
    unfinished = Unfinished()
    one = Holder(unfinished, "u")
    unfinished.note(one, 32 * MIB)
    assert not one.closed
    unfinished.note(one, 32 * MIB + 1)
    assert one.closed == 1
    assert unfinished.total == 0


def test_the_bound_follows_the_watermark() -> None:
    unfinished = Unfinished()
    unfinished.set_watermark(WATERMARK_SHARE * 100 * MIB)
    assert unfinished.bytes_max == 100 * MIB
    holders = [Holder(unfinished, "u", left=1000) for _ in range(5)]
    for holder in holders:
        unfinished.note(holder, 18 * MIB)
    assert not any(holder.closed for holder in holders)
    unfinished.set_watermark(0)
    assert unfinished.bytes_max == BYTES_MAX_LEAST
    assert [holder.closed for holder in holders] == [1, 1, 0, 0, 0]
    assert unfinished.total == 54 * MIB + 2000


def test_who_is_gone_holds_nothing() -> None:
    unfinished = Unfinished()
    one = Holder(unfinished, "u")
    unfinished.note(one, 0)
    unfinished.note(one, 5000)
    unfinished.note(one, 0)
    assert unfinished.total == 0
