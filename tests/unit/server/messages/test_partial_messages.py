"""Who goes when messages that have not come whole hold too much memory."""

from __future__ import annotations

from brokerd.server.messages.partial_messages import (
    BYTES_MAX_LEAST,
    MIB,
    RESOURCE_ERROR,
    WATERMARK_SHARE,
    PartialMessages,
)


class Holder:
    def __init__(self, partial_messages: PartialMessages, user: str, left: int = 0) -> None:
        self.user = user
        self.closed = 0
        self._partial_messages = partial_messages
        self._left = left

    def close(self, code: int, text: str) -> None:
        assert (code, bool(text)) == (RESOURCE_ERROR, True)
        self.closed += 1
        # As a connection does: the rest of a frame may be left.
        self._partial_messages.note(self, self._left)


def test_the_oldest_of_the_user_with_most_make_room() -> None:
    partial_messages = PartialMessages()
    other = Holder(partial_messages, "other")
    partial_messages.note(other, 20 * MIB)
    hostile = [Holder(partial_messages, "hostile") for _ in range(6)]
    # Next to nothing: not worth closing, however old.
    partial_messages.note(hostile[0], 100)
    for holder in hostile[1:]:
        partial_messages.note(holder, 15 * MIB)
    assert [holder.closed for holder in hostile] == [0, 1, 1, 1, 0, 0]
    assert not other.closed
    assert partial_messages.total == 50 * MIB + 100


def test_who_sends_messages_through_is_not_old() -> None:
    partial_messages = PartialMessages()
    busy, idle = Holder(partial_messages, "u"), Holder(partial_messages, "u")
    partial_messages.note(busy, 15 * MIB)
    partial_messages.note(idle, 25 * MIB)
    partial_messages.note(busy, 0)
    partial_messages.note(busy, 30 * MIB)
    assert partial_messages.total == 55 * MIB
    third = Holder(partial_messages, "u")
    partial_messages.note(third, 20 * MIB)
    assert (busy.closed, idle.closed, third.closed) == (0, 1, 0)


def test_one_connection_alone_may_not_have_it_all() -> None:
    partial_messages = PartialMessages()
    one = Holder(partial_messages, "u")
    partial_messages.note(one, 32 * MIB)
    assert not one.closed
    partial_messages.note(one, 32 * MIB + 1)
    assert one.closed == 1
    assert partial_messages.total == 0


def test_the_bound_follows_the_watermark() -> None:
    partial_messages = PartialMessages()
    partial_messages.set_watermark(WATERMARK_SHARE * 100 * MIB)
    assert partial_messages.bytes_max == 100 * MIB
    holders = [Holder(partial_messages, "u", left=1000) for _ in range(5)]
    for holder in holders:
        partial_messages.note(holder, 18 * MIB)
    assert not any(holder.closed for holder in holders)
    partial_messages.set_watermark(0)
    assert partial_messages.bytes_max == BYTES_MAX_LEAST
    assert [holder.closed for holder in holders] == [1, 1, 0, 0, 0]
    assert partial_messages.total == 54 * MIB + 2000


def test_who_is_gone_holds_nothing() -> None:
    partial_messages = PartialMessages()
    one = Holder(partial_messages, "u")
    partial_messages.note(one, 0)
    partial_messages.note(one, 5000)
    partial_messages.note(one, 0)
    assert partial_messages.total == 0
