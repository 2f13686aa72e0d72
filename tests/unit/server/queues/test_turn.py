"""What many channels publish in one turn: one command per queue, each hears its own (ADR 62)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.enqueue_commands import EnqueueHead, EnqueueStatus, EnqueueView
from brokerd.server.queues.in_flight import InFlight
from brokerd.server.queues.stream import ChannelStream
from brokerd.server.queues.turn import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, ENDED_MAX, Turn
from tests.unit.cluster.groups.test_group_client_sessions import OK, UID, Bench
from tests.unit.core.queue_driver import QueueDriver

Runs = list[tuple[int, int, int]]


class Groups:
    """Keeps what was sent, with its answer and line."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, Callable[[ReplyStatus, bytes], None]]] = []
        self.lines: list[object] = []
        self.others: list[tuple[int, bytes]] = []
        self.defect: Exception | None = None
        self.defective: set[int] = {8}

    def refuses_lines(self, uid: int) -> bool:
        return False

    def send(self, uid: int, command: bytes, done: Any, **options: Any) -> None:
        if self.defect is not None and uid in self.defective:
            raise self.defect
        if options.get("is_lazy"):
            self.others.append((uid, command))
            return
        assert options["early"] == enqueue_commands.GAP_REPLY
        self.sent.append((uid, command, done))
        self.lines.append(options["line"])


@dataclass(frozen=True)
class Target:
    uid: int


@dataclass
class Rig:
    """A member's turn, which ends when the test says so."""

    groups: Groups = field(default_factory=Groups)
    due: list[Callable[[], None]] = field(default_factory=list)
    is_joining: bool = True

    def __post_init__(self) -> None:
        groups = cast(GroupClient, self.groups)
        self.now = 0.0
        self.in_flight = InFlight(100)
        self.turn = Turn(
            *(groups, "n1", 7, self.due.append, lambda: self.is_joining, 0),
            clock=lambda: self.now,
            in_flight=self.in_flight,
        )

    def publisher(self, channel: int, **options: Any) -> tuple[ChannelStream, Runs]:
        outcomes: Runs = []
        return ChannelStream(self.turn, channel, outcomes.extend, **options), outcomes

    def look(self) -> None:
        """The sockets have been looked at."""
        due, self.due[:] = list(self.due), []
        for callback in due:
            callback()

    def end_turn(self) -> None:
        while self.due:
            self.look()

    def shares(self) -> list[tuple[int, list[enqueue_commands.Share]]]:
        """What went out: queue, and channel, first number and count of each that had something."""
        found = []
        for uid, command, _ in self.groups.sent:
            head = EnqueueHead(command)
            alone = [(head.channel, head.first_sequence, head.count)]
            found.append((uid, alone if head.shares is None else head.shares))
        return found


def message(body: bytes = b"body") -> Content:
    return (("", "q"), b"\0\0", body, b"")


def offer(
    publisher: ChannelStream, uid: int, number: int, count: int = 1, body: bytes = b"b"
) -> None:
    publisher.publish([Target(uid)], [message(body)] * count, number)
    publisher.offer()


def test_what_many_channels_have_for_a_queue_in_a_turn_is_one_command() -> None:
    rig = Rig()
    (first, heard), (second, others), (third, _) = (rig.publisher(n) for n in (1, 2, 3))
    offer(first, 8, 1, 2)
    offer(second, 8, 1)
    offer(third, 9, 1)
    assert rig.groups.sent == []
    assert len(rig.due) == 1
    rig.end_turn()
    assert rig.shares() == [(8, [(1, 1, 2), (2, 1, 1)]), (9, [(3, 1, 1)])]
    assert rig.groups.lines == [rig.turn, third]
    rig.groups.sent[0][2](ReplyStatus.OK, enqueue_commands.encode_joined_reply([1, 1]))
    assert (heard, others) == ([(1, 2, 1)], [(1, 1, 1)])
    offer(first, 8, 3)
    offer(second, 8, 2)
    rig.end_turn()
    assert rig.shares()[2:] == [(8, [(1, 3, 1), (2, 2, 1)])]


def test_the_queue_takes_over_what_was_joined() -> None:
    rig, queue = Rig(), QueueDriver(queue_type="quorum")
    (first, heard), (second, others) = rig.publisher(1), rig.publisher(2)
    offer(first, 8, 1, 2, b"one")
    offer(second, 8, 1, 1, b"two")
    rig.end_turn()
    _, command, done = rig.groups.sent[0]
    assert [each[2] for each in EnqueueView(command).contents(0, 3)] == [b"one", b"one", b"two"]
    done(ReplyStatus.OK, queue.send(command).reply)
    assert (heard, others, queue.ready) == ([(1, 2, 2)], [(1, 1, 1)], 3)


