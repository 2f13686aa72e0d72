"""What a member's channels acknowledge in one turn is one command per queue (ADR 65)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue import joined_settlements, queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind
from brokerd.server.queues import deliveries, turn_settlements
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.stream import ChannelStream, Settle
from brokerd.server.queues.turn import Turn
from tests.unit.server.messages import fakes

DOWN = queue_commands.encode_channel_down("n1", 7, 1)


def part(channel: int, number: int = 0, kind: Kind = Kind.SETTLE, wide: int = 1) -> bytes:
    consumer = ConsumerId("n1", 7, channel, "t")
    ranges = [(number + 2 * n, number + 2 * n + 1) for n in range(wide)]
    return queue_commands.encode_ranges(kind, consumer, ranges)


class Groups:
    """A group client that notes what is sent: queue, the parts of a command, whether lazily."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[bytes], bool]] = []
        self.answers: list[Callable[[ReplyStatus, bytes], None]] = []

    def refuses_lines(self, uid: int) -> bool:
        return False

    def send(self, uid: int, command: bytes, done: Any, *_: Any, **options: Any) -> None:
        is_joined = command[1] == Kind.JOINED_SETTLEMENTS
        parts = joined_settlements.decode(command) if is_joined else [command]
        self.sent.append((uid, parts, options.get("is_lazy", False)))
        self.answers.append(done)


@dataclass
class Rig:
    """A member's turn, which ends when the test says so."""

    groups: Groups = field(default_factory=Groups)
    due: list[Callable[[], None]] = field(default_factory=list)
    is_joining: bool = True
    heard: list[tuple[str, ReplyStatus]] = field(default_factory=list)

    def __post_init__(self) -> None:
        groups: Any = self.groups
        self.turn = Turn(groups, "n1", 7, self.due.append, lambda: self.is_joining)

    def add(self, uid: int, command: bytes, name: str = "", *, is_lazy: bool = False) -> None:
        def answered(status: ReplyStatus, reply: bytes) -> None:
            self.heard.append((name, status))
            if name == "broken":
                raise RuntimeError("this channel is beyond help")

        self.turn.settlements.add(uid, command, answered, is_lazy=is_lazy)

    def end_turn(self) -> None:
        while self.due:
            self.due.pop(0)()


def test_what_channels_acknowledge_in_a_turn_is_one_command_per_queue() -> None:
    rig = Rig()
    rig.add(8, part(1), "first")
    rig.add(9, part(2), "alone")
    rig.add(8, part(3), "third")
    assert rig.groups.sent == []
    assert len(rig.due) == 1
    rig.end_turn()
    assert rig.groups.sent == [(8, [part(1), part(3)], False), (9, [part(2)], False)]
    rig.groups.answers[0](ReplyStatus.OK, b"")
    rig.groups.answers[1](ReplyStatus.GONE, b"")
    assert rig.heard == [
        ("first", ReplyStatus.OK),
        ("third", ReplyStatus.OK),
        ("alone", ReplyStatus.GONE),
    ]
    # The next turn is another one.
    rig.add(8, part(1, 1))
    assert len(rig.due) == 1
    rig.end_turn()
    assert rig.groups.sent[2:] == [(8, [part(1, 1)], False)]


def test_one_channels_fault_is_not_the_others() -> None:
    rig = Rig()
    rig.add(8, part(1), "broken")
    rig.add(8, part(2), "good")
    rig.end_turn()
    rig.groups.answers[0](ReplyStatus.OK, b"")
    assert [name for name, _ in rig.heard] == ["broken", "good"]


def test_a_command_is_lazy_if_all_that_it_joins_are() -> None:
    """ADR 23: what may be lost with a crash, and what may not."""
    rig = Rig()
    rig.add(8, part(1), is_lazy=True)
    rig.add(8, part(2), is_lazy=True)
    rig.add(9, part(3), is_lazy=True)
    rig.add(9, part(4))
    rig.add(10, part(5), is_lazy=True)
    rig.end_turn()
    assert [(uid, is_lazy) for uid, _, is_lazy in rig.groups.sent] == [
        (8, True),
        (9, False),
        (10, True),
    ]


