"""What several channels of a member acknowledge together (ADR 65)."""

from __future__ import annotations

import pytest

from brokerd.core.message import Range
from brokerd.core.queue import joined_settlements, queue_commands, queue_decoders
from brokerd.core.queue.queue_commands import Kind
from tests.unit.core.queue_driver import QueueDriver, consumer, delivered


def part(tag: str, *ranges: Range, kind: Kind = Kind.SETTLE) -> bytes:
    return queue_commands.encode_ranges(kind, consumer(tag), ranges)


def three_consumers(**options: object) -> QueueDriver:
    """Each holds one message of six, number 0 to 2."""
    q = QueueDriver(**options)
    for tag in "abc":
        q.consume(tag, prefetch=1)
    assert delivered(q.fill(6)) == {"a": [0], "b": [1], "c": [2]}
    return q


def test_parts_come_back_as_they_went() -> None:
    parts = [part("a", (0, 1)), part("longer", (1, 2), (5, 9)), part("c", (2, 3))]
    assert joined_settlements.decode(joined_settlements.encode(parts)) == parts
    kind, commands = queue_decoders.decode(joined_settlements.encode(parts))
    assert kind == Kind.JOINED_SETTLEMENTS
    assert [(each.consumer, each.ranges) for each in commands] == [
        (consumer("a"), [(0, 1)]),
        (consumer("longer"), [(1, 2), (5, 9)]),
        (consumer("c"), [(2, 3)]),
    ]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_all_are_settled_and_the_queue_serves_once(queue_type: str) -> None:
    """R-ACK-1, R-QOS-1: each consumer has room for one again."""
    q = three_consumers(queue_type=queue_type)
    outcome = q.send(joined_settlements.encode([part("c", (2, 3)), part("a", (0, 1))]))
    assert outcome.reply == b""
    assert delivered(outcome) == {"c": [3], "a": [4]}
    assert q.count("ack") == 2
    assert (q.ready, q.unacked) == (1, 3)


def test_twice_is_as_once_and_what_a_consumer_does_not_hold_stays() -> None:
    """R-ACK-10: a copy, another's message, a consumer that is gone."""
    q = three_consumers(queue_type="quorum")
    command = joined_settlements.encode(
        [part("a", (0, 1)), part("a", (0, 2)), part("nobody", (2, 3))]
    )
    assert delivered(q.send(command)) == {"a": [3]}
    assert delivered(q.send(command)) == {}
    assert q.count("ack") == 1
    assert q.unacked == 3


def test_a_queue_that_has_ended_answers_as_to_one() -> None:
    q = three_consumers()
    q.send(queue_commands.encode_delete(False, False, "deleted"))
    assert q.send(joined_settlements.encode([part("a", (0, 1)), part("b", (1, 2))])).reply == b""


@pytest.mark.parametrize(
    "parts",
    [
        [part("a", (0, 1)), part("b", (1, 2), kind=Kind.RETURN)],
        [part("a", (0, 1)), b""],
        [part("a", (0, 1)), joined_settlements.encode([part("b", (1, 2))])],
        [part("a", (0, 1)), part("b", (2, 1))],
    ],
)
def test_what_is_no_settlement_is_refused_with_all_of_the_command(parts: list[bytes]) -> None:
    q = three_consumers(queue_type="quorum")
    answer = q.send(joined_settlements.encode(parts)).reply
    assert queue_commands.decode_reply(answer)["refused"] == 400
    assert q.unacked == 3


def test_every_truncation_is_refused_and_every_flipped_bit_leaves_a_sound_queue() -> None:
    good = joined_settlements.encode([part("a", (0, 1)), part("b", (1, 2), (3, 4))])
    for size in range(len(good)):
        answer = QueueDriver().send(good[:size]).reply
        assert queue_commands.decode_reply(answer)["refused"] == 400
    for bit in range(8 * len(good)):
        q = three_consumers(queue_type="quorum")
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        q.send(bytes(bad))
        q.machine.check_invariants()


def test_a_hostile_number_of_parts_costs_nothing() -> None:
    good = bytearray(joined_settlements.encode([part("a", (0, 1))]))
    good[2:6] = b"\xff\xff\xff\xff"
    answer = three_consumers().send(bytes(good)).reply
    assert queue_commands.decode_reply(answer)["refused"] == 400