def test_what_follows_does_not_overtake_it() -> None:
    """A get of a channel finds what it published; what others have sent for that queue in this
    turn goes along.
    """
    rig = Rig()
    (first, _), (second, _) = rig.publisher(1), rig.publisher(2)
    second.publish([Target(8)], [message()] * BATCH_MESSAGES_MAX, 1)
    offer(second, 9, BATCH_MESSAGES_MAX + 1)
    offer(first, 8, 1)
    first.flush()
    assert rig.shares() == [(8, [(2, 1, BATCH_MESSAGES_MAX)]), (8, [(1, 1, 1)])]
    first.flush()
    rig.end_turn()
    assert rig.shares()[2:] == [(9, [(2, 1, 1)])]
    second.flush()
    assert len(rig.groups.sent) == 3


def test_a_channel_that_comes_twice_in_a_turn_has_one_share() -> None:
    rig = Rig()
    (first, _), (second, _) = rig.publisher(1), rig.publisher(2)
    offer(first, 8, 1)
    offer(second, 8, 1)
    offer(first, 8, 2)
    rig.end_turn()
    assert rig.shares() == [(8, [(1, 1, 2), (2, 1, 1)])]


def test_a_channel_whose_command_is_full_keeps_its_order() -> None:
    rig = Rig()
    (first, _), (second, _) = rig.publisher(1), rig.publisher(2)
    first.publish([Target(8)], [message()] * BATCH_MESSAGES_MAX, 1)
    offer(first, 8, BATCH_MESSAGES_MAX + 1)
    offer(second, 8, 1)
    rig.end_turn()
    assert rig.shares() == [
        (8, [(1, 1, BATCH_MESSAGES_MAX)]),
        (8, [(1, BATCH_MESSAGES_MAX + 1, 1), (2, 1, 1)]),
    ]


@pytest.mark.parametrize(
    ("count", "body"), [(BATCH_MESSAGES_MAX - 1, b""), (1, bytes(BATCH_BYTES_MAX - 8))]
)
def test_a_command_stays_below_its_bounds(count: int, body: bytes) -> None:
    rig = Rig()
    channels = [rig.publisher(channel)[0] for channel in (1, 2, 3)]
    for channel in channels:
        offer(channel, 8, 1, count, body)
    rig.end_turn()
    assert [len(shares) for _, shares in rig.shares()] == [1, 1, 1]


def test_a_publisher_that_sends_too_much_is_held_at_the_end_of_the_turn() -> None:
    """R-ALM-10"""
    held: list[str] = []

    class Source:
        def hold_flow(self, reason: str) -> None:
            held.append(reason)

        def release_flow(self, reason: str) -> None:
            held.remove(reason)

    rig = Rig()
    (first, _), (second, _) = rig.publisher(1, source=Source()), rig.publisher(2)
    offer(first, 8, 1, 1, bytes(98))
    offer(second, 8, 1, 1, bytes(200))
    assert held == []
    rig.end_turn()
    assert held == ["queue 8 of 1"]


def test_a_client_that_cannot_be_held_back_keeps_nobody_from_sending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def hold_flow(self, reason: str) -> None:
            raise RuntimeError("planted")

        def release_flow(self, reason: str) -> None:
            """It was not held."""

    rig = Rig()
    (first, _), (second, _) = rig.publisher(1, source=Broken()), rig.publisher(2)
    offer(first, 8, 1, 1, bytes(300))
    offer(second, 9, 1)
    rig.end_turn()
    assert rig.shares() == [(8, [(1, 1, 1)]), (9, [(2, 1, 1)])]
    assert "planted" in caplog.text


def test_what_is_not_to_be_joined_goes_at_once() -> None:
    rig = Rig(is_joining=False)
    (first, _), (second, _) = rig.publisher(1), rig.publisher(2)
    offer(first, 8, 1)
    offer(second, 8, 1)
    rig.end_turn()
    assert rig.shares() == [(8, [(1, 1, 1)]), (8, [(2, 1, 1)])]


