"""Enqueue batches of one channel, and deliveries that wait for a consumer or its socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from brokerd.amqp import errors
from brokerd.cluster.group_client import GroupClient, ReplyStatus
from brokerd.core import queue_commands
from brokerd.core.effects import ConsumerId, Run
from brokerd.core.message import Content
from brokerd.server import message_checks
from brokerd.server.backlog import Backlog
from brokerd.server.delivery import DeliveryHub, LocalConsumer
from brokerd.server.publishing import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, Publisher

ROUTE = ("", "q")
CONTENT: Content = (ROUTE, b"\0\0", b"body", b"")
FAREWELL = queue_commands.encode_channel_down("n", 1, 5)


class _Groups:
    """Keeps what was sent, with its answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, queue_commands.EnqueueView, Any]] = []
        self.farewells: list[int] = []

    def send(
        self,
        uid: int,
        command: bytes,
        done: Any,
        once: bool = False,
        early: bytes = b"",
        line: object = None,
    ) -> None:
        assert once == (command == FAREWELL)
        if once:
            self.farewells.append(uid)
            return
        self.sent.append((uid, queue_commands.EnqueueView(command), done))


@dataclass(frozen=True)
class _Queue:
    uid: int


def publisher() -> tuple[Publisher, _Groups, list[tuple[int, int, int]], list[int]]:
    """Return a publisher, what it sends, what it reports, and the bytes under way."""
    groups, outcomes, flight = _Groups(), cast(list[tuple[int, int, int]], []), cast(list[int], [])
    made = Publisher(cast(GroupClient, groups), "n", 1, 5, outcomes.extend, flight.append)
    return made, groups, outcomes, flight


def test_one_read_becomes_one_batch_per_queue_with_numbers_without_gaps() -> None:
    """Hot path rule 1."""
    made, groups, _, flight = publisher()
    made.add([_Queue(1), _Queue(2)], [CONTENT] * 3, 1)
    made.add([_Queue(1)], [CONTENT], 4)
    made.flush()
    made.add([_Queue(1)], [CONTENT], 5)
    made.flush()
    rows = [(uid, view.first_sequence, view.count) for uid, view, _ in groups.sent]
    assert rows == [(1, 1, 4), (2, 1, 3), (1, 5, 1)]
    assert all(size > 0 for size in flight)


def test_while_two_batches_are_on_their_way_the_next_one_waits_and_grows() -> None:
    """Hot path rule 1: what is there when the previous one ends goes together, in order."""
    made, groups, outcomes, flight = publisher()
    for number in range(1, 6):
        made.add([_Queue(1)], [CONTENT], number)
        made.offer()
    made.add([_Queue(2)], [CONTENT], 6)
    made.offer()
    rows = [(uid, view.first_sequence, view.count) for uid, view, _ in groups.sent]
    assert rows == [(1, 1, 1), (1, 2, 1), (2, 1, 1)]
    # What waits counts against the connection's budget as well.
    assert sum(flight) == 6 * (len(CONTENT[1]) + len(CONTENT[2]))
    taken = queue_commands.encode_enqueue_reply(queue_commands.EnqueueStatus.OK, 1)
    groups.sent[0][2](ReplyStatus.OK, taken)
    uid, view, answer = groups.sent[3]
    assert (uid, view.first_sequence, view.count) == (1, 3, 3)
    groups.sent[1][2](ReplyStatus.OK, taken)
    answer(ReplyStatus.OK, queue_commands.encode_enqueue_reply(queue_commands.EnqueueStatus.OK, 3))
    assert outcomes == [(1, 1, 1), (2, 1, 1), (3, 3, 3)]
    made.add([_Queue(1)], [CONTENT], 7)
    made.offer()
    assert len(groups.sent) == 5


def test_nothing_waits_when_something_else_follows_or_the_channel_ends() -> None:
    made, groups, _, _ = publisher()
    for number in range(1, 5):
        made.add([_Queue(1)], [CONTENT], number)
        made.offer()
    made.flush()
    assert [view.count for _, view, _ in groups.sent] == [1, 1, 2]
    made.add([_Queue(1)], [CONTENT], 5)
    made.offer()
    assert len(groups.sent) == 3
    made.close()
    assert [view.first_sequence for _, view, _ in groups.sent] == [1, 2, 3, 5]


