"""Enqueue batches of one channel, and what their queues answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.in_flight import HEAVY_BYTES
from brokerd.server.queues.stream import ChannelStream
from brokerd.server.queues.turn import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from tests.unit.server.messages import fakes

ROUTE = ("", "q")
CONTENT: Content = (ROUTE, b"\0\0", b"body", b"")
FAREWELL = queue_commands.encode_channel_down("n", 1, 5)


class _Groups:
    """Keeps what was sent, with its answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, enqueue_commands.EnqueueView, Any]] = []
        self.channel_downs: list[int] = []
        self.refusing: set[int] = set()

    def refuses_lines(self, uid: int) -> bool:
        return uid in self.refusing

    def send(
        self,
        uid: int,
        command: bytes,
        done: Any,
        once: bool = False,
        early: bytes = b"",
        line: object = None,
        is_lazy: bool = False,
    ) -> None:
        assert once == (command == FAREWELL)
        if once:
            self.channel_downs.append(uid)
            return
        self.sent.append((uid, enqueue_commands.EnqueueView(command), done))


@dataclass(frozen=True)
class _Queue:
    uid: int


def publisher() -> tuple[ChannelStream, _Groups, list[tuple[int, int, int]], list[int]]:
    """Return a publisher, what it sends, what it reports, and the bytes under way."""
    groups, outcomes, flight = _Groups(), cast(list[tuple[int, int, int]], []), cast(list[int], [])
    made = ChannelStream(fakes.turn(groups), 5, outcomes.extend, in_flight=flight.append)
    return made, groups, outcomes, flight


def test_one_read_becomes_one_batch_per_queue_with_numbers_without_gaps() -> None:
    """design/hot-path.md rule 1."""
    made, groups, _, flight = publisher()
    made.publish([_Queue(1), _Queue(2)], [CONTENT] * 3, 1)
    made.publish([_Queue(1)], [CONTENT], 4)
    made.flush()
    made.publish([_Queue(1)], [CONTENT], 5)
    made.flush()
    rows = [(uid, view.first_sequence, view.count) for uid, view, _ in groups.sent]
    assert rows == [(1, 1, 4), (2, 1, 3), (1, 5, 1)]
    assert all(size > 0 for size in flight)


def test_while_two_batches_are_on_their_way_the_next_one_waits_and_grows() -> None:
    """hot-path.md rule 1: what is there when the previous one ends goes together, in order."""
    made, groups, outcomes, flight = publisher()
    for number in range(1, 6):
        made.publish([_Queue(1)], [CONTENT], number)
        made.offer()
    made.publish([_Queue(2)], [CONTENT], 6)
    made.offer()
    rows = [(uid, view.first_sequence, view.count) for uid, view, _ in groups.sent]
    assert rows == [(1, 1, 1), (1, 2, 1), (2, 1, 1)]
    # What waits counts against the connection's budget as well.
    assert sum(flight) == 6 * (len(CONTENT[1]) + len(CONTENT[2]))
    taken = enqueue_commands.encode_enqueue_reply(enqueue_commands.EnqueueStatus.OK, 1)
    groups.sent[0][2](ReplyStatus.OK, taken)
    uid, view, answer = groups.sent[3]
    assert (uid, view.first_sequence, view.count) == (1, 3, 3)
    groups.sent[1][2](ReplyStatus.OK, taken)
    answer(
        ReplyStatus.OK, enqueue_commands.encode_enqueue_reply(enqueue_commands.EnqueueStatus.OK, 3)
    )
    assert outcomes == [(1, 1, 1), (2, 1, 1), (3, 3, 3)]
    made.publish([_Queue(1)], [CONTENT], 7)
    made.offer()
    assert len(groups.sent) == 5


def test_nothing_waits_when_something_else_follows_or_the_channel_ends() -> None:
    made, groups, _, _ = publisher()
    for number in range(1, 5):
        made.publish([_Queue(1)], [CONTENT], number)
        made.offer()
    made.flush()
    assert [view.count for _, view, _ in groups.sent] == [1, 1, 2]
    made.publish([_Queue(1)], [CONTENT], 5)
    made.offer()
    assert len(groups.sent) == 3
    made.close()
    assert [view.first_sequence for _, view, _ in groups.sent] == [1, 2, 3, 5]


