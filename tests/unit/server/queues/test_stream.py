"""What a channel tells its queues, in its order; its end once, when a queue owes no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue import queue_commands, settling_gets
from brokerd.core.queue.certificates import Client
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.server.queues.stream import RENAMED_SHIFT, ChannelStream, Settle
from brokerd.server.queues.turn import Turn
from tests.unit.server.messages.fakes import turn

CONSUMER = ConsumerId("n", 1, 5, "t")
HOLDER = (1, CONSUMER)
CONTENT: Content = (("", "q"), b"\0\0", b"body", b"")
DOWN = queue_commands.encode_channel_down("n", 1, 5)


def ranges(kind: Kind, cause: int = 0) -> bytes:
    return queue_commands.encode_ranges(kind, CONSUMER, [(0, 1)], cause)


@dataclass(frozen=True)
class Target:
    uid: int


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
        **_: Any,
    ) -> None:
        self.sent.append((uid, command, once))
        self.answers.append(done)

    def refuses_lines(self, uid: int) -> bool:
        return False

    def ask(
        self,
        uid: int,
        command: bytes,
        timeout_s: float,
        done: Callable[[ReplyStatus, bytes], None],
        once: bool = False,
        is_lazy: bool = False,
    ) -> None:
        self.sent.append((uid, command, once))

    def told(self) -> list[int]:
        return [uid for uid, command, _ in self.sent if command == DOWN]


def stream() -> tuple[ChannelStream, Groups]:
    groups = Groups()
    return ChannelStream(turn(groups, "n", 1), 5), groups


def test_queues_that_owe_nothing_are_told_at_once_and_each_once() -> None:
    made, groups = stream()
    made.leave({1: None, 2: None})
    assert groups.sent == [(1, DOWN, True), (2, DOWN, True)]
    # Nobody waits for the answers.
    groups.answers[0](ReplyStatus.GONE, b"")
    assert groups.told() == [1, 2]


def test_a_queue_is_told_behind_the_last_answer_that_it_owes() -> None:
    """G4, R-ACK: whatever the order of the answers."""
    made, groups = stream()
    made.settle(HOLDER, [(0, 1)], Settle.ACCEPT)
    made.settle(HOLDER, [(0, 1)], Settle.NACK)
    made.settle((2, CONSUMER), [(0, 1)], Settle.NACK)
    nack = ranges(Kind.RETURN, ReturnCause.NACK)
    assert groups.sent == [(1, ranges(Kind.SETTLE), False), (1, nack, True), (2, nack, True)]
    made.leave({1: None, 2: None, 3: None})
    assert groups.told() == [3]
    groups.answers[1](ReplyStatus.OK, b"")
    groups.answers[2](ReplyStatus.OK, b"")
    assert groups.told() == [3, 2]
    groups.answers[0](ReplyStatus.GONE, b"")
    assert groups.told() == [3, 2, 1]


def test_a_queue_that_knows_the_channel_by_another_name_is_told_both_ends() -> None:
    """What was refused on its way may have arrived: the channel goes on under another name."""
    made, groups = stream()
    made.publish([Target(1)], [CONTENT], 1)
    made.flush()
    groups.answers[0](ReplyStatus.REFUSED, b"")
    groups.sent.clear()
    made.leave({2: None, 1: None})
    other = queue_commands.encode_channel_down("n", 1, 5 + (1 << RENAMED_SHIFT))
    assert groups.sent == [(2, DOWN, True), (1, DOWN, True), (1, other, True)]


def test_the_end_says_what_the_client_was_sent() -> None:
    """ADR 69."""
    made, groups = stream()
    written = {"t": [(3, 5)]}
    made.leave({1: written})
    assert groups.sent == [(1, queue_commands.encode_channel_down("n", 1, 5, written), True)]


def test_answers_before_the_end_and_of_queues_that_need_not_know_tell_nobody() -> None:
    made, groups = stream()
    made.settle(HOLDER, [(0, 1)], Settle.ACCEPT)
    groups.answers[0](ReplyStatus.OK, b"")
    made.settle((2, CONSUMER), [(0, 1)], Settle.ACCEPT)
    made.leave({})
    groups.answers[1](ReplyStatus.OK, b"")
    assert groups.told() == []


@pytest.mark.parametrize(
    ("how", "kind", "cause"),
    [
        (Settle.ACCEPT, Kind.SETTLE, 0),
        (Settle.NACK, Kind.RETURN, ReturnCause.NACK),
        (Settle.REJECT, Kind.RETURN, ReturnCause.REJECT),
        (Settle.RECOVER, Kind.RETURN, ReturnCause.RECOVER),
        (Settle.UNWRITTEN, Kind.RETURN, ReturnCause.UNWRITTEN),
        (Settle.WITHDRAWN, Kind.RETURN, ReturnCause.WITHDRAWN),
        (Settle.DISCARD, Kind.DISCARD, 0),
        (Settle.DISCARD_REJECTED, Kind.DISCARD, ReturnCause.REJECT),
    ],
)
def test_each_way_to_settle_is_a_command_with_its_cause(
    how: Settle, kind: Kind, cause: int
) -> None:
    made, groups = stream()
    heard: list[int] = []
    made.settle(HOLDER, [(0, 1)], how, done=lambda: heard.append(1))
    assert [command for _, command, _ in groups.sent] == [ranges(kind, cause)]
    groups.answers[0](ReplyStatus.OK, b"")
    assert heard == [1]


def open_in_turn() -> tuple[ChannelStream, Groups, list[Callable[[], None]]]:
    """Return a channel whose turns end when the test says so."""
    groups, due = Groups(), list[Callable[[], None]]()
    made_of: Any = groups
    return ChannelStream(Turn(made_of, "n", 1, due.append), 5), groups, due


def operations(made: ChannelStream) -> list[tuple[Callable[[], object], int]]:
    """Return what a channel can do with queue 1 that does not wait for the end of the turn."""
    getter = (1, CONSUMER._replace(tag=""))
    return [
        (lambda: made.settle(HOLDER, [(1, 2)], Settle.NACK), Kind.RETURN),
        (lambda: made.settle(HOLDER, [(1, 2)], Settle.ACCEPT, is_joined=False), Kind.SETTLE),
        (lambda: made.cancel(HOLDER), Kind.CANCEL),
        (lambda: made.get(getter, False, [], 1, lambda *_: None), Kind.GET),
    ]


def test_only_what_was_got_says_whose_it_was() -> None:
    """ADR 88: queues know the clients of consumers; what is accepted needs no name."""
    groups = Groups()
    client = Client("billing-7", "pika", "1.3.2")
    made = ChannelStream(turn(groups, "n", 1), 5, client=client)
    getter = CONSUMER._replace(tag="")
    made.settle((1, getter), [(0, 1)], Settle.DISCARD)
    made.settle(HOLDER, [(0, 1)], Settle.DISCARD, reason="bad")
    made.settle((1, getter), [(1, 2)], Settle.ACCEPT, is_joined=False)
    found = [command for _, command, _ in groups.sent]
    assert [queue_commands.decode_details(command) for command in found] == [
        ["", list(client)],
        ["bad", None],
        None,
    ]
    made.leave({1: {"": [(2, 3)]}, 2: {"t": []}})
    for done in groups.answers:
        done(ReplyStatus.OK, b"")
    ends = [queue_commands.decode_json(command).get("client") for _, command, _ in groups.sent[3:]]
    assert sorted(ends, key=str) == sorted([list(client), None], key=str)


def test_what_is_accepted_joins_the_turn_and_all_else_goes_behind_it() -> None:
    """Within a channel and queue operations apply in the order of the calls."""
    made, groups, due = open_in_turn()
    accept = ranges(Kind.SETTLE)
    for operation, kind in operations(made):
        groups.sent.clear()
        made.settle(HOLDER, [(0, 1)], Settle.ACCEPT)
        assert groups.sent == []
        operation()
        assert [command[:2] for _, command, _ in groups.sent] == [accept[:2], bytes((1, kind))]
    groups.sent.clear()
    made.settle(HOLDER, [(0, 1)], Settle.ACCEPT)
    while due:
        due.pop()()
    assert [command for _, command, _ in groups.sent] == [accept]


def test_nothing_overtakes_what_the_channel_has_published_to_the_queue() -> None:
    """The same rule; what it has published to other queues waits for the end of the turn."""
    made, groups, due = open_in_turn()
    for number, (operation, kind) in enumerate(operations(made)):
        groups.sent.clear()
        made.publish([Target(1), Target(2)], [CONTENT], 2 * number + 1)
        made.offer()
        operation()
        assert [(uid, command[1]) for uid, command, _ in groups.sent] == [
            (1, Kind.ENQUEUE),
            (1, kind),
        ]
    while due:
        due.pop(0)()
    assert [uid for uid, _, _ in groups.sent][2:] == [2]


def test_publishes_and_acknowledgements_of_one_turn_keep_their_order() -> None:
    """Classic queue, reject-publish, max-length 1: what is taken depends on it."""
    made, groups, due = open_in_turn()
    made.publish([Target(1)], [CONTENT], 1)
    made.offer()
    made.settle(HOLDER, [(0, 1)], Settle.ACCEPT)
    made.publish([Target(1)], [CONTENT], 2)
    made.offer()
    made.settle(HOLDER, [(1, 2)], Settle.ACCEPT)
    while due:
        due.pop(0)()
    assert [command[1] for _, command, _ in groups.sent] == [
        Kind.ENQUEUE,
        Kind.SETTLE,
        Kind.ENQUEUE,
        Kind.SETTLE,
    ]


def test_what_waits_for_an_answer_goes_before_what_follows() -> None:
    """Two batches are in flight: the third waits, unless the channel does something else there."""
    made, groups, _ = open_in_turn()
    for number in (1, 2):
        made.publish([Target(1)], [CONTENT], number)
        made.flush()
    made.publish([Target(1)], [CONTENT], 3)
    made.offer()
    made.cancel(HOLDER)
    assert [command[1] for _, command, _ in groups.sent][2:] == [Kind.ENQUEUE, Kind.CANCEL]


def test_a_get_takes_acknowledgements_along() -> None:
    made, groups = stream()
    made.get((1, CONSUMER), True, [(0, 2)], 1, lambda *_: None)
    get = queue_commands.encode_get(CONSUMER, True)
    assert groups.sent == [(1, settling_gets.encode(get, [(0, 2)]), True)]