def test_batches_are_cut_at_their_limit() -> None:
    made, groups, _, _ = publisher()
    for first in range(1, BATCH_MESSAGES_MAX + 2):
        made.add([_Queue(1)], [CONTENT], first)
    made.flush()
    assert [view.count for _, view, _ in groups.sent] == [BATCH_MESSAGES_MAX, 1]


def test_a_large_message_goes_alone() -> None:
    """One of the largest size that a profile allows, and what waited before it, would be more than
    a command may have: the number would be used up, and nothing sent.
    """
    made, groups, _, _ = publisher()
    large = (ROUTE, b"", bytes(BATCH_BYTES_MAX), b"")
    made.add([_Queue(1)], [CONTENT], 1)
    made.add([_Queue(1)], [large], 2)
    made.add([_Queue(1)], [CONTENT], 3)
    made.flush()
    rows = [(view.first_sequence, view.count) for _, view, _ in groups.sent]
    assert rows == [(1, 1), (2, 1), (3, 1)]


def test_a_deleted_queue_counts_as_taken_over_and_bytes_are_given_back() -> None:
    """R-PC-7."""
    made, groups, outcomes, flight = publisher()
    made.add([_Queue(1)], [CONTENT] * 2, 1)
    made.add([_Queue(1)], [CONTENT], 9)
    made.flush()
    groups.sent[0][2](ReplyStatus.GONE, b"")
    assert outcomes == [(1, 2, 2), (9, 1, 1)]
    assert sum(flight) == 0
    made.leave(FAREWELL)
    assert groups.farewells == []


def test_after_the_end_outcomes_interest_nobody() -> None:
    """R-PC-9."""
    made, groups, outcomes, flight = publisher()
    made.add([_Queue(1)], [CONTENT], 1)
    made.close()
    groups.sent[0][2](ReplyStatus.GONE, b"")
    assert outcomes == []
    assert sum(flight) == 0


def test_a_queue_hears_of_the_channels_end_when_it_has_answered_all_its_batches() -> None:
    """R-QQ-8: a batch that goes again behind the farewell would be new to the queue."""
    made, groups, outcomes, _ = publisher()
    taken = queue_commands.encode_enqueue_reply(queue_commands.EnqueueStatus.OK, 1)
    for uid, number in ((1, 1), (1, 2), (2, 3)):
        made.add([_Queue(uid)], [CONTENT], number)
        made.flush()
    groups.sent[2][2](ReplyStatus.OK, taken)
    made.add([_Queue(1)], [CONTENT], 4)
    made.leave(FAREWELL, [2, 3])
    assert groups.farewells == [2, 3]
    for answer in (sent[2] for sent in (*groups.sent[:2], groups.sent[3])):
        assert groups.farewells == [2, 3]
        answer(ReplyStatus.OK, taken)
    assert groups.farewells == [2, 3, 1]
    assert outcomes == [(3, 1, 1)]


def test_a_channel_that_ends_within_its_own_answer_says_farewell_once() -> None:
    """R-QQ-8."""
    groups = _Groups()
    made: Publisher
    made = Publisher(cast(GroupClient, groups), "n", 1, 5, lambda _: made.leave(FAREWELL))
    made.add([_Queue(1)], [CONTENT], 1)
    made.flush()
    taken = queue_commands.encode_enqueue_reply(queue_commands.EnqueueStatus.OK, 1)
    groups.sent[0][2](ReplyStatus.OK, taken)
    assert groups.farewells == [1]


class _Sink:
    def __init__(self) -> None:
        self.got: list[int] = []
        self.cancelled: list[str] = []

    def deliver(self, consumer: LocalConsumer, parts: Any) -> None:
        self.got += [n for run, _ in parts for n in range(run.first, run.first + run.length)]

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        self.cancelled.append(cause)

    def held(self, consumer: LocalConsumer) -> list[tuple[int, int]]:
        return [(n, n + 1) for n in self.got]


def consumer(sink: Any = None, tag: str = "t") -> LocalConsumer:
    """Return a consumer of group 1."""
    return LocalConsumer(
        ConsumerId("n", 1, 5, tag), 1, "/", "q", sink or _Sink(), False, 0, 0, False, "guest"
    )


def run(first: int, length: int) -> Run:
    """Return a run of entry 7."""
    return Run(first, length, 7, first - 1, 0, 0)