def test_batches_are_cut_at_their_limit() -> None:
    made, groups, _, _ = publisher()
    for first in range(1, BATCH_MESSAGES_MAX + 2):
        made.publish([_Queue(1)], [CONTENT], first)
    made.flush()
    assert [view.count for _, view, _ in groups.sent] == [BATCH_MESSAGES_MAX, 1]


def test_a_large_message_goes_alone() -> None:
    """One of the largest size that a profile allows, and what waited before it, would be more than
    a command may have: the number would be used up, and nothing sent.
    """
    made, groups, _, _ = publisher()
    large = (ROUTE, b"", bytes(BATCH_BYTES_MAX), b"")
    made.publish([_Queue(1)], [CONTENT], 1)
    made.publish([_Queue(1)], [large], 2)
    made.publish([_Queue(1)], [CONTENT], 3)
    made.flush()
    rows = [(view.first_sequence, view.count) for _, view, _ in groups.sent]
    assert rows == [(1, 1), (2, 1), (3, 1)]


def test_a_deleted_queue_counts_as_taken_over_and_bytes_are_given_back() -> None:
    """R-PC-7."""
    made, groups, outcomes, flight = publisher()
    made.publish([_Queue(1)], [CONTENT] * 2, 1)
    made.publish([_Queue(1)], [CONTENT], 9)
    made.flush()
    groups.sent[0][2](ReplyStatus.GONE, b"")
    assert outcomes == [(1, 2, 2), (9, 1, 1)]
    assert sum(flight) == 0
    made.leave()
    assert groups.channel_downs == []


def test_after_the_end_outcomes_interest_nobody() -> None:
    """R-PC-9."""
    made, groups, outcomes, flight = publisher()
    made.publish([_Queue(1)], [CONTENT], 1)
    made.close()
    groups.sent[0][2](ReplyStatus.GONE, b"")
    assert outcomes == []
    assert sum(flight) == 0


def test_a_queue_hears_of_the_channels_end_when_it_has_answered_all_its_batches() -> None:
    """R-QQ-8: a batch that goes again behind the channel's end would be new to the queue."""
    made, groups, outcomes, _ = publisher()
    taken = enqueue_commands.encode_enqueue_reply(enqueue_commands.EnqueueStatus.OK, 1)
    for uid, number in ((1, 1), (1, 2), (2, 3)):
        made.publish([_Queue(uid)], [CONTENT], number)
        made.flush()
    groups.sent[2][2](ReplyStatus.OK, taken)
    made.publish([_Queue(1)], [CONTENT], 4)
    made.leave({2: None, 3: None})
    assert groups.channel_downs == [2, 3]
    for answer in (sent[2] for sent in (*groups.sent[:2], groups.sent[3])):
        assert groups.channel_downs == [2, 3]
        answer(ReplyStatus.OK, taken)
    assert groups.channel_downs == [2, 3, 1]
    assert outcomes == [(3, 1, 1)]


def test_a_channel_that_ends_within_its_own_answer_says_so_once() -> None:
    """R-QQ-8."""
    groups = _Groups()
    made: ChannelStream
    made = ChannelStream(fakes.turn(groups), 5, lambda _: made.leave())
    made.publish([_Queue(1)], [CONTENT], 1)
    made.flush()
    taken = enqueue_commands.encode_enqueue_reply(enqueue_commands.EnqueueStatus.OK, 1)
    groups.sent[0][2](ReplyStatus.OK, taken)
    assert groups.channel_downs == [1]


async def test_what_a_queue_refuses_for_good_is_refused_before_it_takes_numbers() -> None:
    """The queue need not hear of the end of a channel that it never heard of."""
    made, groups, outcomes, flight = publisher()
    groups.refusing.add(1)
    made.publish([_Queue(1), _Queue(2)], [CONTENT] * 2, 1)
    made.flush()
    assert [uid for uid, _, _ in groups.sent] == [2]
    # Never from within: the channel is in the middle of its publishes.
    assert outcomes == []
    await asyncio.sleep(0)
    assert outcomes == [(1, 2, 0)]
    assert sum(flight) == 2 * (len(CONTENT[1]) + len(CONTENT[2]))
    groups.refusing.clear()
    made.publish([_Queue(1)], [CONTENT], 3)
    made.leave()
    assert [(uid, view.first_sequence) for uid, view, _ in groups.sent] == [(2, 1), (1, 1)]


