"""Who gets what: consumers, prefetch, get, channel and node ends (R-CS, R-QOS, R-QQ)."""

from __future__ import annotations

import pytest

from brokerd.core.machine import Outcome
from brokerd.core.queue import effects, queue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.queue_state import DELIVERIES_PER_COMMAND_MAX
from tests.unit.core.queue_driver import QueueDriver, consumer, delivered, numbers, only


def test_a_batch_is_shared_evenly_among_equals_in_runs() -> None:
    """R-CS-4"""
    q = QueueDriver()
    q.consume("a")
    q.consume("b")
    assert delivered(q.fill(10)) == {"a": [0, 1, 2, 3, 4], "b": [5, 6, 7, 8, 9]}


def test_single_messages_go_round() -> None:
    """R-CS-4"""
    q = QueueDriver()
    for tag in "abc":
        q.consume(tag)
    order = [next(iter(delivered(q.fill(1)))) for _ in range(7)]
    assert order == ["a", "b", "c", "a", "b", "c", "a"]


def test_a_lower_priority_gets_messages_only_when_higher_ones_are_full() -> None:
    """R-CS-4"""
    q = QueueDriver()
    q.consume("low", prefetch=5, priority=-1)
    q.consume("high", prefetch=2, priority=1)
    assert delivered(q.fill(4)) == {"high": [0, 1], "low": [2, 3]}
    assert delivered(q.settle((0, 1), who=consumer("high"))) == {}
    assert delivered(q.fill(1)) == {"high": [4]}


def test_messages_are_wanted_while_none_is_ready_and_someone_could_take_one() -> None:
    """R-FQ-2, R-FQ-3: neither a get nor a consumer below 0 is demand."""
    q = QueueDriver()
    assert not q.machine.wants_messages()
    q.consume("low", priority=-1)
    assert not q.machine.wants_messages()
    q.consume("a", prefetch=2)
    assert q.machine.wants_messages()
    # The third goes to the one below.
    q.fill(3)
    assert not q.machine.wants_messages()
    q.settle((0, 1), who=consumer("a"))
    assert q.machine.wants_messages()
    q.send(queue_commands.encode_cancel(consumer("low")))
    q.fill(2)
    assert not q.machine.wants_messages()


def test_prefetch_counts_what_is_not_settled() -> None:
    """R-QOS-4, R-QOS-5"""
    q = QueueDriver()
    q.consume(prefetch=3)
    assert delivered(q.fill(5)) == {"c": [0, 1, 2]}
    assert delivered(q.settle((0, 2))) == {"c": [3, 4]}
    assert q.unacked == 3


def test_prefetch_0_is_2000_on_quorum_and_unlimited_on_classic() -> None:
    """R-QQ-12, R-QOS-1"""
    for queue_type, unacked in (("quorum", 2000), ("classic", 2500)):
        q = QueueDriver(queue_type=queue_type)
        q.consume()
        q.fill(2500)
        assert q.unacked == unacked


def test_no_ack_messages_are_settled_when_handed_out() -> None:
    """R-QQ-12, R-QOS-4"""
    q = QueueDriver()
    q.consume(prefetch=1, no_ack=True)
    assert delivered(q.fill(3)) == {"c": [0, 1, 2]}
    assert (q.unacked, q.count("ack"), q.count("dlv")) == (0, 3, 3)
    assert list(q.machine.live_indexes()) == []


def test_one_command_hands_out_a_bounded_number_and_asks_for_a_tick() -> None:
    q = QueueDriver()
    total = 2 * DELIVERIES_PER_COMMAND_MAX + 5
    q.fill(total)
    got = numbers(only(q.consume(no_ack=True), effects.Deliver).runs)
    assert len(got) == DELIVERIES_PER_COMMAND_MAX
    assert q.machine.next_deadline_ms() == q.now_ms
    got += numbers(only(q.tick(), effects.Deliver).runs)
    got += numbers(only(q.tick(), effects.Deliver).runs)
    assert got == list(range(total))
    assert q.machine.next_deadline_ms() is None


def test_exclusive_consumers_exclude_others_on_classic_queues() -> None:
    """R-CS-2"""
    q = QueueDriver()
    q.consume("a")
    refused = {"refused": 403, "text": "in exclusive use"}
    assert queue_commands.decode_reply(q.consume("b", exclusive=True).reply) == refused
    q.send(queue_commands.encode_cancel(consumer("a")))
    assert queue_commands.decode_reply(q.consume("b", exclusive=True).reply) == {"ok": True}
    assert queue_commands.decode_reply(q.consume("c").reply) == refused
    assert queue_commands.decode_reply(q.consume("b", exclusive=True).reply) == {"ok": True}


