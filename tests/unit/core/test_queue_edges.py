"""Rare ways through the queue machine and its parts, and the bytes of its commands."""

from __future__ import annotations

import json
import sys

import pytest

from brokerd.core import deaths, effects, queue_commands, queue_decoders
from brokerd.core.annotations import Death
from brokerd.core.confirms import Confirms
from brokerd.core.consumers import Consumers
from brokerd.core.dead_letters import DeadLetters
from brokerd.core.enqueuers import REFUSED_RANGES_MAX, EnqueuerKey, Enqueuers
from brokerd.core.message import Content
from brokerd.core.queue import QueueMachine
from brokerd.core.queue_commands import EnqueueStatus, EnqueueView, Kind, QueueOptions
from brokerd.core.queue_store import Entry
from brokerd.core.unacked import Unacked
from tests.unit.core.queue_driver import (
    QueueDriver,
    consumer,
    content,
    dead,
    delivered,
    numbers,
    only,
)

ROUTES: tuple[tuple[str, str], ...] = (("", "q"), ("ex", "k\udcff"))


def messages(count: int, annotated: bool) -> list[Content]:
    return [
        (ROUTES[i % 2], b"h" * i, b"b" * (2 * i), b"{}" if annotated and i % 3 == 0 else b"")
        for i in range(count)
    ]


@pytest.mark.parametrize("annotated", [True, False])
def test_a_batch_can_be_read_back_from_any_place(annotated: bool) -> None:
    """What `contents` slices is what was encoded, for each start and count."""
    batch = messages(7, annotated)
    view = EnqueueView(queue_commands.encode_enqueue("n1", 7, 3, 5, batch))
    assert (view.node, view.incarnation, view.channel, view.first_sequence) == ("n1", 7, 3, 5)
    for start in range(7):
        for count in range(1, 8 - start):
            assert view.contents(start, count) == batch[start : start + count]
    single = [batch[0]]
    assert EnqueueView(queue_commands.encode_enqueue("n", 1, 1, 1, single)).contents(0, 1) == single


def test_other_bytes_are_no_batch() -> None:
    command = queue_commands.encode_enqueue("n1", 7, 3, 5, messages(1, False))
    with pytest.raises(ValueError, match="not an enqueue command of version 1"):
        EnqueueView(bytes((9,)) + command[1:])


@pytest.mark.parametrize("raw", [b"[]", b"5", b"null", b'"x"', b'{"deaths":5}', b'{"deaths":[5]}'])
def test_a_batch_with_other_annotations_is_refused(raw: bytes) -> None:
    """SEC-44: a committed command that made a machine raise would stop its group everywhere."""
    q = QueueDriver()
    batch = [(*content()[:3], raw)]
    reply = q.send(queue_commands.encode_enqueue("n1", 7, 1, 0, batch)).reply
    assert b"malformed queue command" in reply
    assert q.machine.store.ready == 0


@pytest.mark.parametrize(
    "raw", [b'{"%s":%d}' % (name, 10**30) for name in (b"ttl_ms", b"priority", b"delivery_count")]
)
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_times_and_counts_beyond_all_use_fit_into_a_snapshot(raw: bytes, queue_type: str) -> None:
    """SEC-44: what is taken over can be written down, though no client can send it so large."""
    options = {"message_ttl_ms": 10**30, "max_length": 10**30, "queue_type": queue_type}
    q = QueueDriver()
    q.send(bytes((queue_commands.VERSION, Kind.UPDATE_OPTIONS)) + json.dumps(options).encode())
    batch = [(*content()[:3], raw), content()]
    q.send(queue_commands.encode_enqueue("n1", 7, 1, 0, batch))
    again = QueueMachine("q", QueueOptions())
    again.restore(q.machine.snapshot())
    assert again.snapshot() == q.machine.snapshot()
    assert again.store.ready == 2


def test_a_queue_that_holds_messages_keeps_its_type() -> None:
    """SEC-44: each type has an order of its own for what comes back."""
    q = QueueDriver()
    assert q.reply(queue_commands.encode_update_options(QueueOptions(queue_type="quorum")))["ok"]
    q.fill(1)
    options = QueueOptions(queue_type="classic", max_length=5)
    assert q.reply(queue_commands.encode_update_options(options))["refused"] == 406
    assert q.machine.options == QueueOptions(queue_type="quorum")


def test_sizes_are_little_endian_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [(5).to_bytes(4, "little") + (6).to_bytes(4, "little")]
    assert queue_commands.total_size(columns) == 11
    monkeypatch.setattr(sys, "byteorder", "big")
    assert queue_commands.total_size(columns) == (5 << 24) + (6 << 24)


