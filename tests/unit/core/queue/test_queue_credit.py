"""Credit of consumers, and what comes back that no client was sent (ADR 69)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.queue import effects, queue_commands, queue_decoders
from brokerd.core.queue.queue_commands import WRITTEN_MAX, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.queue_state import DELIVERIES_PER_COMMAND_MAX
from tests.unit.core.queue_driver import (
    QueueDriver,
    consumer,
    content,
    delivered,
    numbers,
    only,
)

MODES = ("3.x", "4.0", "4.3", "failures")


def quorum(**options: Any) -> QueueDriver:
    return QueueDriver(queue_type="quorum", **options)


def all_ready(q: QueueDriver) -> list[tuple[int, int, int]]:
    """Take out all that is ready; return number and counts of each in order."""
    runs = only(q.consume("all", channel=99), effects.Deliver).runs
    return [
        (number, run.acquired_count, run.delivery_count)
        for run in runs
        for number in numbers([run])
    ]


def give_back(q: QueueDriver, *ranges: tuple[int, int]) -> Any:
    return q.requeue(*ranges, cause=ReturnCause.UNWRITTEN)


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_consumer_gets_as_much_as_it_was_granted_whatever_it_settles(queue_type: str) -> None:
    q = QueueDriver(queue_type=queue_type)
    q.fill(10)
    assert delivered(q.consume(credit=0, prefetch=100)) == {}
    assert delivered(q.consume(credit=3, prefetch=100)) == {"c": [0, 1, 2]}
    assert delivered(q.settle((0, 3))) == {}
    assert delivered(q.consume(credit=2, prefetch=100)) == {"c": [3, 4]}
    assert q.ready == 5


def test_what_one_has_no_credit_for_others_get() -> None:
    q = quorum()
    q.consume("a", credit=2)
    q.fill(2)
    q.settle((0, 2), who=consumer("a"))
    q.consume("b", channel=2, credit=5)
    assert delivered(q.fill(3)) == {"b": [2, 3, 4]}


def test_prefetch_holds_beside_the_credit() -> None:
    """R-QOS-2: whichever is less."""
    q = quorum()
    q.fill(10)
    assert delivered(q.consume(credit=6, prefetch=4)) == {"c": [0, 1, 2, 3]}
    assert delivered(q.settle((0, 4))) == {"c": [4, 5]}
    assert delivered(q.settle((4, 6))) == {}


def test_automatic_acknowledgement_spends_credit() -> None:
    q = QueueDriver()
    q.fill(3)
    assert delivered(q.consume(no_ack=True, credit=2)) == {"c": [0, 1]}


def test_the_books_show_what_consumers_may_hold() -> None:
    q = quorum()
    q.fill(3)
    q.consume("a", prefetch=7)
    q.consume("b", prefetch=100, credit=5, channel=2)
    q.settle((0, 3), who=consumer("a"))
    q.fill(14)
    # 7 and 5, however it was granted.
    assert q.machine.overview()["prefetch_sum"] == 12
    assert q.unacked == 12


def test_credit_is_kept_in_a_snapshot_and_bounded() -> None:
    q = quorum()
    q.consume(credit=1 << 60)
    q.consume(credit=4)
    q.fill(3)
    q.consume("plain", channel=2)
    restored = QueueMachine()
    restored.restore(q.machine.snapshot())
    assert restored.snapshot() == q.machine.snapshot()
    row = restored.consumers.get(consumer())
    assert row is not None
    assert row.credit == (1 << 32) - 3
    plain = restored.consumers.get(consumer("plain", 2))
    assert plain is not None
    assert plain.credit is None


@pytest.mark.parametrize("mode", MODES)
def test_what_was_not_written_returns_uncounted_to_its_place(mode: str) -> None:
    """R-DL-2, R-DL-5, R-QQ-14: in every mode, whatever the limit."""
    q = quorum(delivery_limit=0, delivery_count_mode=mode)
    q.fill(4)
    q.consume(prefetch=3)
    for _ in range(3):
        # It may have it again at once, as with every return.
        assert delivered(give_back(q, (1, 2))) == {"c": [1]}
    q.send(queue_commands.encode_cancel(consumer()))
    give_back(q, (1, 3))
    assert all_ready(q) == [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    assert (q.count("over_limit"), q.count("requeue")) == (0, 5)


@pytest.mark.parametrize(
    ("options", "failures"),
    [({"delivery_limit": 5}, 1), ({"delivery_limit": None, "delivery_count_mode": "failures"}, 0)],
    ids=["limit", "switched off"],
)
def test_what_was_not_written_of_the_returns_stands_before_them_again(
    options: dict[str, Any], failures: int
) -> None:
    """R-QQ-14, R-DL-7: by number; nothing is counted a second time, with a limit and with -1."""
    q = quorum(**options)
    q.fill(5)
    q.consume(prefetch=5)
    q.send(queue_commands.encode_cancel(consumer()))
    for number in (3, 1, 0):
        q.requeue((number, number + 1))
    q.consume("d", prefetch=2, channel=2)
    q.send(queue_commands.encode_cancel(consumer("d", 2)))
    q.requeue((1, 2), (3, 4), who=consumer("d", 2), cause=ReturnCause.UNWRITTEN)
    # Two and four never came back.
    assert all_ready(q) == [(number, 1, failures) for number in (1, 3, 0)]


def test_without_a_limit_it_goes_where_it_is_next_and_not_to_the_back() -> None:
    """R-DL-7 is for what a client has given back."""
    q = quorum(delivery_count_mode="4.3")
    q.fill(4)
    q.consume(prefetch=2)
    q.send(queue_commands.encode_cancel(consumer()))
    # Zero goes to the back, one was never seen.
    q.requeue((0, 1))
    give_back(q, (1, 2))
    assert all_ready(q) == [(1, 0, 0), (2, 0, 0), (3, 0, 0), (0, 1, 0)]


def test_a_classic_queue_flags_what_was_written_only() -> None:
    """R-ACK-5, R-ACK-8, R-LEN-11."""
    q = QueueDriver(max_length=3)
    q.consume(prefetch=4)
    q.fill(4)
    q.channel_down(written={"c": [(2, 3)]})
    assert all_ready(q) == [(1, 0, 0), (2, 1, 1), (3, 0, 0)]
    assert q.count("maxlen_drop") == 1


def test_a_message_that_was_not_written_is_not_delayed() -> None:
    """R-QQ-24."""
    q = quorum(delivery_limit=3, delayed_retry="all", delayed_retry_min_ms=50)
    q.fill(1)
    q.consume(prefetch=1)
    assert delivered(give_back(q, (0, 1))) == {"c": [0]}


@pytest.mark.parametrize("mode", MODES)
def test_the_end_of_a_channel_counts_what_was_written(mode: str) -> None:
    """R-DL-2, R-CH-5: also what a get brought, and the rest goes back to its place."""
    q = quorum(delivery_limit=0, delivery_count_mode=mode, dead_letter_exchange="dlx")
    q.fill(6)
    q.get()
    q.get()
    q.consume("a", prefetch=2)
    q.consume("b", prefetch=2)
    ended = q.channel_down(written={"a": [(2, 3)], "": [(0, 1), (40, 50)], "unknown": [(0, 9)]})
    assert [n for e in ended.effects if isinstance(e, effects.DeadLetter) for n in numbers(e.runs)]
    assert all_ready(q) == [(1, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0)]
    assert q.count("over_limit") == 2


def test_nobody_gets_back_at_once_what_its_ending_channel_was_not_written() -> None:
    """It would count as held by a consumer whose channel has ended."""
    q = quorum()
    q.fill(2)
    q.consume("a", prefetch=1)
    q.consume("other", channel=2, prefetch=1)
    q.settle((1, 2), who=consumer("other", 2))
    ended = q.channel_down(written={})
    assert delivered(ended) == {"other": [0]}
    assert only(ended, effects.Deliver).runs[0].acquired_count == 0


def test_the_end_of_a_channel_that_does_not_say_counts_all() -> None:
    """R-DL-2: a member of an earlier version; one that died says nothing at all."""
    q = quorum(delivery_limit=3)
    q.fill(2)
    q.consume(prefetch=2)
    q.channel_down()
    q.consume(prefetch=2, node="n2")
    q.send(queue_commands.encode_node_up("n2", 8))
    assert all_ready(q) == [(0, 2, 2), (1, 2, 2)]


def test_credit_of_what_was_not_written_is_unspent() -> None:
    q = quorum()
    q.fill(1)
    q.consume(credit=1)
    assert delivered(give_back(q, (0, 1))) == {"c": [0]}
    assert delivered(q.settle((0, 1))) == {}


def test_a_drain_hands_out_what_is_ready_and_withdraws_the_rest() -> None:
    q = quorum()
    q.fill(2)
    outcome = q.consume(credit=5, drains=True)
    assert delivered(outcome) == {"c": [0, 1]}
    assert queue_commands.decode_reply(outcome.reply) == {"ok": True, "credit": 3}
    assert delivered(q.fill(2)) == {}
    # Further credit is as good as any.
    assert delivered(q.consume(credit=1)) == {"c": [2]}
    # One without credit has none to withdraw, and none from then on.
    reply = q.consume("d", channel=2, prefetch=1, drains=True).reply
    assert queue_commands.decode_reply(reply) == {"ok": True, "credit": 0}
    assert delivered(q.fill(1)) == {}


def test_a_drain_is_not_cut_off_by_what_others_take() -> None:
    """One command hands out a bounded number; the rest of it follows by ticks."""
    q = QueueDriver()
    q.fill(3 * DELIVERIES_PER_COMMAND_MAX)
    q.consume("d", channel=2, priority=5)
    outcome = q.consume("c", prefetch=10, credit=20, drains=True)
    assert len(delivered(outcome)["c"]) == 10
    assert queue_commands.decode_reply(outcome.reply) == {"ok": True, "credit": 10}


def test_what_returns_of_withdrawn_credit_gives_none_again() -> None:
    q = quorum()
    q.fill(2)
    q.consume(credit=3, drains=True)
    assert delivered(q.requeue((0, 2), cause=ReturnCause.WITHDRAWN)) == {}
    assert all_ready(q) == [(0, 0, 0), (1, 0, 0)]


def test_what_was_handed_back_keeps_levels_and_expiry() -> None:
    """R-PRI-4, R-TTL-1."""
    q = QueueDriver(max_priority=5)
    q.publish(content(priority=1), content(priority=3), content(ttl_ms=10))
    q.consume()
    q.channel_down(written={})
    q.tick(20)
    assert [number for number, *_ in all_ready(q)] == [1, 0]
    assert q.count("expired") == 1


def test_a_channels_end_names_a_bounded_number_of_ranges() -> None:
    """Above it more counts as written than was."""
    many = [(2 * n, 2 * n + 1) for n in range(WRITTEN_MAX + 5)]
    for given in (many, many[:WRITTEN_MAX]):
        command = queue_commands.encode_channel_down("n", 1, 2, {"t": given})
        _, decoded = queue_decoders.decode(command)
        found = decoded.written["t"]
        assert len(found) == WRITTEN_MAX
        assert found[: WRITTEN_MAX - 1] == given[: WRITTEN_MAX - 1]
        assert found[-1] == (given[WRITTEN_MAX - 1][0], given[-1][1])


@pytest.mark.parametrize(
    "fields",
    ['"written":3', '"written":[["a",[[2,1]]]]', '"written":[[1,[]]]', '"written":[["a"]]'],
)
def test_a_channels_end_that_cannot_be_read_is_refused(fields: str) -> None:
    q = quorum()
    q.fill(1)
    q.consume()
    text = f'{{"node":"n1","incarnation":7,"channel":1,{fields}}}'
    reply = q.reply(
        bytes((queue_commands.VERSION, queue_commands.Kind.CHANNEL_DOWN)) + text.encode()
    )
    assert reply["refused"] == 400
    assert q.unacked == 1


def test_what_is_put_before_the_returns_is_one_with_them_again() -> None:
    """A snapshot brings the same spans back."""
    q = quorum(delivery_limit=5)
    q.fill(2)
    q.consume(prefetch=2)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 2))
    q.consume("d", prefetch=1, channel=2)
    q.send(queue_commands.encode_cancel(consumer("d", 2)))
    q.requeue((0, 1), who=consumer("d", 2), cause=ReturnCause.UNWRITTEN)
    restored = QueueMachine()
    restored.restore(q.machine.snapshot())
    assert restored.snapshot() == q.machine.snapshot()
    assert all_ready(q) == [(0, 1, 1), (1, 1, 1)]