async def test_nobody_hears_of_a_refusal_after_the_channels_end() -> None:
    made, groups, outcomes, _ = publisher()
    groups.refusing.add(1)
    made.publish([_Queue(1)], [CONTENT], 1)
    made.leave()
    await asyncio.sleep(0)
    assert (outcomes, groups.sent, groups.channel_downs) == ([], [], [])


def test_what_was_refused_on_its_way_may_have_arrived_so_its_numbers_are_not_used_again() -> None:
    made, groups, outcomes, _ = publisher()
    for number in (1, 2):
        made.publish([_Queue(1)], [CONTENT], number)
        made.flush()
    for _, _, answer in list(groups.sent):
        answer(ReplyStatus.REFUSED, b"is damaged")
    assert outcomes == [(1, 1, 0), (2, 1, 0)]
    made.publish([_Queue(1)], [CONTENT], 3)
    made.flush()
    (_, old, _), _, (_, new, _) = groups.sent
    assert new.channel != old.channel
    assert new.first_sequence == 1


class _Source:
    """A socket that is read, or not."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def hold_flow(self, reason: str) -> None:
        self.held.append(reason)

    def release_flow(self, reason: str) -> None:
        self.held.remove(reason)


TAKEN = enqueue_commands.encode_enqueue_reply(enqueue_commands.EnqueueStatus.OK, 1)


def send(made: ChannelStream, uid: int, size: int = 4) -> None:
    """Publish one message."""
    made.publish([_Queue(uid)], [(ROUTE, b"\0\0", b"x" * size, b"")], 1)
    made.flush()


async def test_a_queue_with_too_much_in_flight_holds_who_sends_it_much() -> None:
    """R-ALM-10: until half of it has arrived; other queues are nobody's reason to wait."""
    groups, source = _Groups(), _Source()
    client = QueueClient(fakes.turn(groups), 1)
    client.in_flight.queue_bytes_max = 2 * HEAVY_BYTES
    made, own = client.open(5, source=source), client.open(6)
    send(made, 1, HEAVY_BYTES)
    assert source.held == []
    send(own, 1, HEAVY_BYTES)
    send(made, 2, HEAVY_BYTES)
    assert source.held == []
    send(made, 1)
    send(made, 1, HEAVY_BYTES)
    assert source.held == ["queue 1 of 5"]
    answers = [answer for uid, _, answer in groups.sent if uid == 1]
    for answer in answers[:2]:
        answer(ReplyStatus.OK, TAKEN)
        await asyncio.sleep(0)
        assert source.held == ["queue 1 of 5"]
    answers[3](ReplyStatus.OK, TAKEN)
    await asyncio.sleep(0)
    assert source.held == []
    # It may come to that again.
    for _ in range(3):
        send(made, 1, HEAVY_BYTES)
    assert source.held == ["queue 1 of 5"]


def test_who_sends_little_waits_only_where_all_must() -> None:
    groups, source = _Groups(), _Source()
    client = QueueClient(fakes.turn(groups), 1)
    client.in_flight.queue_bytes_max = 1000
    made, own = client.open(5, source=source), client.open(6)
    send(own, 1, 1500)
    send(made, 1)
    assert source.held == []
    # The first one has no answer yet, so this is no longer little.
    send(made, 1)
    assert source.held == ["queue 1 of 5"]
    source.held.clear()
    send(own, 2, 2000)
    send(made, 2)
    assert source.held == ["queue 2 of 5"]


async def test_what_is_refused_is_counted_for_its_queue() -> None:
    counted: list[tuple[int, int]] = []
    groups = _Groups()
    turn = fakes.turn(groups)
    turn.refused = lambda *refused: counted.append(refused)
    made = ChannelStream(turn, 5, lambda _: None)
    made.publish([_Queue(1)], [CONTENT] * 3, 1)
    made.flush()
    groups.sent[0][2](ReplyStatus.REFUSED, b"home member n1 is down")
    groups.refusing.add(2)
    made.publish([_Queue(2)], [CONTENT] * 2, 4)
    made.flush()
    assert counted == [(1, 3), (2, 2)]