def test_commands_about_consumers_that_are_gone_change_nothing() -> None:
    """R-ACK-10, R-CS-3"""
    q = QueueDriver()
    q.fill(1)
    for kind in (Kind.SETTLE, Kind.RETURN, Kind.DISCARD):
        outcome = q.send(queue_commands.encode_ranges(kind, consumer("gone"), [(0, 1)]))
        assert (outcome.reply, outcome.effects) == (b"", [])
    q.send(queue_commands.encode_cancel(consumer("gone")))
    q.send(queue_commands.encode_node_down("n9"))
    assert (q.ready, q.machine.suspected) == (1, {})


@pytest.mark.parametrize(("queue_type", "renews"), [("classic", True), ("quorum", False)])
def test_a_redeclaration_counts_and_renews_the_lease_of_classic_queues(
    queue_type: str, renews: bool
) -> None:
    """R-Q-3, R-Q-11"""
    q = QueueDriver(queue_type=queue_type, expires_ms=100)
    q.fill(2)
    q.now_ms += 60
    assert q.reply(queue_commands.encode_declared()) == {"ready": 2, "consumers": 0}
    outcome = q.tick(60)
    assert any(isinstance(e, effects.QueueDeleted) for e in outcome.effects) is not renews


def test_an_empty_batch_is_answered() -> None:
    q = QueueDriver()
    for sequence in (0, 1):
        reply = q.send(queue_commands.encode_enqueue("n1", 7, 3, sequence, [])).reply
        assert queue_commands.decode_enqueue_reply(reply)[:2] == (EnqueueStatus.OK, 0)
    assert q.machine.next_number == 0


def test_the_repeated_front_of_a_batch_with_traits_is_passed_over() -> None:
    """R-QQ-8: and what had been refused of it stays refused, whatever comes behind it."""
    q = QueueDriver(queue_type="quorum", max_priority=31)
    batch = [content(b"x", priority=9), content(b"y", priority=1), content(b"z", priority=5)]
    for count in (1, 3):
        q.send(queue_commands.encode_enqueue("n1", 7, 50, 1, batch[:count]))
    assert delivered(q.consume()) == {"c": [0, 2, 1]}
    q = QueueDriver(max_length=1, overflow="reject-publish")
    q.send(queue_commands.encode_enqueue("n1", 7, 50, 1, [content(), content()]))
    q.get(no_ack=True)
    reply = q.send(queue_commands.encode_enqueue("n1", 7, 50, 1, [content()] * 3)).reply
    assert queue_commands.decode_enqueue_reply(reply)[1] == 1
    assert q.ready == 1


def test_refused_ranges_are_remembered_up_to_a_bound() -> None:
    known, key = Enqueuers(), EnqueuerKey("n1", 7, 1)
    for number in range(1, 4 * REFUSED_RANGES_MAX, 2):
        known.seen(key, number + 2, number + 1)
    (row,) = known.rows()
    assert len(row[2]) == REFUSED_RANGES_MAX
    assert row[2][0][0] == 2


def test_letters_that_are_lost_in_the_same_command_wake_nobody() -> None:
    """R-ALO-9: a purge takes what expired with it."""
    q = QueueDriver(
        queue_type="quorum",
        at_least_once=True,
        dead_letter_exchange="dlx",
        overflow="reject-publish",
    )
    q.publish(content(b"x", ttl_ms=10))
    q.now_ms += 20
    assert q.send(queue_commands.encode_purge()).effects == []
    assert q.count("dl_lost") == 1


def test_settling_letters_that_nobody_has_changes_nothing() -> None:
    letters = DeadLetters()
    assert letters.settle([(3, 5)]) == []
    assert letters.held() == []
    q = QueueDriver(
        queue_type="quorum", at_least_once=True, dead_letter_exchange="d", overflow="reject-publish"
    )
    q.consume()
    q.fill(2)
    q.discard((0, 2))
    assert q.machine.letters.settle([(8, 9)]) == []
    q.reply(queue_commands.encode_dead_letters_checkout(1))
    assert [(held.first, held.end) for held in q.machine.letters.held()] == [(0, 1)]


def test_a_returned_message_that_has_expired_goes_from_the_returns_lane() -> None:
    """R-TTL-4, R-TTL-1"""
    q = QueueDriver(queue_type="quorum", delivery_limit=5, dead_letter_exchange="dlx")
    q.consume(prefetch=1)
    q.publish(content(b"x", ttl_ms=10))
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 1))
    assert dead(q.tick(20)) == [("expired", [0])]