def test_what_a_new_leader_sends_again_is_dropped_until_it_has_answered() -> None:
    """R-QQ-10."""
    sent: list[tuple[int, Any]] = []
    hub = DeliveryHub(lambda uid, command, done: sent.append((uid, done)))
    sink = _Sink()
    made = consumer(sink)
    hub.add(made)
    hub.deliver(made.id, [(run(1, 3), [CONTENT] * 3)])
    hub.leader_changed(1)
    hub.deliver(made.id, [(run(2, 3), [CONTENT] * 3)])
    assert sink.got == [1, 2, 3, 4]
    assert len(sent) == 1
    hub.group_gone(1)
    assert sink.cancelled == ["queue deleted"]
    assert (len(hub), hub.has_group(1)) == (0, False)


class _Log:
    """The broker as the backlog sees it."""

    def __init__(self, leads: bool) -> None:
        self.is_leader = leads
        self.reads: list[int] = []
        self.is_gone = False

    def leads(self, uid: int) -> bool:
        return self.is_leader

    def contents_if_here(self, uid: int, wanted: Run) -> list[Content] | None:
        self.reads.append(wanted.first)
        return None if self.is_gone else [CONTENT] * wanted.length


@pytest.mark.parametrize("leads", [True, False])
def test_waiting_deliveries_keep_their_order_and_are_read_again_where_they_can(
    leads: bool,
) -> None:
    """SEC-45."""
    log = _Log(leads)
    backlog = Backlog(cast(Any, log))
    held, free = consumer(tag="held"), consumer(tag="free")
    held.is_held = True
    backlog.add(held, [(run(1, 2), [CONTENT] * 2)])
    backlog.add(free, [(run(3, 1), [CONTENT]), (run(4, 1), [CONTENT])])
    order = []
    while (found := backlog.take()) is not None:
        order.append(found[1].first)
        assert found[2] == [CONTENT]
    assert order == [3, 4]
    assert log.reads == ([3, 4] if leads else [])
    assert backlog.numbers_of(held) == [(1, 3)]
    assert backlog.drop(held) == [(1, 3)]
    assert not backlog


@pytest.mark.parametrize("leads", [True, False])
def test_consumers_that_share_a_prefetch_get_what_there_is_room_for(leads: bool) -> None:
    """R-QOS-3: a longer part is cut; those who do not share pass by."""
    backlog = Backlog(cast(Any, _Log(leads)))
    shares, quorum = consumer(tag="shares"), consumer(tag="quorum")
    quorum.has_counts = True
    backlog.add(shares, [(run(1, 5), [CONTENT] * 5)])
    backlog.add(quorum, [(run(9, 2), [CONTENT] * 2)])
    found = backlog.take(3)
    assert found is not None
    assert (found[1], found[2]) == (run(1, 3), [CONTENT] * 3)
    assert backlog.numbers_of(shares) == [(4, 6)]
    found = backlog.take(0)
    assert found is not None
    assert found[0] is quorum
    assert backlog.take(0) is None
    found = backlog.take(2)
    assert found is not None
    assert (found[1], found[2]) == (run(4, 2), [CONTENT] * 2)
    assert not backlog


def test_a_message_that_is_here_no_more_is_said_to_be_so() -> None:
    log = _Log(True)
    log.is_gone = True
    backlog = Backlog(cast(Any, log))
    backlog.add(consumer(), [(run(1, 1), [CONTENT])])
    found = backlog.take()
    assert found is not None
    assert found[2] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no_integer"),
        ("abc", "no_integer"),
        ("-5", "{value_negative,-5}"),
        ("5x", '{leftover_string,"x"}'),
        ("-5x", '{leftover_string,"x"}'),
        ("+-5", "no_integer"),
        ("315360000001", "{value_too_large,"),
        ("9" * 100_000, "{value_too_large,"),
    ],
)
def test_wrong_expirations(text: str, problem: str) -> None:
    """R-PUB-4, R-ERR-31."""
    with pytest.raises(errors.PreconditionFailed) as refused:
        message_checks._expiration_ms(text)
    assert problem in str(refused.value)


def test_right_expirations() -> None:
    """R-PUB-4."""
    assert message_checks._expiration_ms("0") == message_checks._expiration_ms("-0") == 0
    assert message_checks._expiration_ms("+5") == 5
    assert message_checks._expiration_ms("315360000000") == message_checks.EXPIRATION_MS_MAX
