"""The queue as a whole: purge, delete, expiry, snapshots, at-least-once (R-Q, R-ALO)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_machine import QueueMachine
from tests.unit.core.queue_driver import (
    QueueDriver,
    StepMeta,
    consumer,
    content,
    dead,
    delivered,
    only,
)

AT_LEAST_ONCE: dict[str, Any] = {
    "queue_type": "quorum",
    "at_least_once": True,
    "overflow": "reject-publish",
    "dead_letter_exchange": "dlx",
    "dead_letter_routing_key": "k",
    "delivery_limit": 0,
}


def letters_of(q: QueueDriver, count: int = 32) -> list[tuple[str, int, int]]:
    reply = q.reply(queue_commands.encode_dead_letters_checkout(count))
    return [(x["reason"], x["run"][0], x["run"][1]) for x in reply["letters"]]


def test_purge_removes_ready_messages_only_and_dead_letters_none() -> None:
    """R-Q-13, R-DLX-3"""
    q = QueueDriver(dead_letter_exchange="dlx")
    q.consume(prefetch=1)
    q.fill(4)
    outcome = q.send(queue_commands.encode_purge())
    assert queue_commands.decode_reply(outcome.reply) == {"messages": 3}
    assert outcome.effects == [effects.Dropped("purge", 3)]
    assert q.send(queue_commands.encode_purge()).effects == []
    assert (q.ready, q.unacked, q.count("purged")) == (0, 1, 3)


def test_delete_looks_at_its_conditions_and_ends_the_queue() -> None:
    """R-Q-12"""
    q = QueueDriver()
    q.fill(2)
    q.consume(prefetch=1)
    for if_empty, if_unused, text in ((True, False, "not empty"), (False, True, "in use")):
        reply = q.reply(queue_commands.encode_delete(if_empty, if_unused, "client"))
        assert (reply["deleted"], reply["refused"], reply["text"]) == (False, 406, text)
    outcome = q.send(queue_commands.encode_delete(False, False, "client"))
    assert queue_commands.decode_reply(outcome.reply) == {
        "deleted": True,
        "messages": 1,
        "consumers": 1,
    }
    assert only(outcome, effects.QueueDeleted).cause == "client"
    assert only(outcome, effects.ConsumerCancelled).consumer == consumer()
    assert (q.count("purged"), q.count("orphaned")) == (1, 1)
    assert list(q.machine.live_indexes()) == []


def test_a_deleted_queue_answers_everything() -> None:
    """R-PC-7, R-ACK-10, R-Q-12"""
    q = QueueDriver()
    q.send(queue_commands.encode_delete(False, False, "admin"))
    reply = enqueue_commands.decode_enqueue_reply(q.fill(3).reply)
    assert reply == (EnqueueStatus.DELETED, 3, 0)
    assert q.settle((0, 1)).reply == b""
    assert queue_commands.decode_reply(q.consume().reply)["refused"] == 404
    assert q.get()["refused"] == 404
    assert q.reply(queue_commands.encode_delete(True, True, "client"))["messages"] == 0
    assert q.reply(queue_commands.encode_purge())["messages"] == 0
    assert letters_of(q) == []
    assert q.machine.next_deadline_ms() is None


def test_every_new_leader_of_a_deleted_queue_says_so_again() -> None:
    q = QueueDriver()
    q.send(queue_commands.encode_delete(False, False, "admin"))
    restored = QueueMachine()
    restored.restore(q.machine.snapshot())
    found = restored.became_leader(StepMeta(9, 2, 5))
    assert found == [effects.QueueDeleted("admin")]


def test_an_auto_delete_queue_ends_with_its_last_consumer() -> None:
    """R-Q-10"""
    q = QueueDriver(auto_delete=True)
    q.get()
    q.consume("a", channel=1)
    q.consume("b", channel=2)
    q.send(queue_commands.encode_cancel(consumer("a")))
    assert q.machine.deleted is None
    assert only(q.channel_down(2), effects.QueueDeleted).cause == "auto-delete"


def test_a_queue_expires_after_its_lease_without_use() -> None:
    """R-Q-11"""
    q = QueueDriver(expires_ms=1000)
    q.fill(1)
    assert q.machine.next_deadline_ms() == q.now_ms + 1000
    q.now_ms += 900
    q.get()
    assert q.tick(900).effects == []
    q.consume()
    assert q.machine.next_deadline_ms() is None
    assert q.tick(5000).effects == []
    q.channel_down()
    assert q.tick(999).effects == []
    assert only(q.tick(1), effects.QueueDeleted).cause == "expired"


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_the_expiry_of_a_queue_waits_for_messages_on_their_way_to_its_dead_letter_exchange(
    queue_type: str,
) -> None:
    """R-Q-11: then the lease begins anew, so that they are gone before their queue is."""
    q = QueueDriver(
        queue_type=queue_type, expires_ms=100, expiry_waits=True, dead_letter_exchange="dlx"
    )
    q.publish(content(b"late", ttl_ms=5000))
    assert q.machine.next_deadline_ms() == q.now_ms + 5000
    assert q.tick(4999).effects == []
    outcome = q.tick(1)
    assert dead(outcome) == [("expired", [0])]
    assert q.machine.deleted is None
    assert q.tick(99).effects == []
    assert only(q.tick(1), effects.QueueDeleted).cause == "expired"


@pytest.mark.parametrize(
    "options",
    [
        {"dead_letter_exchange": "dlx"},
        {"expiry_waits": True},
        {"expiry_waits": True, "dead_letter_exchange": "dlx", "behind": True},
    ],
)
def test_every_other_queue_expires_with_what_is_in_it(options: dict[str, Any]) -> None:
    """R-Q-11, R-DLX-3: also where a message without an end stands before one that has one."""
    before = [content(b"stays")] if options.pop("behind", False) else []
    q = QueueDriver(expires_ms=100, **options)
    q.publish(*before, content(b"late", ttl_ms=5000))
    outcome = q.tick(100)
    assert only(outcome, effects.QueueDeleted).cause == "expired"
    assert only(outcome, effects.Dropped) == effects.Dropped("expired", len(before) + 1)
    assert dead(outcome) == []


def test_the_expiry_of_a_queue_waits_for_dead_letters_that_are_not_confirmed() -> None:
    """R-Q-11, R-ALO-3"""
    q = QueueDriver(**AT_LEAST_ONCE | {"expires_ms": 100, "expiry_waits": True})
    q.publish(content(b"late", ttl_ms=50))
    q.tick(50)
    assert (q.ready, q.machine.letters.count) == (0, 1)
    assert q.tick(10_000).effects == []
    q.send(queue_commands.encode_dead_letters_checkout(1))
    q.send(queue_commands.encode_dead_letters_settle([(0, 1)]))
    assert only(q.tick(), effects.QueueDeleted).cause == "expired"


def test_live_indexes_are_the_entries_that_still_hold_something() -> None:
    q = QueueDriver()
    for _ in range(4):
        q.fill(2)
    assert list(q.machine.live_indexes()) == [(1, 5)]
    q.consume(prefetch=5)
    q.settle((2, 4))
    assert list(q.machine.live_indexes()) == [(1, 2), (3, 5)]
    q.settle((0, 1), (4, 5))
    assert list(q.machine.live_indexes()) == [(1, 2), (3, 5)]
    q.settle((1, 2))
    assert list(q.machine.live_indexes()) == [(3, 5)]


def test_a_snapshot_and_the_rest_of_the_log_are_the_whole_log() -> None:
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume("a", prefetch=3)
    q.fill(5)
    q.publish(b"abc", b"d", b"")
    q.requeue((0, 1), who=consumer("a"))
    q.settle((1, 2), who=consumer("a"))
    q.send(queue_commands.encode_dead_letters_checkout(1))
    half = q.machine.snapshot()
    at = len(q.log)
    q.send(queue_commands.encode_node_down("n1"))
    q.tick(60_000)
    q.send(queue_commands.encode_node_up("n1", 7))
    q.channel_down()
    twin = QueueMachine()
    twin.restore(half)
    twin.check_invariants()
    for meta, command in q.log[at:]:
        twin.apply(meta, command)
    assert twin.snapshot() == q.machine.snapshot()
    assert twin.overview() == q.machine.overview()
    assert list(twin.live_indexes()) == list(q.machine.live_indexes())


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 9"):
        QueueMachine().restore(b"\x09" + QueueMachine().snapshot()[1:])


def test_dead_letters_wait_in_the_queue_until_all_targets_confirmed() -> None:
    """R-ALO-3, R-ALO-4, R-ALO-5"""
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume()
    q.fill(4)
    outcome = q.requeue((1, 2), (0, 1), (2, 3))
    assert [type(effect) for effect in outcome.effects] == [effects.DeadLettersWaiting]
    assert (q.ready, q.machine.overview()["dl_pending"]) == (0, 3)
    assert letters_of(q, 2) == [("delivery_limit", 1, 1), ("delivery_limit", 0, 1)]
    assert letters_of(q) == [("delivery_limit", 2, 1)]
    assert list(q.machine.live_indexes()) == [(2, 3)]
    q.send(queue_commands.encode_dead_letters_settle([(0, 2)]))
    assert (q.count("dl_out"), q.count("dl_confirmed")) == (3, 2)
    assert q.machine.overview()["dl_pending"] == 1
    q.settle((3, 4))
    q.send(queue_commands.encode_dead_letters_settle([(2, 3), (2, 3)]))
    assert list(q.machine.live_indexes()) == []


def test_a_new_leader_has_all_unsettled_dead_letters_again() -> None:
    """R-ALO-10"""
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume()
    q.fill(3)
    q.discard((0, 3))
    assert letters_of(q, 2) == [("rejected", 0, 2)]
    q.term = 2
    begun = q.machine.became_leader(StepMeta(9, 2, 5))
    consumers = tuple(consumer.id for consumer in q.machine.consumers.rows())
    assert len(consumers) == 1
    assert begun == [effects.LeadershipBegun(consumers), effects.DeadLettersWaiting()]
    assert letters_of(q) == [("rejected", 0, 2), ("rejected", 2, 1)]
    assert letters_of(q) == []


def test_a_settle_of_the_old_term_counts_although_the_letter_waits_again() -> None:
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume()
    q.fill(3)
    q.discard((0, 3))
    letters_of(q)
    q.term = 2
    assert letters_of(q, 1) == [("rejected", 0, 1)]
    q.send(queue_commands.encode_dead_letters_settle([(0, 2)]))
    assert q.machine.overview()["dl_pending"] == 1
    assert letters_of(q) == [("rejected", 2, 1)]


def test_waiting_dead_letters_count_against_the_length_limit() -> None:
    """R-ALO-12, R-LEN-8; R-LEN-7: one over the limit, and again from four fifths of it"""
    q = QueueDriver(**AT_LEAST_ONCE, max_length=2)
    q.consume()
    q.fill(3)
    q.discard((0, 3))
    q.send(queue_commands.encode_cancel(consumer()))
    assert q.accepted(b"x") == 0
    q.send(queue_commands.encode_dead_letters_settle([(0, 1)]))
    assert q.accepted(b"x") == 0
    q.send(queue_commands.encode_dead_letters_settle([(1, 2)]))
    assert q.accepted(b"x", b"y", b"z") == 2


def test_dead_letters_that_wait_follow_a_change_of_exchange() -> None:
    """R-ALO-9."""
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume()
    q.fill(2)
    q.discard((0, 2))
    outcome = q.configure(**{**AT_LEAST_ONCE, "dead_letter_exchange": "new"})
    assert outcome.effects == [effects.DeadLettersWaiting()]
    reply = q.reply(queue_commands.encode_dead_letters_checkout(1))
    assert (reply["exchange"], reply["routing_key"]) == ("new", "k")


@pytest.mark.parametrize(
    "change",
    [
        {"at_least_once": False},
        {"at_least_once": False, "overflow": "drop-head"},
        {"at_least_once": False, "dead_letter_exchange": None, "dead_letter_routing_key": None},
        {"dead_letter_exchange": None, "dead_letter_routing_key": None},
    ],
)
def test_dead_letters_that_wait_are_kept_whatever_the_settings_become(
    change: dict[str, Any],
) -> None:
    """R-ALO-9, G6: they go where they were to go, unless the settings name another place."""
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume()
    q.fill(3)
    q.discard((0, 2))
    outcome = q.configure(**{**AT_LEAST_ONCE, **change})
    assert outcome.effects == [effects.DeadLettersWaiting()]
    view = q.machine.overview()
    assert (view["dl_pending"], view["dl_old_terms"], q.count("dl_lost")) == (2, 2, 0)
    q.machine.restore(q.machine.snapshot())
    # As a new leader does.
    q.configure(**{**AT_LEAST_ONCE, **change})
    reply = q.reply(queue_commands.encode_dead_letters_checkout(9))
    target = (AT_LEAST_ONCE["dead_letter_exchange"], AT_LEAST_ONCE["dead_letter_routing_key"])
    assert (reply["exchange"], reply["routing_key"]) == target
    assert sum(letter["run"][1] for letter in reply["letters"]) == 2
    q.configure(**{**AT_LEAST_ONCE, "at_least_once": False, "dead_letter_exchange": "new"})
    reply = q.reply(queue_commands.encode_dead_letters_checkout(9))
    assert reply["exchange"] == "new"
    q.send(queue_commands.encode_dead_letters_settle([(0, 2)]))
    assert (q.machine.overview()["dl_old_terms"], q.count("dl_confirmed")) == (0, 2)
    # What dies from now on does so under the settings of now.
    outcome = q.discard((2, 3))
    assert only(outcome, effects.DeadLetter).exchange == "new"
    q.configure(**{**AT_LEAST_ONCE, **change})
    assert q.machine.options.letters_exchange is None


def test_dead_letters_of_older_settings_take_no_room_from_new_messages() -> None:
    """R-LEN-8: under drop-head each would drop one."""
    q = QueueDriver(**AT_LEAST_ONCE, max_length=2)
    q.consume(prefetch=3)
    q.fill(3)
    q.discard((0, 3))
    q.send(queue_commands.encode_cancel(consumer()))
    assert q.accepted(b"x") == 0
    q.configure(
        **{**AT_LEAST_ONCE, "at_least_once": False, "overflow": "drop-head", "max_length": 2}
    )
    assert q.accepted(b"x", b"y") == 2
    assert (q.ready, q.count("maxlen_drop"), q.machine.overview()["dl_old_terms"]) == (2, 0, 3)


def test_dead_letters_that_wait_are_given_up_by_name() -> None:
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume(prefetch=1)
    q.fill(3)
    q.discard((0, 1))
    q.reply(queue_commands.encode_dead_letters_checkout(1))
    discard = queue_commands.encode_dead_letters_discard()
    outcome = q.send(discard)
    assert queue_commands.decode_reply(outcome.reply) == {"messages": 1}
    assert outcome.effects == [effects.Dropped("purge", 0, 1)]
    assert (q.ready, q.count("purged"), q.count("dl_lost")) == (1, 0, 1)
    assert q.send(discard).effects == []
    q.send(queue_commands.encode_delete(False, False, "admin"))
    assert q.reply(discard) == {"messages": 0, "deleted": True}


def test_what_a_purge_a_setting_and_the_end_take_away_is_told() -> None:
    """R-LEN-10, R-Q-11; what is dead-lettered, or saved by an alternate exchange, is not gone."""
    q = QueueDriver(expires_ms=5)
    q.fill(4)
    assert q.configure(expires_ms=5, max_length=3).effects == [effects.Dropped("policy", 1)]
    assert q.configure(expires_ms=5, max_length=3).effects == []
    q.fill(1)
    assert only(q.tick(9), effects.Dropped) == effects.Dropped("expired", 3)
    q = QueueDriver(dead_letter_exchange="dlx")
    q.fill(4)
    q.consume(prefetch=1)
    shorter = q.configure(dead_letter_exchange="dlx", max_length=1)
    assert [type(effect) for effect in shorter.effects] == [effects.DeadLetter]
    outcome = q.send(queue_commands.encode_delete(False, False, "client"))
    assert only(outcome, effects.Dropped) == effects.Dropped("client", 2)
    for scope, lost in (("all", []), ("unacked", [effects.Dropped("client", 1)])):
        q = QueueDriver(alternate_exchange="alt", orphan_scope=scope)
        q.fill(2)
        q.consume(prefetch=1)
        outcome = q.send(queue_commands.encode_delete(False, False, "client"))
        assert [each for each in outcome.effects if isinstance(each, effects.Dropped)] == lost


def test_purge_of_a_quorum_queue_purges_its_dead_letters() -> None:
    """R-Q-13, R-QQ-19"""
    q = QueueDriver(**AT_LEAST_ONCE)
    q.consume(prefetch=1)
    q.fill(3)
    q.discard((0, 1))
    assert q.reply(queue_commands.encode_purge()) == {"messages": 2}
    assert (q.count("purged"), q.count("dl_lost")) == (1, 1)


def test_the_machine_tells_the_age_of_head_and_dead_letters() -> None:
    q = QueueDriver(**AT_LEAST_ONCE)
    q.fill(2)
    q.now_ms += 70
    q.consume(prefetch=1)
    q.discard((0, 1))
    view = q.machine.overview()
    assert (view["head_enqueued_ms"], view["dl_pending_since_ms"]) == (None, q.now_ms)
    q.fill(1)
    assert q.machine.overview()["head_enqueued_ms"] == q.now_ms
    assert delivered(q.settle((1, 2))) == {"c": [2]}


def test_a_declaration_is_answered_without_a_command_where_it_changes_nothing() -> None:
    """R-Q-3"""
    for queue_type in ("classic", "quorum"):
        q = QueueDriver(queue_type=queue_type)
        q.fill(3)
        q.consume(prefetch=1)
        declared = queue_commands.encode_declared()
        before = q.machine.snapshot()
        looked = q.machine.look(declared, q.now_ms)
        assert looked == b'{"ready":2,"consumers":1}'
        assert q.machine.snapshot() == before
        assert q.send(declared).reply == looked
        assert q.machine.look(queue_commands.encode_purge(), q.now_ms) is None


def test_a_declaration_says_who_holds_messages_of_a_quorum_queue_and_gets_no_more() -> None:
    """R-Q-3: each message of a get, a cancelled consumer once."""
    for queue_type, held in (("classic", (None, None)), ("quorum", (2, 3))):
        q = QueueDriver(queue_type=queue_type)
        q.fill(5)
        for _ in range(2):
            q.get()
        q.consume("c", prefetch=2)
        found = []
        for _ in range(2):
            reply = q.send(queue_commands.encode_declared()).reply
            found.append(queue_commands.decode_reply(reply))
            q.send(queue_commands.encode_cancel(consumer("c")))
        assert [row.get("holders") for row in found] == list(held)
        assert [row["consumers"] for row in found] == [1, 0]


def test_a_declaration_that_renews_a_lease_is_a_command() -> None:
    """R-Q-11: of a queue with an expiry, quorum queues of RabbitMQ's profiles aside."""
    declared = queue_commands.encode_declared()
    for options, is_look in (
        ({"expires_ms": 50}, False),
        ({"expires_ms": 50, "queue_type": "quorum"}, False),
        ({"expires_ms": 50, "queue_type": "quorum", "declare_renews": False}, True),
        ({}, True),
    ):
        q = QueueDriver(**options)
        assert (q.machine.look(declared, q.now_ms) is not None) == is_look


def test_a_declaration_while_time_has_something_to_do_is_a_command() -> None:
    """Messages that have expired do not count, and only a command makes them go."""
    q = QueueDriver(queue_type="quorum", message_ttl_ms=10)
    q.fill(1)
    declared = queue_commands.encode_declared()
    assert q.machine.look(declared, q.now_ms + 9) is not None
    assert q.machine.look(declared, q.now_ms + 10) is None
    q.now_ms += 10
    assert queue_commands.decode_reply(q.send(declared).reply)["ready"] == 0


def test_a_queue_that_has_ended_is_told_by_a_command() -> None:
    q = QueueDriver()
    q.send(queue_commands.encode_delete(False, False, "test"))
    assert q.machine.look(queue_commands.encode_declared(), q.now_ms) is None