def test_messages_without_numbers_go_alone() -> None:
    """The member's own: no queue looks for duplicates among them, and they wait for their flush."""
    rig = Rig()
    own, heard = rig.publisher(0, is_numbered=False)
    own.publish([Target(8)], [message()], 1)
    own.flush()
    assert rig.shares() == [(8, [(0, 0, 1)])]
    own.publish([Target(8)], [message()], 2)
    taken = enqueue_commands.encode_enqueue_reply(EnqueueStatus.OK, 1)
    rig.groups.sent[0][2](ReplyStatus.OK, taken)
    rig.end_turn()
    assert (heard, len(rig.groups.sent)) == ([(1, 1, 1)], 1)
    own.flush()
    assert rig.shares()[1:] == [(8, [(0, 0, 1)])]


def test_a_gap_that_stays_is_every_channels_and_all_go_on_under_other_names() -> None:
    """R-QQ-8: what the queue's answer means for those of other commands of the line, too."""
    rig = Rig()
    (first, heard), (second, others) = rig.publisher(1), rig.publisher(2)
    offer(first, 8, 1)
    offer(second, 8, 1)
    rig.end_turn()
    gap = enqueue_commands.encode_enqueue_reply(EnqueueStatus.GAP, 0, 1)
    rig.groups.sent[0][2](ReplyStatus.OK, gap)
    assert (heard, others) == ([(1, 1, 0)], [(1, 1, 0)])
    offer(first, 8, 2)
    offer(second, 8, 2)
    rig.end_turn()
    renamed = 1 << 48
    assert rig.shares()[1:] == [(8, [(1 + renamed, 1, 1), (2 + renamed, 1, 1)])]


@pytest.mark.parametrize("status", [ReplyStatus.REFUSED, ReplyStatus.GONE])
def test_each_hears_that_nobody_takes_it(status: ReplyStatus) -> None:
    """R-PC-7: a queue that is gone counts as having taken it over."""
    rig = Rig()
    (first, heard), (second, others) = rig.publisher(1), rig.publisher(2)
    offer(first, 8, 1)
    offer(second, 8, 1, 2)
    rig.end_turn()
    rig.groups.sent[0][2](status, b"")
    is_gone = status is ReplyStatus.GONE
    assert (heard, others) == ([(1, 1, is_gone)], [(1, 2, 2 * is_gone)])


def test_a_queue_that_was_deleted_counts_as_having_taken_all() -> None:
    """R-PC-7"""
    rig, queue = Rig(), QueueDriver()
    queue.send(queue_commands.encode_delete(False, False, "test"))
    (first, heard), (second, others) = rig.publisher(1), rig.publisher(2)
    offer(first, 8, 1)
    offer(second, 8, 1, 2)
    rig.end_turn()
    _, command, done = rig.groups.sent[0]
    done(ReplyStatus.OK, queue.send(command).reply)
    assert (heard, others) == ([(1, 1, 1)], [(1, 2, 2)])


def test_one_channels_defect_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    heard: Runs = []

    def fails(_: Runs) -> None:
        raise ValueError("planted")

    first, second = ChannelStream(rig.turn, 1, fails), ChannelStream(rig.turn, 2, heard.extend)
    offer(first, 8, 1)
    offer(second, 8, 1)
    rig.end_turn()
    with caplog.at_level(logging.ERROR):
        rig.groups.sent[0][2](ReplyStatus.OK, enqueue_commands.encode_joined_reply([1, 1]))
    assert heard == [(1, 1, 1)]
    assert "group=8" in caplog.text


@pytest.mark.parametrize("channels", [1, 2])
def test_what_cannot_be_sent_is_refused(channels: int, caplog: pytest.LogCaptureFixture) -> None:
    """A defect of ours: nobody waits for ever, and the log says why."""
    rig = Rig()
    rigged = [rig.publisher(channel) for channel in range(1, channels + 1)]
    for publisher, _ in rigged:
        offer(publisher, 8, 1)
        offer(publisher, 9, 2)
    rig.groups.defect = ValueError("planted")
    with caplog.at_level(logging.ERROR):
        rig.end_turn()
    assert [heard for _, heard in rigged] == [[(1, 1, 0)]] * channels
    assert "planted" in caplog.text
    # The other queue has its messages.
    assert [uid for uid, _ in rig.shares()] == [9]


