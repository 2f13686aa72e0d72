"""A channel's end is told to each queue once, when it has answered all that the channel sent it."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.queue import queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind
from brokerd.server.messages.channel_close import ChannelClose
from tests.unit.server.messages.fakes import batches

CONSUMER = ConsumerId("n", 1, 5, "t")
DOWN = queue_commands.encode_channel_down("n", 1, 5)


def ranges(kind: Kind) -> bytes:
    return queue_commands.encode_ranges(kind, CONSUMER, [(0, 1)])


class Groups:
    """Keeps what was sent: queue, command, whether once; and its answers."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, bool]] = []
        self.answers: list[Callable[[ReplyStatus, bytes], None]] = []

    def send(
        self,
        uid: int,
        command: bytes,
        done: Callable[[ReplyStatus, bytes], None],
        once: bool = False,
        is_lazy: bool = False,
    ) -> None:
        self.sent.append((uid, command, once))
        self.answers.append(done)

    def told(self) -> list[int]:
        return [uid for uid, command, _ in self.sent if command == DOWN]


def channel_close() -> tuple[ChannelClose, Groups]:
    groups = Groups()
    return ChannelClose(batches(groups).settlements), groups


def test_queues_that_owe_nothing_are_told_at_once_and_each_once() -> None:
    made, groups = channel_close()
    made.ended({1: DOWN, 2: DOWN})
    assert groups.sent == [(1, DOWN, True), (2, DOWN, True)]
    # Nobody waits for the answers.
    groups.answers[0](ReplyStatus.GONE, b"")
    assert groups.told() == [1, 2]


def test_a_queue_is_told_behind_the_last_answer_that_it_owes() -> None:
    """G4, R-ACK: whatever the order of the answers."""
    made, groups = channel_close()
    made.send(1, ranges(Kind.SETTLE))
    made.send(1, ranges(Kind.RETURN))
    made.sent(2)
    assert groups.sent == [(1, ranges(Kind.SETTLE), False), (1, ranges(Kind.RETURN), True)]
    made.ended({1: DOWN, 2: DOWN, 3: DOWN})
    assert groups.told() == [3]
    groups.answers[1](ReplyStatus.OK, b"")
    made.answered(2)
    assert groups.told() == [3, 2]
    groups.answers[0](ReplyStatus.GONE, b"")
    assert groups.told() == [3, 2, 1]


def test_a_queue_that_knows_the_channel_by_another_name_is_told_both_ends() -> None:
    made, groups = channel_close()
    other = queue_commands.encode_channel_down("n", 1, 6)
    made.add(1, other)
    made.ended({2: DOWN, 1: DOWN})
    assert groups.sent == [(2, DOWN, True), (1, DOWN, True), (1, other, True)]


def test_answers_before_the_end_and_of_queues_that_need_not_know_tell_nobody() -> None:
    made, groups = channel_close()
    made.send(1, ranges(Kind.SETTLE))
    groups.answers[0](ReplyStatus.OK, b"")
    made.send(2, ranges(Kind.SETTLE))
    made.ended({})
    groups.answers[1](ReplyStatus.OK, b"")
    assert groups.told() == []