def test_a_consumer_that_was_passed_over_keeps_its_turn() -> None:
    """R-CS-4: the one in front is full, the next gets the message."""
    q = QueueDriver()
    q.consume("a", prefetch=1)
    q.consume("b", prefetch=1)
    q.fill(2)
    q.settle((1, 2), who=consumer("b"))
    assert delivered(q.fill(1)) == {"b": [2]}
    q.consume("t", prefetch=2, channel=10)
    q.consume("s", node="n2", channel=9)
    q.send(queue_commands.encode_node_down("n2"))
    assert delivered(q.fill(2)) == {"t": [3, 4]}


def test_service_queues_are_as_before_after_a_snapshot() -> None:
    """R-CS-4, R-QQ-10: round robin goes on where it was."""
    q = QueueDriver()
    for tag in ("a", "b", "c"):
        q.consume(tag, prefetch=9, priority=int(tag == "c"))
    q.fill(1)
    before = q.machine.consumers.service_queues()
    assert [[who.tag for who in lane] for lane in before] == [["a", "b"], ["c"]]
    twin = QueueMachine("q")
    twin.restore(q.machine.snapshot())
    assert twin.consumers.service_queues() == before
    twin.check_invariants()


def test_forgetting_a_consumer_twice_is_forgetting_it_once() -> None:
    known = Consumers()
    record = known.hold(consumer())
    known.drop_if_done(record)
    known.drop_if_done(record)
    known.check()
    assert known.get(consumer()) is None


def test_room_for_messages_is_never_negative() -> None:
    """R-LEN-1, R-LEN-11: requeued messages may have pushed the queue over its limit."""
    sizes = [b"".join(n.to_bytes(4, "little") for n in (3, 4))]
    entry = Entry(1, 0, 0, 2, sizes)
    assert [entry.fitting(0, 2, room) for room in (-1, 2, 3, 6, 7)] == [0, 0, 1, 1, 2]


def test_the_same_queue_twice_in_a_history_counts_where_it_stands_first() -> None:
    """R-DLX-28"""
    history = [
        Death("w", "expired", 1, 0, "", []),
        Death("p", "rejected", 1, 0, "", []),
        Death("w", "maxlen", 1, 0, "", []),
    ]
    assert deaths.without_cycles(["w", "p"], history, "expired") == (["p"], ["w"])


def test_confirms_of_nothing_are_none() -> None:
    tracker = Confirms()
    assert tracker.published(0) == 1
    assert (tracker.outstanding, bool(tracker)) == (0, False)
    tracker.expect(tracker.published(), 1, 0)
    assert bool(tracker)


def test_silencing_a_consumer_that_holds_nothing_is_no_error() -> None:
    """R-ACK-10"""
    tracker: Unacked[str] = Unacked()
    tracker.silence("gone")
    tracker.delivered("c", 0, 1)
    assert tracker.ack(1, False) == {"c": [(0, 1)]}


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"delivery_limit": -1}, "delivery_limit", None),
        ({"max_priority": 999}, "max_priority", queue_decoders.PRIORITY_MAX),
        ({"max_length": -5}, "max_length", 0),
        ({"consumer_timeout_ms": -5}, "consumer_timeout_ms", 0),
    ],
)
def test_options_out_of_range_are_brought_into_it(
    options: dict[str, int], name: str, value: int | None
) -> None:
    """R-DL-1, R-PRI-1"""
    q = QueueDriver()
    q.configure(**options)
    assert getattr(q.machine.options, name) == value


@pytest.mark.parametrize(
    "options",
    [
        QueueOptions(auto_delete=1),  # type: ignore[arg-type]
        QueueOptions(alternate_exchange=5),  # type: ignore[arg-type]
        QueueOptions(delayed_retry=None),  # type: ignore[arg-type]
        QueueOptions(delayed_retry_min_ms="5"),  # type: ignore[arg-type]
    ],
)
def test_options_of_a_wrong_type_are_refused(options: QueueOptions) -> None:
    q = QueueDriver()
    before = q.machine.options
    assert q.reply(queue_commands.encode_update_options(options))["refused"] == 400
    assert q.machine.options is before


def test_the_bodies_of_messages_are_not_in_the_state() -> None:
    """R-QQ-25: an index entry for each batch is."""
    q = QueueDriver(queue_type="quorum")
    outcome = q.publish(*[b"x" * 10_000] * 100)
    q.consume()
    assert outcome.effects == []
    assert len(q.machine.snapshot()) < 4000
    run = only(q.consume("d", prefetch=1) and q.publish(b"y"), effects.Deliver).runs[0]
    assert numbers([run]) == [100]
