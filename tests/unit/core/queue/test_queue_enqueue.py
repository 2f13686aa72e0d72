"""Taking messages over: duplicates, gaps, length limits (R-QQ-8, R-LEN)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.effects import Run
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_commands import Kind
from tests.unit.core.queue_driver import (
    QueueDriver,
    StepMeta,
    check_total,
    consumer,
    content,
    dead,
    delivered,
    numbers,
    only,
)


def enqueue(first: int, count: int, channel: int = 50, incarnation: int = 7) -> bytes:
    batch = [content()] * count
    return enqueue_commands.encode_enqueue("n1", incarnation, channel, first, batch)


def reply(q: QueueDriver, command: bytes) -> tuple[EnqueueStatus, int, int]:
    return enqueue_commands.decode_enqueue_reply(q.send(command).reply)


def test_a_batch_sent_again_is_confirmed_and_not_taken_twice() -> None:
    """R-QQ-8"""
    q = QueueDriver(queue_type="quorum")
    assert reply(q, enqueue(1, 3)) == (EnqueueStatus.OK, 3, 0)
    assert reply(q, enqueue(1, 3)) == (EnqueueStatus.OK, 3, 0)
    assert reply(q, enqueue(2, 4)) == (EnqueueStatus.OK, 4, 0)
    assert q.ready == 5


def test_an_old_batch_that_comes_again_does_not_set_the_channel_back() -> None:
    """R-QQ-8: what came after it has come, and what follows that is no gap."""
    q = QueueDriver(queue_type="quorum")
    q.send(enqueue(1, 2))
    q.send(enqueue(3, 2))
    assert reply(q, enqueue(1, 2)) == (EnqueueStatus.OK, 2, 0)
    assert reply(q, enqueue(5, 1)) == (EnqueueStatus.OK, 1, 0)
    assert reply(q, enqueue(3, 2)) == (EnqueueStatus.OK, 2, 0)
    assert q.ready == 5


def test_a_consumer_tag_of_other_bytes_than_utf_8_settles() -> None:
    """AMQP 0-9-1 §4.2.5.3: short strings are bytes."""
    who = consumer("t\udcff")
    command = queue_commands.encode_ranges(Kind.SETTLE, who, [(0, 1)])
    assert queue_commands.decode_ranges(command)[0] == who


def test_the_new_part_of_a_half_known_batch_stands_at_its_place_in_the_entry() -> None:
    q = QueueDriver(queue_type="quorum")
    q.send(enqueue(1, 3))
    q.send(enqueue(2, 4))
    runs = only(q.consume(), effects.Deliver).runs
    assert [run[:4] for run in runs] == [(0, 3, 1, 0), (3, 2, 2, 2)]


def test_a_gap_is_refused_with_what_is_expected() -> None:
    q = QueueDriver(queue_type="quorum")
    q.send(enqueue(1, 3))
    assert reply(q, enqueue(5, 2)) == (EnqueueStatus.GAP, 0, 4)
    assert q.ready == 3


def test_enqueuers_are_forgotten_with_their_channel_or_incarnation() -> None:
    q = QueueDriver(queue_type="quorum")
    q.send(enqueue(1, 1))
    q.send(enqueue(1, 1, channel=51, incarnation=6))
    q.channel_down(50)
    assert reply(q, enqueue(2, 1)) == (EnqueueStatus.GAP, 0, 1)
    q.send(queue_commands.encode_node_up("n1", 7))
    assert len(q.machine.enqueuers) == 0


def test_sequence_number_zero_is_never_a_duplicate() -> None:
    q = QueueDriver()
    q.send(enqueue(0, 2))
    assert reply(q, enqueue(0, 2)) == (EnqueueStatus.OK, 2, 0)
    assert q.ready == 4


def test_drop_head_drops_the_oldest_and_accepts() -> None:
    """R-LEN-2, R-PC-5"""
    q = QueueDriver(max_length=2, dead_letter_exchange="dlx")
    assert q.accepted(b"a", b"b") == 2
    outcome = q.publish(b"c", b"d", b"e")
    assert dead(outcome) == [("maxlen", [0, 1, 2])]
    assert (q.ready, q.count("maxlen_drop")) == (2, 3)


def test_drop_head_by_bytes_counts_payload_on_classic_queues() -> None:
    """R-LEN-1"""
    q = QueueDriver(max_length_bytes=10)
    q.publish(b"x" * 4, b"x" * 3, b"x" * 3)
    assert q.ready == 3
    q.publish(b"x" * 5)
    assert [q.ready, q.machine.overview()["ready_bytes"]] == [2, 8]
    q.publish(b"x" * 11)
    assert q.ready == 0


def test_reject_publish_takes_a_prefix() -> None:
    """R-LEN-3"""
    q = QueueDriver(max_length=3, overflow="reject-publish")
    assert q.accepted(b"a", b"b") == 2
    assert q.accepted(b"c", b"d", b"e") == 1
    assert q.accepted(b"f") == 0
    assert (q.ready, q.count("refused"), q.count("enq")) == (3, 3, 3)
    assert dead(q.publish(b"g")) == []


def quorum_limit(**options: Any) -> QueueDriver:
    return QueueDriver(queue_type="quorum", overflow="reject-publish", **options)


def test_a_quorum_queue_refuses_from_one_over_the_limit_until_four_fifths_of_it() -> None:
    """R-LEN-7: limit 2, one by one, takes 3; R-LEN-3: as a batch too, the rest is refused"""
    q = quorum_limit(max_length=2)
    assert [q.accepted(b"x") for _ in range(4)] == [1, 1, 1, 0]
    q = quorum_limit(max_length=5)
    assert q.accepted(*[b"x"] * 9) == 6
    assert (q.ready, q.count("refused"), q.count("enq")) == (6, 3, 6)
    q.get(no_ack=True)
    assert (q.ready, q.accepted(b"x")) == (5, 0)
    q.get(no_ack=True)
    assert (q.ready, q.accepted(b"x", b"y", b"z")) == (4, 2)
    assert dead(q.publish(b"g")) == []


def test_a_quorum_queue_watches_the_bytes_of_its_limit_too() -> None:
    """R-LEN-7, R-LEN-1: both must be at four fifths; bytes are all that is stored"""
    q = quorum_limit(max_length_bytes=10, max_length=100)
    assert q.accepted(b"x" * 5, b"x" * 5, b"x") == 2
    q.get(no_ack=True)
    assert q.accepted(b"", b"x", b"") == 2
    assert quorum_limit(max_length=0).accepted(b"x", b"y") == 1


def test_a_limit_that_changes_lets_publishers_in_or_not_at_once() -> None:
    """R-LEN-7, R-LEN-10"""
    q = quorum_limit(max_length=2)
    q.fill(3)
    q.configure(queue_type="quorum", overflow="reject-publish", max_length=9)
    assert q.accepted(b"x") == 1
    q.configure(queue_type="quorum", overflow="reject-publish", max_length=3)
    assert q.accepted(b"x") == 0
    q.configure(queue_type="quorum", max_length=3)
    assert (q.ready, q.accepted(b"x")) == (3, 1)


def test_reject_publish_by_bytes() -> None:
    """R-LEN-1, R-LEN-3"""
    q = QueueDriver(max_length_bytes=10, overflow="reject-publish")
    assert q.accepted(b"x" * 4, b"x" * 6, b"") == 3
    assert q.accepted(b"x") == 0


def test_a_refused_message_that_is_sent_again_is_refused_again() -> None:
    """A lost reply must not turn a nack into an ack."""
    q = quorum_limit(max_length=1)
    assert reply(q, enqueue(1, 3)) == (EnqueueStatus.OK, 2, 0)
    q.send(queue_commands.encode_purge())
    assert reply(q, enqueue(4, 1)) == (EnqueueStatus.OK, 1, 0)
    assert reply(q, enqueue(1, 3)) == (EnqueueStatus.OK, 2, 0)
    assert reply(q, enqueue(3, 2)) == (EnqueueStatus.OK, 0, 0)
    assert reply(q, enqueue(4, 1)) == (EnqueueStatus.OK, 1, 0)


def test_reject_publish_is_checked_before_delivery_but_consumers_make_room() -> None:
    """R-LEN-3"""
    q = QueueDriver(max_length=2, overflow="reject-publish")
    q.consume(prefetch=4)
    assert q.accepted(*[b"x"] * 10) == 6
    q = QueueDriver(max_length=0, overflow="reject-publish")
    q.consume(prefetch=4)
    assert q.accepted(b"x") == 0


def test_reject_publish_dlx_dead_letters_what_it_refuses() -> None:
    """R-LEN-4"""
    q = QueueDriver(max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="dlx")
    outcome = q.publish(b"a", b"b", b"c")
    letter = only(outcome, effects.DeadLetter)
    assert letter.reason == "maxlen"
    assert [(run.length, run.entry, run.position) for run in letter.runs] == [(2, 1, 1)]
    assert (q.count("refused"), q.count("dl_out"), q.count("maxlen_drop")) == (2, 2, 0)


def test_reject_publish_dlx_on_quorum_behaves_as_drop_head() -> None:
    """R-LEN-4"""
    q = QueueDriver(queue_type="quorum", max_length=1, overflow="reject-publish-dlx")
    assert q.accepted(b"a", b"b") == 2
    assert (q.ready, q.count("maxlen_drop")) == (1, 1)


def test_at_most_once_dead_letters_pass_a_full_quorum_queue() -> None:
    """R-QQ-26, R-DLX-17; R-ALO-6: with a channel the limit holds"""
    for queue_type, channel, accepted in (("quorum", 0, 2), ("quorum", 9, 1), ("classic", 0, 0)):
        q = QueueDriver(queue_type=queue_type, max_length=0, overflow="reject-publish")
        assert reply(q, enqueue(0, 2, channel=channel))[1] == accepted


def test_max_length_0_delivers_to_whoever_is_ready_and_drops_the_rest() -> None:
    """R-LEN-5"""
    q = QueueDriver(max_length=0, dead_letter_exchange="dlx")
    q.consume(prefetch=1)
    outcome = q.publish(b"a", b"b")
    assert delivered(outcome) == {"c": [0]}
    assert dead(outcome) == [("maxlen", [1])]


def test_lowering_a_limit_trims_at_once() -> None:
    """R-LEN-10"""
    q = QueueDriver()
    q.fill(10)
    q.configure(max_length=4)
    assert (q.ready, q.count("maxlen_drop")) == (4, 6)


def test_drop_head_of_a_quorum_queue_takes_returned_messages_first() -> None:
    """R-LEN-9, R-LEN-11"""
    q = QueueDriver(queue_type="quorum", delivery_limit=9, max_length=3, dead_letter_exchange="d")
    q.fill(3)
    q.consume(prefetch=1)
    q.fill(1)
    q.send(queue_commands.encode_cancel(consumer()))
    assert dead(q.requeue((0, 1))) == [("maxlen", [0])]


def test_priorities_are_served_highest_first_and_fifo_inside() -> None:
    """R-PRI-1"""
    q = QueueDriver(max_priority=5)
    q.publish(content(priority=1), content(), content(priority=9), content(priority=1))
    assert delivered(q.consume()) == {"c": [2, 0, 3, 1]}


def test_drop_head_with_priorities_drops_what_would_be_delivered_next() -> None:
    """R-PRI-4: hi0 hi1 lo0 lo1 lo2 lo3 into max-length 3 leaves lo1 lo2 lo3"""
    q = QueueDriver(max_priority=1, max_length=3)
    for priority in (1, 1, 0, 0, 0, 0):
        q.publish(content(priority=priority))
    assert delivered(q.consume()) == {"c": [3, 4, 5]}


def test_a_message_without_priority_ranks_as_4_on_quorum_queues() -> None:
    """R-PRI-2: strict levels, absent = 4, more than 31 is 31."""
    q = QueueDriver(queue_type="quorum", max_priority=31)
    q.publish(content(b"plain"), content(b"p0", priority=0), content(b"p3", priority=3))
    q.publish(content(b"p5", priority=5), content(b"p99", priority=99), b"later")
    order = [q.get(no_ack=True)["run"][0] for _ in range(6)]
    assert order == [4, 3, 0, 5, 2, 1]


def test_a_requeued_message_keeps_its_priority() -> None:
    """R-PRI-3"""
    q = QueueDriver(max_priority=5)
    q.publish(content(), content(priority=3))
    q.consume(prefetch=1)
    q.send(queue_commands.encode_cancel(consumer()))
    q.publish(content(priority=4))
    q.requeue((1, 2))
    assert delivered(q.consume("d")) == {"d": [2, 1, 0]}


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\x01",
        b"\x02\x01",
        b"\x01\x63{}",
        b"\x01\x01",
        b"\x01\x02\x00",
        b"\x01\x05{}",
        b"\x01\x05[" * 5000,
        b"\x01\x0e" + b'{"queue_type": 3}',
        b"\x01\x0e" + b'{"max_length": "many"}',
        b"\x01\x08" + b'{"consumer": ["n", "x", 1, ""], "no_ack": true}',
        b"\x01\x11" + b'{"ranges": [[3, 1]]}',
        b"\x01\x11" + b'{"ranges": [[0, 99999999999999999999999]]}',
    ],
)
def test_a_malformed_command_is_refused_and_changes_nothing(command: bytes) -> None:
    q = QueueDriver()
    q.fill(2)
    before = q.machine.snapshot()
    assert queue_commands.decode_reply(q.send(command).reply)["refused"] == 400
    assert q.machine.snapshot() == before


def test_every_truncation_and_every_flipped_byte_of_an_enqueue_command_is_answered() -> None:
    batch = [content(b"abc", ttl_ms=5), (("e", "other"), b"h", b"body", b"")]
    check_total(enqueue_commands.encode_enqueue("n1", 7, 50, 1, batch))


def test_a_count_without_messages_costs_nothing() -> None:
    """A hostile count is compared with the bytes that are there before anything is built."""
    good = bytearray(enqueue_commands.encode_enqueue("n1", 7, 50, 1, [content()]))
    good[6:10] = b"\xff\xff\xff\xff"
    q = QueueDriver()
    assert queue_commands.decode_reply(q.send(bytes(good)).reply)["refused"] == 400


def test_two_machines_with_the_same_log_are_equal() -> None:
    q = QueueDriver(queue_type="quorum", delivery_limit=2)
    q.fill(5)
    q.consume(prefetch=2)
    q.requeue((0, 1))
    twin = QueueDriver(queue_type="quorum", delivery_limit=2).machine
    for meta, command in q.log:
        twin.apply(StepMeta(meta.index, meta.term, meta.now_ms), command)
    assert twin.snapshot() == q.machine.snapshot()


def test_a_settle_of_what_was_never_delivered_changes_nothing() -> None:
    q = QueueDriver()
    q.fill(3)
    q.settle((0, 3))
    q.consume(prefetch=1)
    command = queue_commands.encode_ranges(Kind.SETTLE, consumer("other"), [(0, 1)])
    assert q.send(command).reply == b""
    assert (q.ready, q.unacked) == (2, 1)
    assert numbers(only(q.settle((0, 1)), effects.Deliver).runs) == [1]


def test_a_command_without_its_numbers_brings_the_same_messages_as_new_ones() -> None:
    """What was kept aside is published again: no gap before it, no duplicate of what is there."""
    contents = [(("x", "key"), b"head", b"body %d" % number, b"") for number in range(3)]
    command = enqueue_commands.encode_enqueue("n0", 5, 9, 40, contents)
    again = enqueue_commands.EnqueueHead(enqueue_commands.unnumbered(command))
    assert (again.node, again.incarnation, again.channel, again.first_sequence) == ("n0", 0, 1, 0)
    assert again.count == 3
    assert again.data[again.blob_start :] == command[again.blob_start :]


def test_what_is_refused_for_a_dead_letter_exchange_says_where_it_is() -> None:
    """R-LEN-4: numbers that were never given, places in the entry that are real."""
    driver = QueueDriver(max_length=2, overflow="reject-publish-dlx", dead_letter_exchange="dlx")
    driver.fill(1)
    outcome = driver.fill(4)
    letter = only(outcome, effects.DeadLetter)
    assert letter.runs == [Run(2, 3, 2, 1, 0, 0)]
    assert (driver.count("refused"), driver.count("dl_out")) == (3, 3)


def test_what_is_refused_without_that_is_only_refused() -> None:
    """R-LEN-3: reject-publish tells the publisher and nobody else."""
    driver = QueueDriver(max_length=1, overflow="reject-publish", dead_letter_exchange="dlx")
    assert dead(driver.fill(3)) == []
    assert (driver.ready, driver.count("refused"), driver.count("dl_out")) == (1, 2, 0)
    plain = QueueDriver(max_length=1, overflow="reject-publish-dlx")
    assert dead(plain.fill(3)) == []
    assert plain.count("dl_out") == 0


def test_a_limit_lets_in_what_a_consumer_makes_room_for_in_one_batch() -> None:
    driver = QueueDriver(max_length=1, overflow="reject-publish")
    driver.consume("c", prefetch=2)
    outcome = driver.fill(5)
    assert delivered(outcome) == {"c": [0, 1]}
    assert (driver.ready, driver.unacked, driver.count("refused")) == (1, 2, 2)