def test_quorum_queues_accept_and_ignore_exclusive() -> None:
    """R-CS-2, R-QQ-13, O-13"""
    q = QueueDriver(queue_type="quorum", single_active_consumer=True)
    q.consume("a", exclusive=True)
    assert queue_commands.decode_reply(q.consume("b", exclusive=True).reply) == {"ok": True}


def test_single_active_consumer_with_exclusive_is_refused_on_classic() -> None:
    """R-CS-7"""
    q = QueueDriver(single_active_consumer=True)
    assert queue_commands.decode_reply(q.consume(exclusive=True).reply)["refused"] == 403


def test_one_consumer_is_active_and_the_next_follows_when_it_goes() -> None:
    """R-CS-7, classic: highest priority, then longest registered; no newcomer displaces it"""
    q = QueueDriver(single_active_consumer=True)
    q.consume("a", channel=1)
    q.consume("b", channel=2)
    q.consume("c", channel=3, priority=1)
    assert delivered(q.fill(2)) == {"a": [0, 1]}
    assert delivered(q.channel_down(1)) == {"c": [0, 1]}
    q.channel_down(3)
    assert [row["active"] for row in q.machine.consumer_rows()] == [True]


def test_a_higher_priority_replaces_the_active_one_of_a_quorum_queue_after_it_drained() -> None:
    """R-CS-7, quorum"""
    q = QueueDriver(queue_type="quorum", single_active_consumer=True)
    q.consume("a", prefetch=5)
    q.fill(2)
    assert delivered(q.consume("b", priority=1)) == {}
    assert delivered(q.fill(2)) == {}
    assert delivered(q.settle((0, 1), who=consumer("a"))) == {}
    assert delivered(q.settle((1, 2), who=consumer("a"))) == {"b": [2, 3]}


def test_get_takes_one_and_tells_how_many_remain() -> None:
    """R-CS-8"""
    q = QueueDriver()
    assert q.get() == {"run": None, "ready": 0}
    q.fill(3)
    assert q.get() == {"run": [0, 1, 2, 0, 0, 0], "ready": 2}
    assert q.get(no_ack=True) == {"run": [1, 1, 2, 1, 0, 0], "ready": 1}
    assert (q.unacked, q.count("get_empty"), q.count("ack")) == (1, 1, 1)
    q.settle((0, 1), who=consumer(""))
    assert q.unacked == 0


def test_get_is_refused_on_quorum_queues_with_single_active_consumer() -> None:
    """R-CS-7, R-QQ-20"""
    assert QueueDriver(queue_type="quorum", single_active_consumer=True).get()["refused"] == 405


def test_a_cancelled_consumer_keeps_what_it_has() -> None:
    """R-CS-3"""
    q = QueueDriver()
    q.consume("a", prefetch=2)
    q.fill(3)
    q.send(queue_commands.encode_cancel(consumer("a")))
    assert (q.ready, q.unacked, q.machine.overview()["consumers"]) == (1, 2, 0)
    q.settle((0, 1), who=consumer("a"))
    assert q.unacked == 1
    assert delivered(q.channel_down()) == {}
    assert q.ready == 2


def test_messages_of_an_ended_channel_return_in_order_and_are_redelivered() -> None:
    """R-ACK-12, R-ACK-8"""
    q = QueueDriver()
    q.consume("a", prefetch=2, channel=1)
    q.fill(4)
    q.channel_down(1)
    runs = only(q.consume("b", channel=2), effects.Deliver).runs
    assert [(run.first, run.length, run.acquired_count) for run in runs] == [(0, 2, 1), (2, 2, 0)]
    assert (q.count("redlv"), q.count("dlv"), q.count("requeue")) == (2, 6, 2)


def test_messages_of_an_unreachable_node_return_after_a_while_and_no_others_come() -> None:
    """R-QQ-16"""
    q = QueueDriver(queue_type="quorum", delivery_limit=5, delivery_count_mode="4.3")
    q.consume("a", prefetch=2, node="n2")
    q.fill(3)
    q.send(queue_commands.encode_node_down("n2"))
    assert q.machine.next_deadline_ms() == q.now_ms + 60_000
    q.tick(59_999)
    assert q.unacked == 2
    q.tick(1)
    assert (q.ready, q.unacked) == (3, 0)
    assert q.machine.next_deadline_ms() is None
    got = delivered(q.send(queue_commands.encode_node_up("n2", 7)))
    assert got == {"a": [0, 1]}
    # Uncounted in 4.3 (R-DL-2).
    rows = [span.delivery_count for c in q.machine.consumers.rows() for span in c.held]
    assert rows == [0]


def test_a_node_that_comes_back_in_time_keeps_its_messages() -> None:
    """R-QQ-10, R-QQ-16"""
    q = QueueDriver(queue_type="quorum")
    q.consume("a", prefetch=2, node="n2")
    q.fill(3)
    q.send(queue_commands.encode_node_down("n2"))
    q.now_ms += 30_000
    q.send(queue_commands.encode_node_up("n2", 7))
    q.tick(60_000)
    assert q.unacked == 2