def test_what_is_not_to_be_joined_goes_at_once() -> None:
    rig = Rig(is_joining=False)
    rig.add(8, part(1))
    rig.add(8, part(2), is_lazy=True)
    assert rig.groups.sent == [(8, [part(1)], False), (8, [part(2)], True)]
    assert rig.due == []


@pytest.mark.parametrize(
    ("wide", "count"),
    [
        (1, turn_settlements.PARTS_MAX),
        (1024, -(-turn_settlements.BYTES_MAX // len(part(1, wide=1024)))),
    ],
)
def test_a_command_has_bounds(wide: int, count: int) -> None:
    rig = Rig()
    for channel in range(count + 1):
        rig.add(8, part(channel, wide=wide))
    assert [len(parts) for _, parts, _ in rig.groups.sent] == [count]
    rig.end_turn()
    assert [len(parts) for _, parts, _ in rig.groups.sent] == [count, 1]


# ---- what must not overtake it ------------------------------------------------------------------


def test_a_nack_goes_behind_what_was_acknowledged_before_it() -> None:
    rig = Rig()
    channel, consumer = ChannelStream(rig.turn, 1), ConsumerId("n1", 7, 1, "t")
    channel.settle((8, consumer), [(0, 1)], Settle.ACCEPT)
    channel.settle((9, consumer), [(0, 1)], Settle.ACCEPT)
    channel.settle((8, consumer), [(1, 2)], Settle.NACK)
    assert [(uid, parts[0][1]) for uid, parts, _ in rig.groups.sent] == [
        (8, Kind.SETTLE),
        (8, Kind.RETURN),
    ]


def test_the_end_of_a_channel_goes_behind_its_acknowledgements() -> None:
    """G4: before them it would bring their messages back."""
    rig = Rig()
    channel = ChannelStream(rig.turn, 1)
    channel.settle((8, ConsumerId("n1", 7, 1, "t")), [(0, 1)], Settle.ACCEPT)
    channel.leave({8: None})
    rig.end_turn()
    assert [parts[0][1] for _, parts, _ in rig.groups.sent] == [Kind.SETTLE]
    rig.groups.answers[0](ReplyStatus.OK, b"")
    assert [parts for _, parts, _ in rig.groups.sent][1:] == [[DOWN]]


def test_a_publish_goes_behind_what_was_acknowledged_before_it() -> None:
    rig = Rig()
    publisher = ChannelStream(rig.turn, 2)
    content: Content = (("", "q"), b"\0\0", b"body", b"")
    target: Any = fakes.queue(8)
    # The end of the turn is asked for by the publish.
    publisher.publish([fakes.queue(9)], [content], 1)
    publisher.offer()
    rig.add(8, part(1))
    publisher.publish([target], [content], 2)
    rig.end_turn()
    assert [parts[0][1] for uid, parts, _ in rig.groups.sent if uid == 8] == [
        Kind.SETTLE,
        Kind.ENQUEUE,
    ]


def test_a_consumer_says_what_it_holds_behind_what_it_has_acknowledged() -> None:
    """R-QQ-10: what is settled is held no more, and would be sent again."""
    rig = Rig()

    class Sink:
        def held(self, consumer: deliveries.LocalConsumer) -> list[tuple[int, int]]:
            return []

    sink: Any = Sink()
    hub = deliveries.DeliveryHub(QueueClient(rig.turn, 1).resume)
    consumer = ConsumerId("n1", 7, 1, "t")
    hub.add(deliveries.LocalConsumer(consumer, 8, "/", "q", sink, False, 1, 0, False, "guest"))
    rig.add(8, part(1))
    hub.leader_changed(8)
    assert [parts for _, parts, _ in rig.groups.sent] == [
        [part(1)],
        [queue_commands.encode_resume(consumer, [])],
    ]
