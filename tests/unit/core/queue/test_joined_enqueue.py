"""What several channels of a member send together (ADR 62): all of it is taken over, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.core.message import Content
from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.enqueue_commands import EnqueueHead, EnqueueStatus, EnqueueView, Share
from tests.unit.core.queue_driver import QueueDriver, check_total, content, delivered, only

A, B, C = 51, 52, 53


def bodies(shares: Sequence[Share]) -> list[Content]:
    return [
        content(b"%d.%d" % (channel, first + position))
        for channel, first, count in shares
        for position in range(count)
    ]


def joined(*shares: Share, batch: Sequence[Content] | None = None) -> bytes:
    contents = bodies(shares) if batch is None else batch
    return enqueue_commands.encode_joined("n1", 7, shares, contents)


def reply(q: QueueDriver, *shares: Share) -> tuple[EnqueueStatus, list[int]]:
    answer = q.send(joined(*shares)).reply
    status, accepted = enqueue_commands.decode_joined_reply(answer, len(shares))
    return status, list(accepted)


def alone(q: QueueDriver, share: Share) -> tuple[EnqueueStatus, int, int]:
    channel, first, _ = share
    command = enqueue_commands.encode_enqueue("n1", 7, channel, first, bodies([share]))
    return enqueue_commands.decode_enqueue_reply(q.send(command).reply)


def test_shares_are_taken_over_in_their_order_and_each_channel_goes_on() -> None:
    """R-QQ-8: later alone, or together with others."""
    q = QueueDriver(queue_type="quorum")
    assert reply(q, (A, 1, 2), (B, 1, 1)) == (EnqueueStatus.OK, [2, 1])
    assert alone(q, (A, 3, 1)) == (EnqueueStatus.OK, 1, 0)
    assert reply(q, (C, 1, 1), (A, 4, 1), (B, 2, 2)) == (EnqueueStatus.OK, [1, 1, 2])
    runs = only(q.consume(), effects.Deliver).runs
    assert [run[:4] for run in runs] == [(0, 3, 1, 0), (3, 1, 2, 0), (4, 4, 3, 0)]
    assert q.count("enq") == 8


def test_whoever_delivers_reads_the_messages_as_if_they_were_of_one_channel() -> None:
    shares = [(A, 1, 2), (B, 9, 1)]
    batch = [
        (("e", "k1"), b"h1", b"one", b""),
        (("e", "k2"), b"h2", b"", b"note"),
        (("e", "k1"), b"h3", b"three", b""),
    ]
    command = joined(*shares, batch=batch)
    view = EnqueueView(command)
    assert view.contents(0, 3) == batch
    assert view.contents(2, 1) == batch[2:]
    head = EnqueueHead(command)
    assert (head.shares, head.count, head.channel, head.first_sequence) == (shares, 3, A, 1)
    assert EnqueueHead(enqueue_commands.encode_enqueue("n1", 7, A, 1, batch)).shares is None


def test_a_copy_is_confirmed_and_not_taken_twice() -> None:
    """R-QQ-8"""
    q = QueueDriver(queue_type="quorum")
    assert reply(q, (A, 1, 2), (B, 1, 1)) == (EnqueueStatus.OK, [2, 1])
    alone(q, (B, 2, 4))
    assert reply(q, (A, 1, 2), (B, 1, 1)) == (EnqueueStatus.OK, [2, 1])
    assert q.ready == 7


@pytest.mark.parametrize(
    "shares",
    [
        # What B follows has not arrived.
        [(A, 3, 1), (B, 3, 1)],
        # A's channel has ended, or the queue has lost what it knew of it; B's was taken over.
        [(C, 1, 1), (B, 1, 1)],
        # Half of it is known.
        [(A, 2, 2), (B, 2, 1)],
        # Twice the same channel.
        [(A, 3, 1), (A, 4, 1)],
    ],
)
def test_what_does_not_fit_as_a_whole_changes_nothing(shares: list[Share]) -> None:
    """Its sender has it go again, behind what it follows, or hears that it is lost for good."""
    q = QueueDriver(queue_type="quorum")
    reply(q, (A, 1, 2), (B, 1, 1))
    before = q.machine.snapshot()
    answer = q.send(joined(*shares)).reply
    assert answer.startswith(enqueue_commands.GAP_REPLY)
    assert enqueue_commands.decode_joined_reply(answer, 2) == (EnqueueStatus.GAP, [0, 0])
    assert enqueue_commands.decode_enqueue_reply(answer)[0] is EnqueueStatus.GAP
    assert q.machine.snapshot() == before


def test_what_a_full_queue_refuses_is_told_to_each_and_refused_again() -> None:
    """R-LEN-3, R-QQ-8: from the first message that does not fit on."""
    q = QueueDriver(max_length=3, overflow="reject-publish")
    shares = (A, 1, 2), (B, 1, 3), (C, 1, 1)
    assert reply(q, *shares) == (EnqueueStatus.OK, [2, 1, 0])
    assert (q.ready, q.count("refused")) == (3, 3)
    q.send(queue_commands.encode_purge())
    assert reply(q, *shares) == (EnqueueStatus.OK, [2, 1, 0])
    assert q.ready == 0
    assert reply(q, (B, 4, 1), (C, 2, 1)) == (EnqueueStatus.OK, [1, 1])


def test_limits_and_consumers_see_the_messages_one_by_one() -> None:
    """R-LEN-3: the limit lets in what consumers make room for; R-LEN-2: the oldest are dropped."""
    q = QueueDriver(max_length=1, overflow="reject-publish")
    q.consume(no_ack=True)
    assert reply(q, (A, 1, 2), (B, 1, 2)) == (EnqueueStatus.OK, [2, 2])
    q = QueueDriver(max_length=2)
    assert reply(q, (A, 1, 2), (B, 1, 2)) == (EnqueueStatus.OK, [2, 2])
    assert (q.ready, q.count("maxlen_drop")) == (2, 2)


def test_own_ttl_and_priority_stay_with_their_message() -> None:
    """R-TTL-1, R-PRI-1"""
    q = QueueDriver(max_priority=9)
    batch = [content(b"low"), content(b"soon", ttl_ms=5), content(b"high", priority=7)]
    q.send(joined((A, 1, 1), (B, 1, 2), batch=batch))
    q.now_ms += 10
    assert delivered(q.consume(no_ack=True)) == {"c": [2, 0]}


def test_a_queue_that_has_ended_counts_as_having_taken_it_over() -> None:
    """R-PC-7"""
    q = QueueDriver()
    q.send(queue_commands.encode_delete(False, False, "test"))
    assert reply(q, (A, 1, 1), (B, 1, 1))[0] is EnqueueStatus.DELETED


def test_channels_end_one_by_one() -> None:
    q = QueueDriver(queue_type="quorum")
    reply(q, (A, 1, 1), (B, 1, 1))
    q.channel_down(A)
    assert [key.channel for key, _, _ in q.machine.enqueuers.rows()] == [B]
    assert reply(q, (B, 2, 1)) == (EnqueueStatus.OK, [1])


def test_without_its_numbers_it_brings_the_same_messages_as_new_ones() -> None:
    """What was kept aside is published again: no gap before it, no duplicate of what is there."""
    command = joined((A, 4, 2), (B, 9, 1))
    again = enqueue_commands.unnumbered(command)
    head, view = EnqueueHead(again), EnqueueView(again)
    assert (head.incarnation, head.channel, head.first_sequence, head.shares) == (0, 1, 0, None)
    assert view.contents(0, 3) == EnqueueView(command).contents(0, 3)
    q = QueueDriver()
    assert enqueue_commands.decode_enqueue_reply(q.send(again).reply) == (EnqueueStatus.OK, 3, 0)


def test_a_snapshot_knows_the_channels_and_the_messages() -> None:
    q = QueueDriver(queue_type="quorum")
    reply(q, (A, 1, 2), (B, 1, 1))
    again = QueueDriver(queue_type="quorum")
    again.machine.restore(q.machine.snapshot())
    again.index = q.index
    assert reply(again, (A, 1, 2), (B, 1, 1)) == (EnqueueStatus.OK, [2, 1])
    assert reply(again, (A, 3, 1), (B, 2, 1)) == (EnqueueStatus.OK, [1, 1])
    assert again.machine.overview()["ready"] == 5


@pytest.mark.parametrize("wrong", [(0, 1, 1), (A, 0, 1), (A, 1, 0)])
def test_a_share_of_nothing_is_refused(wrong: Share) -> None:
    q = QueueDriver()
    command = joined((B, 1, 1), wrong, batch=bodies([(B, 1, 1), (A, 1, wrong[2])]))
    assert queue_commands.decode_reply(q.send(command).reply)["refused"] == 400


def test_counts_that_disagree_are_refused() -> None:
    q = QueueDriver()
    command = joined((A, 1, 1), (B, 1, 1), batch=bodies([(A, 1, 3)]))
    assert queue_commands.decode_reply(q.send(command).reply)["refused"] == 400


def test_every_truncation_and_every_flipped_bit_is_answered() -> None:
    check_total(joined((A, 1, 1), (B, 1, 2)))


def test_a_hostile_number_of_shares_costs_nothing() -> None:
    good = bytearray(joined((A, 1, 1), (B, 1, 2)))
    at = good.index(b"n1") + 2
    good[at : at + 2] = b"\xff\xff"
    fields: dict[str, Any] = queue_commands.decode_reply(QueueDriver().send(bytes(good)).reply)
    assert fields["refused"] == 400


def test_publishers_that_have_ended_are_forgotten_and_what_others_hold_stays() -> None:
    q = QueueDriver(queue_type="quorum")
    reply(q, (A, 1, 1), (B, 1, 1), (C, 1, 1))
    q.consume(channel=A)
    ended = queue_commands.encode_publishers_ended("n1", 7, [A, C, 99])
    for _ in range(2):
        assert queue_commands.decode_reply(q.send(ended).reply) == {"ok": True}
        assert [key.channel for key, _, _ in q.machine.enqueuers.rows()] == [B]
    assert q.unacked == 3
    other = queue_commands.encode_publishers_ended("n2", 7, [B])
    q.send(other)
    assert len(q.machine.enqueuers) == 1


def test_an_end_that_is_cut_off_is_refused() -> None:
    ended = queue_commands.encode_publishers_ended("n1", 7, [A, C])
    for size in range(2, len(ended)):
        answer = QueueDriver().send(ended[:size]).reply
        assert queue_commands.decode_reply(answer)["refused"] == 400