def test_a_restarted_node_has_lost_its_consumers() -> None:
    """R-QQ-16: a process death returns at once, counted"""
    q = QueueDriver(queue_type="quorum", delivery_limit=5, delivery_count_mode="4.3")
    q.consume("a", node="n2", incarnation=1)
    q.fill(2)
    q.send(queue_commands.encode_node_up("n2", 2))
    assert (q.ready, q.machine.overview()["consumers"]) == (2, 0)
    runs = only(q.consume("b"), effects.Deliver).runs
    assert [(run.acquired_count, run.delivery_count) for run in runs] == [(1, 1)]


def redelivered(outcome: Outcome) -> list[bool]:
    """Return for each message of a delivery whether it is flagged."""
    runs = only(outcome, effects.Deliver).runs
    return [run.acquired_count > 0 for run in runs for _ in range(run.length)]


def test_what_a_classic_queue_held_when_its_member_was_killed_is_flagged() -> None:
    """ADR 23: some of it may have been delivered by commands that were lost."""
    q = QueueDriver()
    q.consume("a", prefetch=1, incarnation=1)
    q.fill(2)
    q.fill(2)
    q.send(queue_commands.encode_node_up("n1", 2, leads=True))
    q.fill(1)
    restored = QueueMachine()
    restored.restore(q.machine.snapshot())
    q.machine = restored
    assert redelivered(q.consume("b", incarnation=2)) == [True] * 4 + [False]
    assert q.count("redlv") == 4


@pytest.mark.parametrize("reason", ["another member", "no consumer", "quorum"])
def test_nothing_is_flagged_that_nobody_can_have_been_sent(reason: str) -> None:
    """ADR 23"""
    q = QueueDriver(queue_type="quorum" if reason == "quorum" else "classic")
    if reason != "no consumer":
        q.consume("a", prefetch=1, incarnation=1)
    q.fill(3)
    q.send(queue_commands.encode_node_up("n1", 2, leads=reason != "another member"))
    held = reason != "no consumer"
    assert redelivered(q.consume("b", incarnation=2)) == [held, False, False]


def test_a_leader_that_missed_a_restart_ends_no_consumer_of_the_new_incarnation() -> None:
    """R-QQ-16: it says the incarnation that it last heard of."""
    q = QueueDriver(queue_type="quorum")
    q.consume("a", node="n2", incarnation=2)
    q.fill(2)
    q.send(queue_commands.encode_node_up("n2", 1))
    assert (q.unacked, q.machine.overview()["consumers"]) == (2, 1)


def test_single_activity_leaves_a_consumer_whose_node_is_gone_for_too_long() -> None:
    """R-CS-7, R-QQ-16; what nobody asked to requeue is served first, with or without a limit."""
    q = QueueDriver(queue_type="quorum", single_active_consumer=True)
    q.consume("a", node="n2")
    q.consume("b")
    q.fill(1)
    q.send(queue_commands.encode_node_down("n2"))
    assert delivered(q.fill(1)) == {}
    assert delivered(q.tick(60_000)) == {"b": [0, 1]}


def test_resume_sends_again_what_did_not_arrive() -> None:
    """R-QQ-10; rabbitmq-server #15473"""
    q = QueueDriver(queue_type="quorum")
    q.consume()
    q.fill(4)
    q.fill(4)
    outcome = q.send(queue_commands.encode_resume(consumer(), [(0, 1), (3, 6), (40, 50)]))
    assert delivered(outcome) == {"c": [1, 2, 6, 7]}
    assert q.unacked == 8
    everything = q.send(queue_commands.encode_resume(consumer(), []))
    assert delivered(everything) == {"c": list(range(8))}
    nothing = q.send(queue_commands.encode_resume(consumer(), [(0, 8)]))
    assert delivered(nothing) == {}


def test_resume_of_an_unknown_consumer_says_so() -> None:
    q = QueueDriver()
    reply = q.reply(queue_commands.encode_resume(consumer("x"), []))
    assert reply["refused"] == 404


def test_consumer_rows_are_in_order_of_registration() -> None:
    q = QueueDriver(queue_type="quorum")
    q.consume("b", prefetch=3, priority=2)
    q.consume("a", no_ack=True)
    rows = q.machine.consumer_rows()
    assert [row["consumer"].tag for row in rows] == ["b", "a"]
    assert rows[0]["user"] == "guest"
    assert q.machine.overview()["prefetch_sum"] == 2003


def test_a_registration_with_another_priority_moves_the_consumer() -> None:
    q = QueueDriver()
    q.consume("a", prefetch=1)
    q.consume("b", prefetch=9)
    q.consume("b", prefetch=9, priority=5)
    assert delivered(q.fill(2)) == {"b": [0, 1]}