async def test_channels_that_have_ended_are_told_of_together_when_they_have_their_answers() -> None:
    """R-QQ-8: the queue forgets their numbers when it has answered them all."""
    rig = Rig()
    (first, heard), (second, _), (third, _) = (rig.publisher(n) for n in (1, 2, 3))
    for publisher in (first, second):
        offer(publisher, 8, 1)
    offer(third, 9, 1)
    rig.end_turn()
    first.leave()
    assert rig.shares() == [(8, [(1, 1, 1), (2, 1, 1)]), (9, [(3, 1, 1)])]
    second.leave()
    third.leave()
    await asyncio.sleep(0.01)
    assert rig.groups.others == []
    rig.groups.sent[0][2](ReplyStatus.OK, enqueue_commands.encode_joined_reply([1, 1]))
    taken = enqueue_commands.encode_enqueue_reply(EnqueueStatus.OK, 1)
    rig.groups.sent[1][2](ReplyStatus.OK, taken)
    assert rig.groups.others == []
    await asyncio.sleep(0.01)
    found = [
        (uid, *queue_commands.decode_publishers_ended(each)) for uid, each in rig.groups.others
    ]
    assert found == [(8, "n1", 7, (1, 2)), (9, "n1", 7, (3,))]
    assert heard == []


async def test_many_ends_are_several_commands() -> None:
    rig = Rig()
    for channel in range(ENDED_MAX + 1):
        rig.turn.publisher_ended(8, channel)
    await asyncio.sleep(0.01)
    found = [queue_commands.decode_publishers_ended(each)[2] for _, each in rig.groups.others]
    assert [len(channels) for channels in found] == [ENDED_MAX, 1]


def test_a_queue_that_a_channel_had_something_from_hears_of_its_end_at_once() -> None:
    """What it holds comes back."""
    rig = Rig()
    first, _ = rig.publisher(1)
    first.leave({8: None})
    down = queue_commands.encode_channel_down("n1", 7, 1)
    assert rig.groups.others == [(8, down)]


def test_where_nothing_is_joined_each_end_is_a_command_at_once() -> None:
    rig = Rig(is_joining=False)
    first, _ = rig.publisher(1)
    offer(first, 8, 1)
    rig.end_turn()
    taken = enqueue_commands.encode_enqueue_reply(EnqueueStatus.OK, 1)
    rig.groups.sent[0][2](ReplyStatus.OK, taken)
    first.leave()
    down = queue_commands.encode_channel_down("n1", 7, 1)
    assert rig.groups.others == [(8, down)]


# ---- with a real client of the group and a real queue -------------------------------------------


class Turns:
    """Two channels whose turns end when the test says so, over a bench of the group client."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        self.bench = Bench(config)
        self.due: list[Callable[[], None]] = []
        turn = Turn(self.bench.client, "me", 3, self.due.append)
        self.heard: list[Runs] = [[], []]
        self.publishers = [ChannelStream(turn, n, self.heard[n - 1].extend) for n in (1, 2)]
        self.number = 0

    def publish(self) -> None:
        """Each channel has a message; both go together."""
        self.number += 1
        for publisher in self.publishers:
            offer(publisher, UID, self.number)
        while self.due:
            self.due.pop()()


async def test_a_joined_batch_that_a_copy_of_itself_overtook_keeps_its_numbers() -> None:
    """G1, R-QQ-8: as it is for a channel's own batch."""
    turns = Turns()
    bench = turns.bench
    turns.publish()
    turns.publish()
    node, second, command = bench.network.sent[1]
    late = bench.queue.send(command).reply
    assert late.startswith(enqueue_commands.GAP_REPLY)
    bench.client.reply_received(node, second, OK, None, late)
    assert turns.heard == [[], []]
    await bench.resent(4)
    bench.arrive(2, is_answered=False)
    bench.arrive(2)
    bench.arrive(3)
    turns.publish()
    bench.arrive(4)
    assert turns.heard == [[(1, 1, 1), (2, 1, 1), (3, 1, 1)]] * 2
    assert bench.queue.machine.store.ready == 6


async def test_where_the_queue_has_lost_what_it_knew_both_go_on_under_other_names() -> None:
    """R-QQ-8: what follows what is gone is refused, and nothing waits for ever."""
    turns = Turns(ClientConfig(retry_min_ms=1, retry_max_ms=1, early_max=3))
    bench = turns.bench
    turns.publish()
    bench.arrive(0)
    bench.queue = QueueDriver(queue_type="quorum")
    turns.publish()
    turns.publish()
    at = 1
    while len(turns.heard[0]) < 3:
        await bench.resent(at + 1)
        bench.arrive(at)
        at += 1
        assert at < 20
    turns.publish()
    while len(turns.heard[0]) < 4:
        await bench.resent(at + 1)
        bench.arrive(at)
        at += 1
        assert at < 40
    assert turns.heard == [[(1, 1, 1), (2, 1, 0), (3, 1, 0), (4, 1, 1)]] * 2
    assert bench.queue.machine.store.ready == 2
